package report

import (
	"fmt"
	"io"
	"strings"

	"zxfer/pkg/size"
)

// screen keeps a few live lines at the bottom of a terminal, below the lines
// that scroll. It uses three control sequences that every terminal knows:
// carriage return, cursor up and erase below.
type screen struct {
	out  io.Writer
	size func() (columns, rows int)
	live []int // lengths of the lines that are shown now
}

// Smallest and assumed sizes of a terminal.
const (
	minColumns, defaultColumns = 20, 80
	minRows, defaultRows       = 3, 24
)

func (s *screen) dimensions() (columns, rows int) {
	columns, rows = s.size()
	if columns <= 0 {
		columns = defaultColumns
	}
	if rows <= 0 {
		rows = defaultRows
	}
	return max(columns, minColumns), max(rows, minRows)
}

// show replaces the live lines, after writing text above them. No line is
// wider than the terminal less one column: filling the last one wraps on some.
func (s *screen) show(text string, live []string) error {
	columns, rows := s.dimensions()
	if most := rows - 1; len(live) > most {
		more := len(live) - (most - 1)
		live = append(live[:most-1:most-1], fmt.Sprintf("and %d more", more))
	}
	var b strings.Builder
	b.WriteString(s.erase(columns))
	b.WriteString(text)
	s.live = s.live[:0]
	for _, l := range live {
		l = cut(l, columns-1)
		b.WriteString(l + "\n")
		s.live = append(s.live, len(l))
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(s.out, b.String())
	return err
}

// erase moves to the first live line and clears from there. A terminal that
// became narrower has wrapped the lines: each then takes several rows.
func (s *screen) erase(columns int) string {
	up := 0
	for _, n := range s.live {
		up += max(1, (n+columns-1)/columns)
	}
	if up == 0 {
		return ""
	}
	return fmt.Sprintf("\r\x1b[%dA\x1b[J", up)
}

// cut shortens a line of single-width characters at its end.
func cut(s string, width int) string {
	if len(s) <= width {
		return s
	}
	return s[:max(0, width-1)] + "~"
}

// elide shortens a name in its middle: the pool and the snapshot tell most.
func elide(s string, width int) string {
	if len(s) <= width {
		return s
	}
	if width < 4 {
		return cut(s, width)
	}
	left := (width - 2) / 2
	return s[:left] + ".." + s[len(s)-(width-2-left):]
}

// Widths of a stream's live line.
const (
	minName, maxName = 10, 40
	minBar, maxBar   = 10, 30
)

// liveLine fits a stream into one line of that width: what matters least
// goes first when there is no room.
func liveLine(st *stream, width int) string {
	g := gaugeOf(st.last)
	p, known := g.percent()
	percent := ""
	if known {
		percent = fmt.Sprintf("%2d %%", p)
	}
	limited := ""
	if st.last.LimitedBy != "" {
		limited = "limited by " + ascii(oneLine(st.last.LimitedBy))
	}
	// In the order in which they are shown.
	amount, speed, eta := g.amount(), rate(g.rate), g.etaText()
	name := ascii(st.name)
	join := func() string { return strings.Join(present([]string{percent, amount, speed, eta, limited}), "  ") }
	order := []*string{&limited, &amount, &eta, &speed}
	if known { // the percentage tells how much; nothing else tells what limits it
		order[0], order[1] = &amount, &limited
	}
	for _, least := range order {
		switch {
		case minName+2+len(join()) <= width:
		case least == &amount && !known:
			amount = size.Text(g.bytes) // without a percentage it is all there is
		default:
			*least = ""
		}
	}
	room := width - len(join()) - 2
	name = elide(name, min(maxName, max(minName, room)))
	line := name
	if bar := min(maxBar, room-len(name)-2); known && bar >= minBar {
		full := (bar - 2) * p / 100
		line += "  [" + strings.Repeat("#", full) + strings.Repeat("-", bar-2-full) + "]"
	}
	return cut(strings.Join(present([]string{line, join()}), "  "), width)
}

// ascii makes the number of bytes the width of the text.
func ascii(s string) string {
	return strings.Map(func(r rune) rune {
		if r > 126 {
			return '?'
		}
		return r
	}, s)
}
