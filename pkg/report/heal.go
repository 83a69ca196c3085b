package report

import (
	"fmt"
	"io"
	"strings"

	"zxfer/pkg/job"
	"zxfer/pkg/size"
)

// HealText shows a heal: its plan, or what became of each damaged thing and what
// remains to be done.
func HealText(w io.Writer, r *job.HealReport) error {
	var b strings.Builder
	if len(r.Things) == 0 {
		fmt.Fprintf(&b, "%s: no known errors", Line(r.At))
		if r.Scan != "" {
			fmt.Fprintf(&b, " (%s)", Line(r.Scan))
		}
		return writeString(w, b.String()+"\n")
	}
	for _, d := range r.Datasets {
		switch {
		case d.Why != "":
			fmt.Fprintf(&b, "%s: not healed: %s\n", Line(d.Dataset), Line(d.Why))
			for _, hint := range lines(d.Remedy) {
				fmt.Fprintf(&b, "  %s\n", hint)
			}
		case r.DryRun:
			fmt.Fprintf(&b, "%s: would be healed from %s: a snapshot of its own, sent to both, about %s back over the damaged blocks, and the snapshot removed\n",
				Line(d.Dataset), Line(d.Copy), size.Text(d.Bytes))
		case d.Healed:
			fmt.Fprintf(&b, "%s: blocks were healed from %s\n", Line(d.Dataset), Line(d.Copy))
		}
	}
	for _, t := range r.Things {
		fmt.Fprintf(&b, "  %-10s  %s", t.Outcome, Line(t.Shown))
		if t.Why != "" {
			fmt.Fprintf(&b, " (%s)", Line(t.Why))
		}
		b.WriteString("\n")
	}
	seen := map[string]bool{}
	for _, t := range r.Things {
		if t.Remedy != "" && !seen[t.Remedy] {
			if len(seen) == 0 {
				b.WriteString("to bring back by hand:\n")
			}
			seen[t.Remedy] = true
			fmt.Fprintf(&b, "  %s\n", Line(t.Remedy))
		}
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "  and %d more\n", r.More)
	}
	if r.DryRun {
		b.WriteString("dry run: nothing was changed\n")
	}
	return writeString(w, b.String())
}
