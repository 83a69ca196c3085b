package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/meet"
	"zxfer/pkg/plan"
	"zxfer/pkg/size"
)

// stream is a running stream as the job last told of it.
type stream struct {
	id     int
	name   string // source dataset and the snapshot to arrive
	source string // dataset
	target string
	step   plan.Step
	last   meet.Progress
	shown  time.Time // when a line about it was last written
}

// streams are those that run, in the order in which they started. Its owner
// does the locking.
type streams struct {
	running  []*stream
	finished int    // streams that arrived
	arrived  uint64 // bytes of those
}

func (s *streams) start(id int, d *plan.Dataset, step int, now time.Time) *stream {
	st := &stream{id: id, name: d.Source, source: d.Source, target: d.Target, shown: now}
	if step >= 0 && step < len(d.Steps) {
		st.step = d.Steps[step]
		st.name += "@" + st.step.Send.To
		st.last = meet.Progress{Bytes: st.step.Done}
		if st.step.Bytes > 0 {
			st.last.Total = st.step.Done + st.step.Bytes
		}
	}
	return s.add(st)
}

// begin is start for a device, which has total bytes, of which done are there.
func (s *streams) begin(source, target string, total, done uint64, now time.Time) {
	s.add(&stream{id: deviceID, name: source, source: source, target: target, shown: now,
		step: plan.Step{Bytes: total}, last: meet.Progress{Bytes: done, Total: total}})
}

// deviceID is the id of a device's only stream.
const deviceID = 1

func (s *streams) add(st *stream) *stream {
	st.name = oneLine(st.name)
	s.running = append(s.running, st)
	return st
}

func (s *streams) find(id int) *stream {
	for _, st := range s.running {
		if st.id == id {
			return st
		}
	}
	return nil
}

// progress notes p and returns its stream, nil if it is not running.
func (s *streams) progress(id int, p meet.Progress) *stream {
	st := s.find(id)
	if st == nil {
		return nil
	}
	if st.step.Bytes == 0 {
		p.Total = 0 // only the bytes that had arrived before are known
	}
	st.last = p
	return st
}

// finish takes out a stream that moved bytes; nil where it does not run.
func (s *streams) finish(id int, bytes uint64, failed bool) *stream {
	st := s.find(id)
	if st == nil {
		return nil
	}
	s.running = slices.DeleteFunc(s.running, func(other *stream) bool { return other == st })
	if !failed {
		s.finished++
	}
	s.arrived += bytes
	return st
}

// snapshot is the one to arrive, "" of a device.
func (st *stream) snapshot() string {
	if st.step.Send.To == "" {
		return ""
	}
	return "@" + st.step.Send.To
}

// facts are the parts of a progress line after the name, without empty ones.
func (st *stream) facts() []string {
	g := gaugeOf(st.last)
	parts := []string{g.amount()}
	if p, ok := g.percent(); ok {
		parts[0] += fmt.Sprintf(" (%d %%)", p)
	}
	parts = append(parts, rate(g.rate), g.etaText())
	if st.last.LimitedBy != "" {
		parts = append(parts, "limited by "+oneLine(st.last.LimitedBy))
	}
	return present(parts)
}

// line is one progress line without decoration.
func (st *stream) line() string { return st.name + ": " + strings.Join(st.facts(), ", ") }

// report is the one line that answers a status signal.
func (s *streams) report() string {
	if len(s.running) == 0 {
		return fmt.Sprintf("no stream is running; %s arrived, %s", english.Plural(s.finished, "stream", ""), size.Text(s.arrived))
	}
	if len(s.running) == 1 {
		return s.running[0].line()
	}
	var gauges []gauge
	var each []string
	for _, st := range s.running {
		g := gaugeOf(st.last)
		gauges = append(gauges, g)
		text := st.name + " " + size.Text(g.bytes)
		if p, ok := g.percent(); ok {
			text = fmt.Sprintf("%s %d %%", st.name, p)
		}
		each = append(each, text)
	}
	all := sum(gauges)
	return strings.Join(present([]string{
		english.Plural(len(s.running), "stream", "") + ": " + all.amount(), rate(all.rate), all.etaText(),
		fmt.Sprintf("%d arrived before", s.finished), list(each, 8),
	}), ", ")
}

func present(parts []string) []string {
	out := parts[:0]
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return out
}
