package report

import (
	"fmt"
	"strings"

	"zxfer/pkg/size"
)

// row is a live line: a name, a bar and cells.
type row struct {
	name  string
	share int // percent, for the bar; -1 = unknown
	bytes uint64
	cells [cellCount]string
}

// The cells of a row, in order.
const (
	cellPercent = iota
	cellAmount
	cellRate
	cellETA
	cellMore // the bottleneck of a stream
	cellCount
)

func rowOf(name string, g gauge, more string) row {
	r := row{name: ascii(name), share: -1, bytes: g.bytes}
	if p, ok := g.percent(); ok {
		r.share, r.cells[cellPercent] = p, fmt.Sprintf("%2d %%", p)
	}
	r.cells[cellAmount], r.cells[cellRate], r.cells[cellETA], r.cells[cellMore] = g.amount(), rate(g.rate), g.etaText(), ascii(more)
	return r
}

// table aligns rows. Its columns only grow, so they stay in place while numbers change and streams
// start and end.
type table struct {
	name  int
	cells [cellCount]int
}

// Widths of names and bars.
const (
	minName, wantName, maxName = 10, 20, 40
	minBar, maxBar             = 10, 30
)

// lines fits rows into a width. If space is short, it drops the least important column from all
// rows first.
func (t *table) lines(rows []row, width int) []string {
	known := false
	for _, r := range rows {
		known = known || r.share >= 0
		t.name = max(t.name, min(len(r.name), maxName))
		for i, c := range r.cells {
			t.cells[i] = max(t.cells[i], len(c))
		}
	}
	for i, c := range typicalCells() {
		if known {
			t.cells[i] = max(t.cells[i], len(c))
		}
	}
	cells := t.cells
	room := func() int { // for the name and the bar
		n := width
		for _, c := range cells {
			if c > 0 {
				n -= 2 + c
			}
		}
		return n
	}
	drop := func(cell int) {
		cells[cell] = 0
		for i := range rows { // without a percentage the amount is the only progress
			if r := &rows[i]; cell == cellAmount && r.share < 0 {
				r.cells[cellPercent] = size.Text(r.bytes)
				cells[cellPercent] = max(cells[cellPercent], len(r.cells[cellPercent]))
			}
		}
	}
	want, bar, order := min(t.name, wantName), 0, []int{cellMore, cellAmount, cellETA, cellRate}
	if known { // the percentage shows progress too, but nothing else shows the bottleneck
		bar, order[0], order[1] = 2+minBar, cellAmount, cellMore
	}
	for i, least := range order {
		if i == 1 && room() < want+bar {
			bar = 0
		}
		if room() >= want+bar {
			break
		}
		drop(least)
	}
	name := min(t.name, max(minName, room()-bar))
	if bar = min(maxBar, room()-name-2); !known || bar < minBar {
		bar = 0
	}
	var out []string
	for i := range rows {
		out = append(out, cut(rows[i].line(name, bar, &cells), width))
	}
	return out
}

// typicalCells returns typical cells. Their width is reserved from the start, so that the bar does not
// shrink later.
func typicalCells() [cellCount]string {
	return [cellCount]string{"99 %", "1.2 GiB of 3.4 GiB", "100 MiB/s", "ETA 59 s", "limited by target"}
}

// line formats a row with these column widths. Width 0 omits a column.
func (r *row) line(name, bar int, cells *[cellCount]int) string {
	line := fmt.Sprintf("%-*s", name, elide(r.name, name))
	switch {
	case bar == 0:
	case r.share < 0:
		line += strings.Repeat(" ", bar+2)
	default:
		full := (bar - 2) * r.share / 100
		line += "  [" + strings.Repeat("#", full) + strings.Repeat("-", bar-2-full) + "]"
	}
	for i, width := range cells {
		switch {
		case width == 0:
		case i == cellPercent || i == cellRate:
			line += fmt.Sprintf("  %*s", width, r.cells[i])
		default:
			line += fmt.Sprintf("  %-*s", width, r.cells[i])
		}
	}
	return strings.TrimRight(line, " ")
}
