package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/job/forecast"
	"zxfer/pkg/probe"
	"zxfer/pkg/size"
)

// barWidth is the width of the longest bar. A line without a note then fits 80 columns.
const barWidth = 12

// measuredText shows the result of --measure.
func measuredText(ceilings []probe.Ceiling, e *forecast.Expected) string {
	if len(ceilings) == 0 {
		return ""
	}
	if e == nil {
		return ceilingsText(ceilings, e) + "expected: unknown, nothing could be measured\n"
	}
	return ceilingsText(ceilings, e) + expectedText(e)
}

// expectedText shows the expected rate and its bottleneck on one line.
func expectedText(e *forecast.Expected) string {
	if e == nil {
		return ""
	}
	text := "expected: "
	if len(e.Unmeasured) > 0 {
		text += "at most "
	}
	text += fmt.Sprintf("%s, limited by %s", rate(e.BytesPerSecond), oneLine(e.LimitedBy))
	if e.Host != "" {
		text += fmt.Sprintf(" (%s)", oneLine(e.Host))
	}
	if e.Bytes > 0 {
		text += fmt.Sprintf("; %s in about %s", size.Text(e.Bytes), Seconds(e.Seconds))
	}
	return text + "\n"
}

// ceilingsText shows the ceilings of the parts of the network path in order, then the others,
// fastest first. It marks the bottleneck.
func ceilingsText(ceilings []probe.Ceiling, e *forecast.Expected) string {
	if len(ceilings) == 0 {
		return ""
	}
	var way, others []probe.Ceiling
	for _, part := range forecast.Parts() {
		way = append(way, slices.DeleteFunc(slices.Clone(ceilings), func(c probe.Ceiling) bool { return forecast.PartOf(c) != part })...)
	}
	for _, c := range ceilings {
		if forecast.PartOf(c) == "" {
			others = append(others, c)
		}
	}
	slices.SortStableFunc(others, func(x, y probe.Ceiling) int { return cmp.Compare(y.BytesPerSecond, x.BytesPerSecond) })
	var limit probe.Ceiling
	if e != nil {
		if limit = limitOf(ceilings, e); limit.ID == "" {
			way = append(way, limit)
		}
	}
	if len(way) == 0 {
		return tableText("ceilings", others, limit)
	}
	return tableText("ceilings", way, limit) + tableText("further ceilings", others, limit)
}

// tableText shows ceilings below a heading.
func tableText(heading string, ceilings []probe.Ceiling, limit probe.Ceiling) string {
	if len(ceilings) == 0 {
		return ""
	}
	most, host, title := uint64(0), 0, 0
	for _, c := range ceilings {
		most, host, title = max(most, c.BytesPerSecond), max(host, len(oneLine(c.Host))), max(title, len(oneLine(c.Title)))
	}
	var b strings.Builder
	b.WriteString(heading + "\n")
	for _, c := range ceilings {
		mark := "  "
		if c.Title == limit.Title && c.ID == limit.ID && c.Host == limit.Host {
			mark = "->"
		}
		fmt.Fprintf(&b, "%s %-*s  %-*s  %s\n", mark, host, oneLine(c.Host), title, oneLine(c.Title), ceilingText(c, most))
	}
	return b.String()
}

// ceilingText shows one ceiling with a bar relative to the highest rate.
func ceilingText(c probe.Ceiling, most uint64) string {
	if c.Skipped != "" {
		return Line(c.Skipped)
	}
	n := 0
	if most > 0 {
		n = max(1, int(barWidth*float64(c.BytesPerSecond)/float64(most)))
	}
	line := fmt.Sprintf("%-*s  %12s", barWidth, strings.Repeat("#", n), rate(c.BytesPerSecond))
	if c.ID != "" {
		line += fmt.Sprintf("  %4.1f cpus", c.CPU)
	}
	if c.IOWait >= 0.1 {
		line += fmt.Sprintf(", %.1f waiting for disks", c.IOWait)
	}
	if c.Note != "" {
		line += "  " + Line(c.Note)
	}
	return line
}
