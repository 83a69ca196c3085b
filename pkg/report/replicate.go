package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/freeze"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// PreviewText writes a preview for people. verbose lists every stream, and every snapshot with the
// reason why it is kept.
func PreviewText(w io.Writer, p *runner.Preview, verbose bool) error {
	var b strings.Builder
	alone := ""
	if p.Local {
		alone = ", no target: sends nothing"
	}
	source := oneLine(p.Source)
	if !p.Switched.IsZero() {
		source += ", the source since " + stamp(p.Switched)
	}
	fmt.Fprintf(&b, "%s: %s, %s%s\n", p.Job, source, english.Plural(p.Datasets, "dataset", ""), alone)
	errorText(&b, "  error: ", p.Error, p.Hint)
	if len(p.Snapshots) > 0 {
		fmt.Fprintf(&b, "  would take %s: %s\n", english.Plural(len(p.Snapshots), "snapshot", ""), firstOrAll(p.Snapshots, "    ", verbose))
	}
	for i := range p.Frozen {
		b.WriteString("  " + frozenText(&p.Frozen[i]) + "\n")
	}
	for _, t := range p.Targets {
		head := fmt.Sprintf("  %s (%s): ", t.Target, oneLine(t.To))
		if t.Error != "" {
			errorText(&b, head, t.Error, t.Hint)
			continue
		}
		b.WriteString(head)
		if diskPreview(&b, t.Disk); t.Plan != nil {
			targetText(&b, t, verbose)
		}
	}
	for _, s := range p.Prunings {
		fmt.Fprintf(&b, "  %s on %s: would destroy %s%s and keep %s\n", s.Rule(), oneLine(s.Side), english.Plural(len(s.Remove), "snapshot", ""), datasetsOf(s), humanize.Comma(int64(s.Kept)))
		if verbose {
			pruningDetails(&b, s)
		}
		untrustedText(&b, "    ", s, verbose)
		errorText(&b, "    error: ", s.Error, s.Hint)
	}
	for _, side := range p.Unlimited {
		fmt.Fprintf(&b, "  %s: no retention: keeps all snapshots\n", oneLine(side))
	}
	for _, d := range p.Denied {
		if d.Command && !verbose {
			continue
		}
		effect := "a run would fail"
		if d.Harmless {
			effect = "a run would only note"
		}
		if d.Command {
			effect = "it would fail"
		}
		errorText(&b, fmt.Sprintf("  %s: %s: %s when %s: ", oneLine(d.Target), d.Key, effect, d.When), d.Error, d.Hint)
	}
	drillPreviewText(&b, p.Drill, verbose)
	if n := p.Notify; n != nil && n.Ping != "" {
		fmt.Fprintf(&b, "  each run: ping to %s\n", oneLine(n.Ping))
	}
	if n := p.Notify; n != nil && len(n.Mail) > 0 {
		fmt.Fprintf(&b, "  mail to %s: %s\n", oneLine(strings.Join(n.Mail, ", ")), map[bool]string{true: "each run", false: "first failed run, one each day, next success"}[n.On == "always"])
	}
	for _, d := range p.Delegations {
		delegationText(&b, d, verbose)
	}
	return writeString(w, b.String())
}

// delegationText describes what the user of a host lacks.
func delegationText(b *strings.Builder, d *runner.Delegation, verbose bool) {
	who := fmt.Sprintf("  %s is not root on %s", oneLine(d.User), cmp.Or(oneLine(d.Host), "this host"))
	switch {
	case d.Unknown != "":
		fmt.Fprintf(b, "%s, and its permissions are unknown (%s); the job needs these, once as root there: %s\n", who, oneLine(d.Unknown), oneLine(d.Command))
	case d.Command != "":
		fmt.Fprintf(b, "%s and lacks permissions that the job needs; once as root there: %s\n", who, oneLine(d.Command))
	case verbose:
		fmt.Fprintf(b, "%s: nothing is missing: it has all permissions that the job needs\n", who)
	}
	if len(d.RootOnly) > 0 {
		fmt.Fprintf(b, "%s: on Linux, zfs allow cannot permit: %s\n", who, oneLine(strings.Join(d.RootOnly, ", ")))
	}
}

// diskPreview describes the disk of a target.
func diskPreview(b *strings.Builder, d *disk.Preview) {
	if d == nil {
		return
	}
	fmt.Fprintf(b, "disk with GUID %d is %s; a run %s\n", d.GUID, d.State, d.Next)
	if d.Warning != "" {
		fmt.Fprintf(b, "    warning: %s\n", d.Warning)
		writePrefixed(b, "    hint: ", d.Hint)
	}
	for _, p := range d.Pools {
		fmt.Fprintf(b, "    found pool %s\n", oneLine(p))
	}
}

// frozenText describes an application that the run would freeze.
func frozenText(z *freeze.Application) string {
	how := map[string]string{freeze.PostgreSQL: "checkpoint of the PostgreSQL server", freeze.MySQL: "lock of the MySQL or MariaDB server",
		freeze.GuestAgent: "freeze by the guest agent of the machine at " + z.Socket, freeze.Command: "frozen by " + strings.Join(z.Freeze, " ")}[z.Kind]
	if z.Host != "" {
		how += " at " + z.Host
	}
	otherwise := "on failure, takes no snapshot"
	if !z.Required {
		otherwise = "on failure, takes the snapshots anyway"
	}
	return oneLine(fmt.Sprintf("for %s of them %s: %s, for at most %s; %s", english.Plural(len(z.Datasets), "dataset", ""), z.Label(), how, z.Timeout, otherwise))
}

// errorText writes an error and its hint, unless err is empty.
func errorText(b *strings.Builder, head, err, hint string) {
	if err == "" {
		return
	}
	fmt.Fprintf(b, "%s%s\n", head, joinLines(err))
	indent := head[:len(head)-len(strings.TrimLeft(head, " "))]
	writePrefixed(b, indent+"  hint: ", hint)
}

// firstOrAll returns all names, one per line, or only the first.
func firstOrAll(names []string, indent string, all bool) string {
	if !all && len(names) > 1 {
		return oneLine(names[0]) + " ..."
	}
	var lines []string
	for _, name := range names {
		lines = append(lines, oneLine(name))
	}
	return strings.Join(lines, "\n"+indent)
}

// datasetsOf describes the orphans that a pruning destroys.
func datasetsOf(p *decision.Pruning) string {
	if len(p.Datasets) == 0 {
		return ""
	}
	return ", " + english.Plural(len(p.Datasets), "dataset", "") + " deleted on the source (" + oneLine(strings.Join(p.Datasets, ", ")) + ")"
}

func pruningDetails(b *strings.Builder, p *decision.Pruning) {
	for _, name := range p.Remove {
		fmt.Fprintf(b, "    %s\n", oneLine(name))
	}
	for _, name := range slices.Sorted(maps.Keys(p.KeepReasons)) {
		fmt.Fprintf(b, "    %s is kept: %s\n", oneLine(name), oneLine(p.KeepReasons[name].String()))
	}
}

// untrustedText lists snapshots with dates that retention does not trust.
func untrustedText(b *strings.Builder, indent string, p *decision.Pruning, all bool) {
	if len(p.Untrusted) > 0 {
		fmt.Fprintf(b, "%s%s with implausible dates do not count for retention: %s\n",
			indent, english.Plural(len(p.Untrusted), "snapshot", ""), firstOrAll(p.Untrusted, "  "+indent, all))
	}
}

// targetText describes what a run would send to a target.
func targetText(b *strings.Builder, t *runner.TargetPreview, verbose bool) {
	unchanged, full := 0, 0
	for _, d := range t.Plan.Datasets {
		if len(d.Steps) == 0 {
			unchanged++
		}
	}
	for _, s := range t.Plan.Streams() {
		if s.Kind == plan.Full {
			full++
		}
	}
	fmt.Fprintf(b, "%s to send in %s (%d of them in full), %d up to date, %d refused, wire %s",
		english.Plural(len(t.Plan.Datasets)-unchanged, "dataset", ""), english.Plural(t.Plan.Steps(), "stream", ""), full, unchanged, len(t.Refused), oneLine(t.Wire.Mode))
	if bytes := t.Plan.Bytes(); bytes > 0 {
		fmt.Fprintf(b, ", about %s", size.Text(bytes))
	}
	if t.Excluded > 0 {
		fmt.Fprintf(b, ", %d excluded", t.Excluded)
	}
	b.WriteByte('\n')
	for _, r := range t.Renames {
		if r.Refused == "" {
			fmt.Fprintf(b, "    RENAMES %s to %s, with its descendants: its source is now %s\n", oneLine(r.From), oneLine(r.To), oneLine(r.Source))
		}
	}
	lacking := 0
	for _, d := range t.Plan.Datasets {
		if a := asideText(d); a != "" {
			b.WriteString("  " + a)
		}
		if len(d.SetAfter) > 0 {
			if lacking++; lacking <= maxLacking {
				fmt.Fprintf(b, "    SETS %s on %s, as on its source\n", oneLine(zfs.JoinValues(d.SetAfter)), oneLine(d.Target))
			}
		}
	}
	if lacking > maxLacking {
		fmt.Fprintf(b, "    SETS properties on %s more\n", english.Plural(lacking-maxLacking, "copy", "copies"))
	}
	if verbose {
		for d, s := range t.Plan.Streams() {
			fmt.Fprintf(b, "    %s to %s: %s to @%s: %s\n", oneLine(d.Source), oneLine(d.Target), s.Kind, oneLine(s.Send.To), Line(s.Why))
		}
		writePrefixed(b, "    ", strings.Join(t.Plan.Notes, "\n"))
	}
	if len(t.Exposed) > 0 {
		fmt.Fprintf(b, "    warning: roles changed without a record that block sizes were compared, so files may have lost data: %s\n", oneLine(finding.JoinFirst(t.Exposed, 3)))
		writePrefixed(b, "    hint: ", t.Drill)
	}
	if w := t.Writable; w != nil {
		fmt.Fprintf(b, "    warning: %s writable, %d of them can be mounted: after a write or a read with atime, runs refuse the copy\n",
			english.PluralWord(w.Count(), "1 copy is", humanize.Comma(int64(w.Count()))+" copies are"), len(w.Mountable))
		writePrefixed(b, "    hint: ", t.Protect)
	}
	for _, d := range t.Refused {
		errorText(b, "    "+oneLine(d.Source)+": ", d.Error, d.Hint)
	}
}

// PruningText writes a pruning, or its dry run, for people.
func PruningText(w io.Writer, job string, p *decision.Pruning, dryRun bool) error {
	var b strings.Builder
	verb := "removed"
	if dryRun || p.Refused {
		verb = "would destroy"
	}
	fmt.Fprintf(&b, "%s on %s: %s %s%s, %s kept, %s of them only because of holds or clones\n", job, oneLine(p.Side), verb, english.Plural(len(p.Remove), "snapshot", ""), datasetsOf(p),
		humanize.Comma(int64(p.Kept)), humanize.Comma(int64(len(p.Held))))
	for i := 0; dryRun && i < len(p.Remove); i++ {
		fmt.Fprintf(&b, "  %s\n", oneLine(p.Remove[i]))
	}
	untrustedText(&b, "  ", p, dryRun)
	return writeString(w, b.String())
}

// RunText writes the result of a run for people.
func RunText(w io.Writer, r *statedir.Run) error {
	var b strings.Builder
	runText(&b, r)
	return writeString(w, b.String())
}

// RunLine summarizes a run on one line.
func RunLine(r *statedir.Run) string {
	line := fmt.Sprintf("%s: %s in %s", oneLine(r.Job), oneLine(r.Outcome), Seconds(r.Ended.Sub(r.Started).Seconds()))
	if r.Snapshots > 0 {
		line += fmt.Sprintf(", %s taken", english.Plural(r.Snapshots, "snapshot", ""))
	}
	if r.Pruned > 0 {
		line += fmt.Sprintf(", %d destroyed on the source, including bookmarks", r.Pruned)
	}
	return line
}

func runText(b *strings.Builder, r *statedir.Run) {
	if r.Skipped {
		fmt.Fprintf(b, "%s: %s: nothing done\n", oneLine(r.Job), oneLine(r.Paused))
		return
	}
	b.WriteString(RunLine(r) + "\n")
	for _, t := range r.Targets {
		if t.Paused != "" {
			fmt.Fprintf(b, "  %s (%s): %s: %d sent (%s), the next run sends the rest\n", oneLine(t.Target), oneLine(t.To), oneLine(t.Paused), t.Sent, size.Text(t.Bytes))
			continue
		}
		if t.Outcome == "" && t.Disk != "" {
			fmt.Fprintf(b, "  %s (%s): disk %s since %s\n", oneLine(t.Target), oneLine(t.To), oneLine(t.Disk), stamp(t.DiskSince))
		}
		if t.Outcome == "" {
			continue // the run ended before it reached this target
		}
		fmt.Fprintf(b, "  %s (%s): %s: %d sent (%s), %d unchanged, %s, %d destroyed\n",
			oneLine(t.Target), oneLine(t.To), oneLine(t.Outcome), t.Sent, size.Text(t.Bytes), t.Unchanged, t.FailureText(), t.Pruned)
		if t.Disk != "" {
			fmt.Fprintf(b, "    disk %s%s\n", oneLine(t.Disk), map[bool]string{true: ", may be removed"}[t.Disk == string(decide.DiskRemovable)])
		}
	}
}

// LogText writes the record of a past run for people.
func LogText(w io.Writer, r *statedir.Run) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", stamp(r.Started))
	runText(&b, r)
	if r.Error != "" {
		fmt.Fprintf(&b, "  error: %s\n", joinLines(r.Error))
	}
	for _, f := range r.Failures() {
		of := f.Target
		if f.Source != "" {
			of += ": " + f.Source
		}
		fmt.Fprintf(&b, "  %s: %s\n", oneLine(of), joinLines(f.Error))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note: %s\n", joinLines(n))
	}
	return writeString(w, b.String())
}
