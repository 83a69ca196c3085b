package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// screen keeps a few live lines at the bottom of a terminal, below the scrolling output. It uses
// only carriage return, cursor up and erase below, which every terminal supports.
type screen struct {
	out  io.Writer
	size func() (columns, rows int)
	live []string // the lines on the terminal
}

// Minimum and default sizes of a terminal.
const (
	minColumns, defaultColumns = 20, 80
	minRows, defaultRows       = 3, 24
)

// show replaces the live lines and writes text above them. It leaves the last column empty,
// because some terminals wrap when it is filled.
func (s *screen) show(text string, live []string) error {
	columns, rows := s.dimensions()
	if most := rows - 1; len(live) > most {
		more := len(live) - (most - 1)
		live = append(live[:most-1:most-1], fmt.Sprintf("and %d more", more))
	}
	for i, l := range live {
		live[i] = cut(l, columns-1)
	}
	if text == "" && slices.Equal(live, s.live) {
		return nil
	}
	var b strings.Builder
	b.WriteString(s.erase(columns))
	b.WriteString(text)
	for _, l := range live {
		b.WriteString(l + "\n")
	}
	s.live = live
	_, err := io.WriteString(s.out, b.String())
	return err
}

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

// erase returns the sequence that clears the live lines. If the terminal became narrower, a
// wrapped line takes several rows.
func (s *screen) erase(columns int) string {
	up := 0
	for _, l := range s.live {
		up += max(1, (len(l)+columns-1)/columns)
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

// elide shortens a name in its middle, since the pool and the snapshot identify it best.
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

// ascii replaces other characters, so that the length in bytes is the width.
func ascii(s string) string {
	return strings.Map(func(r rune) rune {
		if r > 126 {
			return '?'
		}
		return r
	}, s)
}
