package report

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/job/compare"
	"zxfer/pkg/plan"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// CompareResult returns the text of a comparison: a line for each dataset, and totals. verbose also
// lists each snapshot that only one side has.
func CompareResult(r *compare.Report, verbose bool) ResultText {
	return func(err error) (stdout, stderr string) {
		if err == nil {
			stdout = compareText(r, verbose)
		}
		return stdout, ""
	}
}

// relation is how two datasets relate: its name in JSON and its text.
type relation struct{ name, text string }

func compareText(r *compare.Report, verbose bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "A: %s\nB: %s\n\n", oneLine(r.A), oneLine(r.B))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "DATASET\tSTATE\tCOMMON\tONLY IN A\tONLY IN B\tNOTES\n")
	words := map[string]string{}
	for _, rel := range relations() {
		words[rel.name] = rel.text
	}
	for _, p := range r.Datasets {
		common := "-"
		if p.Common != nil {
			common = oneLine(p.Common.Short())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", pairName(p), words[p.Relation], common, onlyText(p.A), onlyText(p.B), pairNotes(p))
	}
	_ = w.Flush() // writes to a Builder cannot fail
	text := trimRight(b.String())
	b.Reset()
	if verbose {
		for _, p := range r.Datasets {
			onlyNames(&b, "A", p.A)
			onlyNames(&b, "B", p.B)
		}
	}
	b.WriteString("\n" + compareTotal(r) + "\n")
	writePrefixed(&b, "note: ", strings.Join(r.Notes, "\n"))
	return text + b.String()
}

func relations() []relation {
	return []relation{
		{plan.PairSame, "same"},
		{plan.PairSameNewest, "up to date"},
		{plan.PairNewerA, "A is newer"},
		{plan.PairNewerB, "B is newer"},
		{plan.PairDiverged, "diverged"},
		{plan.PairUnrelated, "no common snapshot"},
		{plan.PairHalfReceived, "partially received"},
		{plan.PairOnlyA, "only in A"},
		{plan.PairOnlyB, "only in B"},
		{plan.PairSetAside, "renamed"},
		{plan.PairNoSnapshots, "no snapshots"},
	}
}

// pairName returns the name of a dataset relative to its root, or both names if it was renamed.
func pairName(p *plan.Pair) string {
	name := func(below string) string {
		if below == "" {
			return "."
		}
		return oneLine(below)
	}
	if p.Renamed {
		return name(p.A.RelativeName()) + " = " + name(p.B.RelativeName())
	}
	return name(p.RelativeName())
}

// onlyText counts the snapshots that only s has, and estimates the bytes to send them.
func onlyText(s *plan.PairSide) string {
	if s == nil || len(s.Only) == 0 {
		return "-"
	}
	text := humanize.Comma(int64(len(s.Only)))
	if older := len(s.Only) - s.Newer; older == len(s.Only) {
		text += " older"
	} else if older > 0 {
		text += fmt.Sprintf(" (%s older)", humanize.Comma(int64(older)))
	}
	if s.Bytes > 0 {
		text += ", " + size.Text(s.Bytes)
	}
	return text
}

func pairNotes(p *plan.Pair) string {
	var notes []string
	for _, side := range []struct {
		name string
		*plan.PairSide
	}{{"A", p.A}, {"B", p.B}} {
		if side.PairSide == nil {
			continue
		}
		if side.Resume != nil {
			notes = append(notes, fmt.Sprintf("%s has %s of a receive of %s to resume", side.name, size.Text(side.Resume.Bytes), oneLine(side.Resume.Snapshot)))
		}
		if side.Written > 0 {
			notes = append(notes, fmt.Sprintf("%s in %s without a snapshot", size.Text(side.Written), side.name))
		}
	}
	return strings.Join(notes, "; ")
}

// onlyNames lists the snapshots that only s has.
func onlyNames(b *strings.Builder, side string, s *plan.PairSide) {
	if s == nil || len(s.Only) == 0 {
		return
	}
	fmt.Fprintf(b, "\nonly in %s, of %s:\n", side, oneLine(s.Dataset))
	for _, v := range s.Only {
		fmt.Fprintf(b, "  %s  GUID %d%s\n", oneLine(v.Short()), v.GUID, older(s, v))
	}
}

func older(s *plan.PairSide, v zfs.Version) string {
	if n := len(s.Only) - s.Newer; n > 0 && v.CreateTXG <= s.Only[n-1].CreateTXG {
		return ", older than the common snapshot"
	}
	return ""
}

func compareTotal(r *compare.Report) string {
	var parts []string
	for _, rel := range relations() {
		if n := r.Relations[rel.name]; n > 0 {
			parts = append(parts, humanize.Comma(int64(n))+" "+rel.text)
		}
	}
	total := english.Plural(len(r.Datasets), "dataset", "") + ": " + strings.Join(parts, ", ")
	for _, s := range []struct {
		name  string
		bytes uint64
	}{{"A", r.BytesA}, {"B", r.BytesB}} {
		if s.bytes > 0 {
			total += fmt.Sprintf("; about %s to send from %s", size.Text(s.bytes), s.name)
		}
	}
	if r.Differing == 0 {
		return total + "; no difference"
	}
	return fmt.Sprintf("%s; %s", total, english.Plural(r.Differing, "differs", "differ"))
}
