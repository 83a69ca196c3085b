package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"zxfer/pkg/job"
	"zxfer/pkg/probe"
	"zxfer/pkg/size"
)

// barWidth is that of the longest bar, in columns: of a line without a note, 80
// columns are enough.
const barWidth = 12

// DoctorJSON writes a doctor's report as one object.
func DoctorJSON(w io.Writer, r *job.DoctorReport) error {
	c := *r
	notNil(&c.Findings)
	notNil(&c.Ceilings)
	return Object(w, c)
}

// DoctorText writes a doctor's report for a person.
func DoctorText(w io.Writer, r *job.DoctorReport) error {
	return writeString(w, diagnosisText(r.Findings)+ceilingsText(r.Ceilings, r.Expected)+expectedText(r.Expected))
}

// DoctorAllow writes the zfs allow lines only.
func DoctorAllow(w io.Writer, r *job.DoctorReport) error {
	var b strings.Builder
	for _, l := range r.Allow {
		b.WriteString(oneLine(l) + "\n")
	}
	return writeString(w, b.String())
}

// ceilingsText shows the rates, the highest first, and marks the one that the
// expected rate comes from.
func ceilingsText(ceilings []probe.Ceiling, e *job.Expected) string {
	if len(ceilings) == 0 {
		return ""
	}
	var b strings.Builder
	sorted := slices.Clone(ceilings)
	slices.SortStableFunc(sorted, func(x, y probe.Ceiling) int { return cmp.Compare(y.BytesPerSecond, x.BytesPerSecond) })
	most, host, title := sorted[0].BytesPerSecond, 0, 0
	for _, c := range sorted {
		host, title = max(host, len(oneLine(c.Host))), max(title, len(oneLine(c.Title)))
	}
	limit := limiting(ceilings, e)
	b.WriteString("ceilings\n")
	for _, c := range sorted {
		fmt.Fprintf(&b, "  %-*s  %-*s  ", host, oneLine(c.Host), title, oneLine(c.Title))
		if c.Skipped != "" {
			fmt.Fprintf(&b, "%s\n", Line(c.Skipped))
			continue
		}
		n := 0
		if most > 0 {
			n = max(1, int(barWidth*float64(c.BytesPerSecond)/float64(most)))
		}
		line := fmt.Sprintf("%-*s  %12s  %4.1f cpus", barWidth, strings.Repeat("#", n), rate(c.BytesPerSecond), c.CPU)
		if c.IOWait >= 0.1 {
			line += fmt.Sprintf(", %.1f waiting for disks", c.IOWait)
		}
		if c.Note != "" {
			line += "  " + Line(c.Note)
		}
		if c.ID == limit.ID && c.Host == limit.Host {
			line += "  <- limit"
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// limiting is the ceiling that bounds a transfer: the slowest of its stages, or
// where none was measured that which the expected rate names. Others are there
// to compare with.
func limiting(ceilings []probe.Ceiling, e *job.Expected) (limit probe.Ceiling) {
	for _, c := range ceilings {
		stage := slices.Contains([]string{"link", probe.SourceRead, probe.TargetWrite, probe.PathRead, probe.PathWrite}, c.ID)
		if stage && c.BytesPerSecond > 0 && (limit.ID == "" || c.BytesPerSecond < limit.BytesPerSecond) {
			limit = c
		}
	}
	if limit.ID == "" && e != nil {
		limit.ID, limit.Host = e.LimitedBy, e.Host
	}
	return limit
}

func expectedText(e *job.Expected) string {
	if e == nil {
		return ""
	}
	text := fmt.Sprintf("expected: %s, limited by %s", rate(e.BytesPerSecond), oneLine(e.LimitedBy))
	if e.Host != "" {
		text += fmt.Sprintf(" (%s)", oneLine(e.Host))
	}
	if e.Bytes > 0 {
		text += fmt.Sprintf("; %s in about %s", size.Text(e.Bytes), Seconds(e.Seconds))
	}
	return text + "\n"
}

// measuredText is what --measure found.
func measuredText(ceilings []probe.Ceiling, e *job.Expected) string {
	if len(ceilings) == 0 {
		return ""
	}
	if e == nil {
		return ceilingsText(ceilings, e) + "expected: unknown, nothing could be measured\n"
	}
	return ceilingsText(ceilings, e) + expectedText(e)
}
