package report

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// terminal implements the parts of a terminal that screen needs. It wraps lines, scrolls without
// limit, and fails the test on an unknown sequence.
type terminal struct {
	t         *testing.T
	columns   int
	rows      []string
	row, col  int
	escape    string
	wrapped   bool
	sequences int
}

func (v *terminal) Write(p []byte) (int, error) {
	for _, c := range string(p) {
		switch {
		case v.escape != "":
			v.escape += string(c)
			if c >= '@' && c <= '~' && c != '[' {
				v.run(v.escape)
				v.escape = ""
			}
		case c == 0x1b:
			v.escape = "\x1b"
		case c == '\r':
			v.col = 0
		case c == '\n':
			v.row, v.col = v.row+1, 0
		default:
			require.Less(v.t, c, rune(127), "plain ASCII")
			if v.col == v.columns {
				v.wrapped = true
				v.row, v.col = v.row+1, 0
			}
			v.grow()
			v.rows[v.row] = fmt.Sprintf("%-*s", v.col, v.rows[v.row])[:v.col] + string(c)
			v.col++
		}
		v.grow()
	}
	return len(p), nil
}

func (v *terminal) grow() {
	for len(v.rows) <= v.row {
		v.rows = append(v.rows, "")
	}
}

func (v *terminal) run(seq string) {
	v.sequences++
	switch {
	case strings.HasSuffix(seq, "A"):
		n, err := strconv.Atoi(seq[2 : len(seq)-1])
		require.NoError(v.t, err)
		v.row -= n
		require.GreaterOrEqual(v.t, v.row, 0)
	case seq == "\x1b[J":
		v.rows = v.rows[:v.row+1]
		v.rows[v.row] = v.rows[v.row][:v.col]
	default:
		v.t.Fatalf("unknown sequence %q", seq)
	}
}

// resize wraps the lines like a terminal.
func (v *terminal) resize(columns int) {
	var rows []string
	for _, r := range v.rows {
		for len(r) > columns {
			rows = append(rows, r[:columns])
			r = r[columns:]
		}
		rows = append(rows, r)
	}
	v.columns, v.rows = columns, rows
	v.row = len(rows) - 1
}

func (v *terminal) text() string { return strings.Join(v.rows, "\n") }

func TestTerminal(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{20, 40, 80, 132} {
		t.Run(strconv.Itoa(columns), func(t *testing.T) {
			t.Parallel()
			term := &terminal{t: t, columns: columns}
			c := newClock()
			var out bytes.Buffer
			text := NewText(Options{Stdout: &out, Stderr: term, Now: c.Now, Size: func() (int, int) { return columns, 24 }})
			r := finished()
			r.Findings, r.Plan.Notes, r.Plan.Datasets[3].Loses = nil, nil, nil
			r.Source, r.Target = "a", "b"
			text.Started(1, r.Plan.Datasets[0], 0)
			text.Started(2, r.Plan.Datasets[1], 0)
			for i := range 10 {
				c.add(time.Second)
				text.Progress(1, connect.Progress{Bytes: uint64(i) << 28, Total: 3 << 30, Rate: 256 << 20, LimitedBy: "write on the target"})
				text.Progress(2, connect.Progress{Bytes: uint64(i) << 30, Total: 4 << 30, Rate: 1 << 30})
			}
			require.False(t, term.wrapped, "no live line may wrap")
			require.Len(t, term.rows, 3, "two live lines and the cursor's")
			text.Log("noticed")
			require.Equal(t, "noticed", term.rows[0])
			require.Len(t, term.rows, 4)
			golden(t, fmt.Sprintf("terminal-%d.txt", columns), term.text())

			text.Finished(1, &send.StepResult{Bytes: 1, Wire: "tls"})
			require.NoError(t, text.Done(nil, nil, nil))
			require.NotContains(t, term.text(), "tank/home/ann", "no live lines remain at the end")
			require.Contains(t, strings.Join(term.rows, ""), "done, 1 B in 0.0 s, wire tls")
		})
	}
}

// TestTerminalColumns expects that columns keep their position while streams with other names and
// numbers start and end. The total is above them.
func TestTerminalColumns(t *testing.T) {
	t.Parallel()
	term := &terminal{t: t, columns: 132}
	c := newClock()
	text := NewText(Options{Stdout: &bytes.Buffer{}, Stderr: term, Now: c.Now, Size: func() (int, int) { return 132, 24 }})
	near, far := text.Part("near"), text.Part("far")
	var datasets []*plan.Dataset
	for _, name := range []string{"tank/a", "tank/a/dataset/with/a/name/that/is/longer/than/a/column", "tank/b"} {
		datasets = append(datasets, &plan.Dataset{Source: name, Target: name, Steps: []plan.Step{{Bytes: 2 << 30, Send: zfs.SendSpec{To: "daily"}}}})
	}
	for _, rep := range []send.Reporter{near, far} {
		rep.Planned(&send.Report{Source: "s", Target: "t", Plan: &plan.Plan{Datasets: datasets}})
	}
	var shown []string
	show := func() {
		c.add(time.Second)
		text.Tick()
		shown = append(shown, strings.Join(term.rows[2:], "\n"))
	}
	for range 60 {
		c.add(time.Second)
		text.Tick() // bytes before the start do not count towards the rate
	}
	near.Started(1, datasets[0], 0)
	far.Started(1, datasets[0], 0)
	show()
	near.Progress(1, connect.Progress{Bytes: 1 << 30, Total: 2 << 30, Rate: 100 << 20, LimitedBy: "network"})
	far.Progress(1, connect.Progress{Bytes: 1000, Total: 2 << 30, Rate: 9 << 20, LimitedBy: "target"})
	show()
	near.Finished(1, &send.StepResult{Bytes: 2 << 30})
	near.Ended(datasets[0], nil)
	near.Started(2, datasets[1], 0)
	near.Progress(2, connect.Progress{Bytes: 1 << 20, Total: 2 << 30, Rate: 1 << 20})
	done := text.Activity("releasing holds")
	show()
	show()
	done()
	show()
	golden(t, "terminal-columns.txt", strings.Join(shown, "\n"))
	text.EndJob()
	require.Len(t, term.rows, 4, "the cursor is below two headlines and a stream's end")
}

// TestTerminalSkipsUnchangedLines expects that unchanged lines are not written again.
func TestTerminalSkipsUnchangedLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := newClock()
	text := NewText(Options{Stdout: &bytes.Buffer{}, Stderr: &out, Now: c.Now, Size: func() (int, int) { return 80, 24 }})
	text.Started(1, planned().Plan.Datasets[0], 0)
	before := out.Len()
	for range 10 {
		c.add(time.Second)
		text.Tick()
	}
	require.Equal(t, before, out.Len())
}

// TestTerminalShrinks expects that a terminal that becomes narrower shows no remains of live lines.
func TestTerminalShrinks(t *testing.T) {
	t.Parallel()
	term := &terminal{t: t, columns: 120}
	c := newClock()
	text := NewText(Options{Stdout: &bytes.Buffer{}, Stderr: term, Now: c.Now, Size: func() (int, int) { return term.columns, 24 }})
	text.Log("before")
	text.Started(1, planned().Plan.Datasets[0], 0)
	c.add(time.Second)
	text.Progress(1, connect.Progress{Bytes: 1 << 30, Total: 3 << 30, Rate: 1 << 30, LimitedBy: "write on the target"})
	term.resize(50)
	c.add(time.Second)
	text.Progress(1, connect.Progress{Bytes: 2 << 30, Total: 3 << 30, Rate: 1 << 30, LimitedBy: "write on the target"})
	require.Len(t, term.rows, 3)
	require.Equal(t, "before", term.rows[0])
	require.Equal(t, 1, strings.Count(term.text(), "tank/home@a"))
}

// TestTerminalWithFewRows expects that if there are more streams than rows, the terminal shows the number
// of hidden streams.
func TestTerminalWithFewRows(t *testing.T) {
	t.Parallel()
	term := &terminal{t: t, columns: 80}
	text := NewText(Options{Stdout: &bytes.Buffer{}, Stderr: term, Now: newClock().Now, Size: func() (int, int) { return 80, 5 }})
	for id := range 10 {
		text.Started(id, planned().Plan.Datasets[0], 0)
	}
	require.Len(t, term.rows, 5)
	require.Equal(t, "and 7 more", term.rows[3])
}

// TestTerminalOfUnknownSize expects that an unknown size means 80 by 24.
func TestTerminalOfUnknownSize(t *testing.T) {
	t.Parallel()
	s := &screen{size: func() (int, int) { return 0, 0 }}
	columns, rows := s.dimensions()
	require.Equal(t, 80, columns)
	require.Equal(t, 24, rows)
}

// TestTerminalLimitsRepaints expects a limit of repaints, even if streams report often.
func TestTerminalLimitsRepaints(t *testing.T) {
	t.Parallel()
	term := &terminal{t: t, columns: 80}
	c := newClock()
	text := NewText(Options{Stdout: &bytes.Buffer{}, Stderr: term, Now: c.Now, Size: func() (int, int) { return 80, 24 }})
	text.Started(1, planned().Plan.Datasets[0], 0)
	for range 1000 {
		c.add(time.Millisecond)
		text.Progress(1, connect.Progress{Bytes: 1})
	}
	require.LessOrEqual(t, term.sequences, 2*4)
	require.Positive(t, term.sequences)
}

func FuzzLiveLine(f *testing.F) {
	f.Add("tank/home@daily", uint64(1<<30), uint64(3<<30), uint64(1<<20), "write on the target", 80)
	f.Add("t", uint64(0), uint64(0), uint64(0), "", 19)
	f.Add(strings.Repeat("long/", 60)+"\u00e9\x1b@s", uint64(9<<40), uint64(1<<40), uint64(1<<63), strings.Repeat("x", 99), 33)
	f.Fuzz(func(t *testing.T, name string, bytes, total, rate uint64, limited string, width int) {
		width = minColumns - 1 + (width&0x7fffffff)%500
		var s streams
		var tab table
		for id, name := range []string{name, "t"} {
			d := &plan.Dataset{Source: name, Steps: []plan.Step{{Bytes: uint64(id), Send: zfs.SendSpec{To: "s"}}}}
			s.total.plan("", &plan.Plan{Datasets: []*plan.Dataset{d}})
			s.start(streamID{id: id}, d, 0, time.Time{})
			s.progress(streamID{id: id}, connect.Progress{Bytes: bytes, Total: total, Rate: rate, LimitedBy: limited}, time.Time{})
			for _, line := range tab.lines(s.rows(time.Time{}), width) {
				requireFits(t, line, width)
			}
		}
	})
}

func requireFits(t *testing.T, line string, width int) {
	require.LessOrEqual(t, len(line), width)
	require.NotContains(t, line, "100 %")
	for _, c := range line {
		require.True(t, c >= ' ' && c < 127, "%q", line)
	}
}
