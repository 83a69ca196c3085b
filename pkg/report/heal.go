package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/size"
)

// HealResult returns the text of a heal: the plan, or the outcome for each damaged object and the
// remaining steps.
func HealResult(r *heal.Report) ResultText {
	return func(err error) (stdout, stderr string) {
		if len(r.Objects) > 0 || err == nil {
			stdout = healText(r) + unchangedText(r.DryRun && len(r.Objects) > 0)
		}
		return stdout, ""
	}
}

// HealJobResult returns the text of a heal of a job: of each side, in order. The error has the
// reasons of sides whose errors are unknown.
func HealJobResult(r *heal.JobReport) ResultText {
	return func(error) (stdout, stderr string) {
		damaged := false
		for _, side := range r.Heals {
			if len(side.Objects) > 0 || side.Error == "" {
				stdout += healText(side)
			}
			damaged = damaged || len(side.Objects) > 0
		}
		return stdout + unchangedText(r.DryRun && damaged), ""
	}
}

// unchangedText returns the last line of a dry run.
func unchangedText(dry bool) string {
	if dry {
		return "dry run: nothing was changed\n"
	}
	return ""
}

func healText(r *heal.Report) string {
	var b strings.Builder
	if len(r.Objects) == 0 {
		fmt.Fprintf(&b, "%s: no known errors", Line(r.At))
		if r.Scan != "" {
			fmt.Fprintf(&b, " (%s)", Line(r.Scan))
		}
		return b.String() + "\n"
	}
	reported := map[string]bool{} // the reasons that datasets have
	at, _ := endpoint.Parse(r.At) // zxfer's own output
	for _, d := range r.Datasets {
		reported[d.Why] = true
		at.Name = d.Dataset
		switch {
		case d.Why != "":
			how := "not healed"
			if d.Partial {
				how = "not completely healed"
			}
			fmt.Fprintf(&b, "%s: %s: %s\n", Line(at.String()), how, Line(d.Why))
			for _, hint := range lines(d.Remedy) {
				fmt.Fprintf(&b, "  %s\n", hint)
			}
		case r.DryRun:
			fmt.Fprintf(&b, "%s: would be healed from %s: by a new snapshot on both sides, and %s%s; the snapshot is destroyed afterwards\n",
				Line(at.String()), Line(d.Copy), plannedStream(d), since(d))
			if d.Note != "" {
				fmt.Fprintf(&b, "  %s: %s\n", Line(d.Copy), Line(d.Note))
			}
		case d.Healed:
			fmt.Fprintf(&b, "%s: blocks were healed from %s%s\n", Line(at.String()), Line(d.Copy), sentAmount(d))
		}
	}
	for _, t := range r.Objects {
		fmt.Fprintf(&b, "  %-10s  %s", t.Outcome, Line(t.Shown))
		if why := whyNot(t, reported[t.Why]); why != "" {
			fmt.Fprintf(&b, " (%s)", Line(why))
		}
		b.WriteString("\n")
	}
	seen := map[string]bool{}
	for _, t := range r.Objects {
		if t.Remedy != "" && !seen[t.Remedy] {
			if len(seen) == 0 {
				b.WriteString("to restore manually:\n")
			}
			seen[t.Remedy] = true
			fmt.Fprintf(&b, "  %s\n", Line(t.Remedy))
		}
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "  and %d more\n", r.More)
	}
	return b.String()
}

// plannedStream describes the stream to send.
func plannedStream(d *heal.Dataset) string {
	switch {
	case d.Blocks > 0 && d.Whole != "":
		return fmt.Sprintf("%s out of a stream of about %s (%s)", damagedBlocks(d.Blocks), size.Text(d.Bytes), Line(d.Whole))
	case d.Blocks > 0:
		return fmt.Sprintf("%s, about %s, for which the copy's host reads about %s", damagedBlocks(d.Blocks), size.Text(d.SendBytes), size.Text(d.Bytes))
	case d.Whole != "":
		return fmt.Sprintf("a stream of about %s (%s)", size.Text(d.Bytes), Line(d.Whole))
	}
	return "a stream of about " + size.Text(d.Bytes)
}

// sentAmount describes the streams that were sent.
func sentAmount(d *heal.Dataset) string {
	switch {
	case d.Sent == 0:
		return ""
	case d.Blocks > 0:
		return fmt.Sprintf(": sent %s for %s, read %s from the copy", size.Text(d.Sent), damagedBlocks(d.Blocks), size.Text(d.Read))
	case d.Whole != "":
		return fmt.Sprintf(": sent %s (%s)", size.Text(d.Sent), Line(d.Whole))
	}
	return ": sent " + size.Text(d.Sent)
}

func damagedBlocks(n uint64) string {
	return english.Plural(int(min(n, math.MaxInt)), "damaged block", "")
}

// since describes an incremental send.
func since(d *heal.Dataset) string {
	if d.Since == "" {
		return ""
	}
	return fmt.Sprintf(" (changes since @%s; if they are not enough, all data, about %s)", Line(d.Since), size.Text(d.FullBytes))
}

// whyNot explains why an object is not known to be healed. told omits its Why, because the
// dataset's line has it.
func whyNot(t *heal.Object, reported bool) string {
	var parts []string
	if !reported && t.Why != "" {
		parts = append(parts, t.Why)
	}
	if t.Read != "" && t.Outcome != heal.Healed {
		parts = append(parts, "it "+t.Read)
	}
	return strings.Join(parts, "; ")
}
