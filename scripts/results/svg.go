package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// Sizes of the chart, in pixels.
const (
	names  = 190 // width of the contenders' names
	bars   = 520
	values = 150
	bar    = 16
	gap    = 6
)

// svg returns a chart with the medians as bars and a line from the slowest to the
// fastest run. Its colours suit light and dark pages.
func (r *report) svg() string {
	most, row := 0.0, ""
	for _, c := range r.Contenders {
		most = max(most, slices.Max(c.drawn()))
	}
	var b strings.Builder
	text := func(x, y int, weight, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-weight="%s" text-anchor="%s">%s</text>`+"\n", x, y, weight, anchor, html.EscapeString(s))
	}
	y := 20
	text(0, y, "bold", "start", r.Title)
	y += 14
	for i, c := range r.Contenders {
		if c.Row != row || i == 0 {
			row = c.Row
			if row != "" {
				y += 22
				text(0, y, "bold", "start", row)
				y += 8
			}
		}
		width := func(rate float64) int { return int(rate / most * bars) }
		colour := "#8a8f98"
		if c.ours() {
			colour = "#2f7ed8"
		}
		text(names-8, y+bar-4, "normal", "end", label(c.Name))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" rx="2" fill="%s"/>`+"\n", names, y, max(1, width(median(c.drawn()))), bar, colour)
		fmt.Fprintf(&b, `<path d="M%d %dH%d" stroke="#d9534f" stroke-width="2"/>`+"\n", names+width(slices.Min(c.drawn())), y+bar/2, names+width(slices.Max(c.drawn())))
		text(names+width(slices.Max(c.drawn()))+8, y+bar-4, "normal", "start", c.told())
		y += bar + gap
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" font-family="sans-serif" font-size="13" fill="#777">`+"\n%[3]s</svg>\n", names+bars+values, y+4, b.String())
}

// drawn returns the rates of all runs, or their times if bytes were not counted.
func (c contender) drawn() []float64 {
	if c.Rate > 0 {
		return c.Rates
	}
	return c.Times
}

func (c contender) told() string {
	switch {
	case c.Rate == 0:
		return fmt.Sprintf("%.1f s", c.Time)
	case c.CPU == 0:
		return fmt.Sprintf("%.1f MB/s", c.Rate)
	}
	return fmt.Sprintf("%.0f MB/s, %.2f CPU s/GB", c.Rate, c.CPU)
}
