package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/option"
	"zxfer/pkg/plan"
	"zxfer/pkg/size"
)

// planText shows the whole plan: hosts, transport, conflicts, steps, losses, and equivalent
// commands.
func planText(r *send.Report) string {
	if r.Plan == nil {
		return ""
	}
	sections := []string{hostsText(r)}
	if len(r.Plan.Conflicts) > 0 {
		sections = append(sections, conflictsText(r.Plan.Conflicts, true))
	}
	for _, d := range r.Plan.Datasets {
		sections = append(sections, datasetText(d))
	}
	sections = append(sections, notesText(r.Plan.Notes), findingsText(r.Findings), measuredText(r.Ceilings, r.Expected), growthText(r), commandsText(r.Commands))
	if len(r.Plan.Conflicts) == 0 {
		sections = append(sections, totalText(r.Plan))
	}
	return strings.Join(nonEmpty(sections), "\n")
}

func hostsText(r *send.Report) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, h := range r.Hosts {
		fmt.Fprintf(w, "%s\t%s\tzfs %s\t%s\n", h.Role, oneLine(h.Name), cmp.Or(oneLine(h.ZFS), "unknown"), oneLine(h.Backend))
	}
	if r.Wire.Mode != "" {
		wire := r.Wire.Mode
		if r.Wire.Streams > 0 {
			wire += ", " + english.Plural(r.Wire.Streams, "connection", "")
		}
		if r.Wire.Dial != "" {
			wire += ", " + r.Wire.Dial + " dials"
			if r.Wire.Address != "" {
				wire += " " + oneLine(r.Wire.Address)
			}
		}
		if r.Wire.Why != "" {
			wire += ": " + Line(r.Wire.Why)
		}
		fmt.Fprintf(w, "wire\t%s\n", wire)
	}
	_ = w.Flush() // writes to a Builder cannot fail
	return trimRight(b.String())
}

func datasetText(d *plan.Dataset) string {
	var b strings.Builder
	kind := string(d.Type)
	if d.Encrypted {
		kind += ", encrypted, sent raw"
	}
	fmt.Fprintf(&b, "%s -> %s  (%s)\n", oneLine(d.Source), oneLine(d.Target), kind)
	for _, l := range d.Loses {
		fmt.Fprintf(&b, "  LOSES %s on the target\n", oneLine(l))
	}
	b.WriteString(asideText(d))
	if d.Discard != "" {
		fmt.Fprintf(&b, "  discards the state of an interrupted receive: %s\n", Line(d.Discard))
	}
	if d.CreateParents {
		fmt.Fprintf(&b, "  creates the missing parents of %s, never mounted\n", oneLine(d.Target))
	}
	for _, name := range d.NewRoots {
		fmt.Fprintf(&b, "  first makes %s an encryption root with its present key\n", oneLine(name))
	}
	b.WriteString(restoreText(d.Restore))
	if d.Joins != "" {
		b.WriteString(joinsText(d.Joins, ""))
	}
	for _, m := range d.MovedHolds {
		fmt.Fprintf(&b, "  moves the hold %s to %s\n", oneLine(m.Tag), oneLine(m.To))
	}
	switch {
	case d.RollsBack():
		fmt.Fprintf(&b, "  rolls back to %s\n", oneLine("@"+d.Restore.Rollback.To.Name))
	case len(d.Steps) == 0:
		fmt.Fprintf(&b, "  up to date at %s\n", oneLine(d.Final.Short()))
	}
	for i := range d.Steps {
		st := &d.Steps[i]
		fmt.Fprintf(&b, "  %d. %s, %s\n", i+1, StepText(st), stepSize(st))
		if st.Why != "" {
			fmt.Fprintf(&b, "     %s\n", Line(st.Why))
		}
	}
	return b.String()
}

// asideText announces the renaming of a diverged copy.
func asideText(d *plan.Dataset) string {
	if d.Rename == nil {
		return ""
	}
	return fmt.Sprintf("  RENAMES %s to %s, with its descendants: %s\n", oneLine(d.Target), oneLine(d.Rename.As), Line(d.Rename.Why))
}

// StepText describes a stream: "incremental @a -> @d with 2 snapshots between".
func StepText(st *plan.Step) string {
	to := "@" + st.Send.To
	var s string
	switch st.Kind {
	case plan.Incremental:
		s = "incremental " + st.Send.From + " -> " + to
	case plan.Clone:
		s = "clone of " + st.Send.From + " up to " + to
	case plan.Resume:
		s = "rest of " + to + ", " + size.Text(st.Done) + " received before"
	default:
		s = "full " + to
	}
	if n := len(st.Send.Through); n > 0 {
		s += " with " + english.Plural(n, "snapshot", "") + " between"
	}
	return oneLine(s)
}

func stepSize(st *plan.Step) string {
	if st.Bytes == 0 {
		return "size unknown"
	}
	return "about " + size.Text(st.Bytes)
}

func notesText(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return "notes\n" + option.Flags(indented(notes))
}

// growthText shows the expected growth of the target.
func growthText(r *send.Report) string {
	g := r.Growth
	if g == nil || len(r.Plan.Conflicts) > 0 {
		return ""
	}
	line := amount(string(g.Bound), g.Bytes, g.Unknown, r.Plan.Steps())
	if g.Available != nil {
		line += ", " + size.Text(*g.Available) + " available"
	}
	return "growth\n" + indented(append([]string{g.Target + ": " + line}, g.Reasons...))
}

// amount shows a sum of estimates, after a word such as "about".
func amount(word string, bytes uint64, unknown, streams int) string {
	switch text := word + " " + size.Text(bytes); {
	case unknown == streams:
		return "size unknown"
	case unknown > 0:
		return text + " and " + english.Plural(unknown, "stream", "") + " of unknown size"
	default:
		return text
	}
}

func commandsText(commands []string) string {
	if len(commands) == 0 {
		return ""
	}
	return "equivalent commands\n" + indented(commands)
}

// indented returns each text, cleaned, on an indented line.
func indented(texts []string) string {
	var b strings.Builder
	for _, s := range texts {
		fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(clean(s), "\n", "\n  "))
	}
	return b.String()
}

func totalText(p *plan.Plan) string {
	return "total: " + planTotal(p) + "\n"
}

// planTotal counts the datasets, streams and bytes of a plan.
func planTotal(p *plan.Plan) string {
	steps, unknown, current, back := p.Steps(), 0, 0, 0
	for _, d := range p.Datasets {
		switch {
		case d.RollsBack():
			back++
		case len(d.Steps) == 0:
			current++
		}
	}
	for _, st := range p.Streams() {
		if st.Bytes == 0 {
			unknown++
		}
	}
	parts := []string{english.Plural(len(p.Datasets), "dataset", "")}
	if current > 0 {
		parts[0] += fmt.Sprintf(" (%d up to date)", current)
	}
	if back > 0 {
		parts = append(parts, fmt.Sprintf("%d rolled back", back))
	}
	parts = append(parts, english.Plural(steps, "stream", ""))
	if steps > 0 {
		parts = append(parts, amount("about", p.Bytes(), unknown, steps))
	}
	return strings.Join(parts, ", ")
}

// headline summarizes a plan that is about to run. It omits conflicts and failed checks, because
// the job ends with them as its error.
func headline(r *send.Report) string {
	if r.Plan == nil || len(r.Plan.Conflicts) > 0 {
		return ""
	}
	var b strings.Builder
	if r.Plan.Steps() > 0 {
		fmt.Fprintf(&b, "%s -> %s: %s, wire %s\n", oneLine(r.Source), oneLine(r.Target), planTotal(r.Plan), oneLine(r.Wire.Mode))
	}
	for _, d := range r.Plan.Datasets {
		for _, l := range d.Loses {
			fmt.Fprintf(&b, "%s loses %s\n", oneLine(d.Target), oneLine(l))
		}
	}
	for _, d := range r.Plan.Datasets {
		b.WriteString(strings.TrimPrefix(asideText(d), "  "))
	}
	for _, n := range r.Plan.Notes {
		fmt.Fprintf(&b, "note: %s\n", Line(n))
	}
	return b.String() + warningsText(r.Findings) + expectedText(r.Expected)
}

func dryRunText(err error) string {
	if err != nil && fault.ClassOf(err) == fault.Refused {
		return "dry run: zxfer would refuse this; nothing was changed\n"
	}
	return "dry run: nothing was changed\n"
}

// lines returns the non-empty lines of a text, cleaned.
func lines(s string) []string {
	var out []string
	for l := range strings.Lines(s) {
		if l = Line(l); l != "" {
			out = append(out, l)
		}
	}
	return out
}

// trimRight removes the padding of empty last columns from each line.
func trimRight(s string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		b.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	return b.String()
}

// restoreText lists the steps of a restore of one dataset other than its streams.
func restoreText(g *plan.RestoreActions) string {
	if g == nil {
		return ""
	}
	var b strings.Builder
	if len(g.Unmount) > 0 {
		fmt.Fprintf(&b, "  first unmounts %s\n", oneLine(strings.Join(g.Unmount, ", ")))
	}
	var given []string
	for _, name := range slices.Sorted(maps.Keys(g.Set)) {
		given = append(given, name+"="+g.Set[name])
	}
	if len(g.Revert) > 0 {
		given = append(given, strings.Join(g.Revert, " and ")+" inherited or default")
	}
	if len(given) > 0 {
		fmt.Fprintf(&b, "  finally sets %s\n", oneLine(strings.Join(given, ", ")))
	}
	if root := cmp.Or(g.Joins, g.AssertedRoot); root != "" {
		b.WriteString(joinsText(root, " again"))
	}
	if g.Mountpoint != "" {
		fmt.Fprintf(&b, "  mounts at %s\n", oneLine(g.Mountpoint))
	}
	return b.String()
}

// joinsText names the encryption root that a dataset will use.
func joinsText(root, again string) string {
	return fmt.Sprintf("  inherits its key from %s%s\n", oneLine(root), again)
}
