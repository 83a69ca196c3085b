package report

import (
	"fmt"
	"strings"

	"zxfer/pkg/job"
	"zxfer/pkg/size"
)

// HealDone is Done for a heal: its plan, or what became of each damaged thing and what
// remains to be done.
func (t *Text) HealDone(r *job.HealReport, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over()
	if len(r.Things) == 0 && (err != nil || t.quiet) {
		return nil
	}
	return writeString(t.opts.Stdout, healText(r))
}

// HealDone is Done for a heal.
func (j *JSON) HealDone(r *job.HealReport, err error) error { return j.done(r, err) }

func healText(r *job.HealReport) string {
	var b strings.Builder
	if len(r.Things) == 0 {
		fmt.Fprintf(&b, "%s: no known errors", Line(r.At))
		if r.Scan != "" {
			fmt.Fprintf(&b, " (%s)", Line(r.Scan))
		}
		return b.String() + "\n"
	}
	told := map[string]bool{} // of a dataset
	for _, d := range r.Datasets {
		told[d.Why] = true
		switch {
		case d.Why != "":
			how := "not healed"
			if d.Partly {
				how = "not healed to the end"
			}
			fmt.Fprintf(&b, "%s: %s: %s\n", Line(d.Dataset), how, Line(d.Why))
			for _, hint := range lines(d.Remedy) {
				fmt.Fprintf(&b, "  %s\n", hint)
			}
		case r.DryRun:
			fmt.Fprintf(&b, "%s: would be healed from %s: a snapshot of its own, sent to both, about %s back over the damaged blocks%s, and the snapshot removed\n",
				Line(d.Dataset), Line(d.Copy), size.Text(d.Bytes), since(d))
			if d.Note != "" {
				fmt.Fprintf(&b, "  %s: %s\n", Line(d.Copy), Line(d.Note))
			}
		case d.Healed:
			fmt.Fprintf(&b, "%s: blocks were healed from %s\n", Line(d.Dataset), Line(d.Copy))
		}
	}
	for _, t := range r.Things {
		fmt.Fprintf(&b, "  %-10s  %s", t.Outcome, Line(t.Shown))
		if why := whyNot(t, told[t.Why]); why != "" {
			fmt.Fprintf(&b, " (%s)", Line(why))
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
	return b.String()
}

// since says that an increment is sent.
func since(d *job.HealedDataset) string {
	if d.Since == "" {
		return ""
	}
	return fmt.Sprintf(" (what came after @%s; if that does not suffice, all, about %s)", Line(d.Since), size.Text(d.Whole))
}

// whyNot returns what is known of a thing that is not proved to be healed. told says that
// the line of its dataset has the reason.
func whyNot(t *job.HealedObject, told bool) string {
	var parts []string
	if !told && t.Why != "" {
		parts = append(parts, t.Why)
	}
	if t.Read != "" && t.Outcome != job.Healed {
		parts = append(parts, "it "+t.Read)
	}
	return strings.Join(parts, "; ")
}
