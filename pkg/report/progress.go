package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/plan"
	"zxfer/pkg/size"
	"zxfer/pkg/transport/connect"
)

// streamID identifies a stream of one or several transfers.
type streamID struct {
	part string // "" for a single transfer
	id   int
}

// stream is a running stream and its last progress.
type stream struct {
	streamID
	name   string // source dataset and the arriving snapshot
	source string // dataset
	target string
	step   plan.Step
	last   connect.Progress
	shown  time.Time // when its last JSON event was written
}

// streams holds the running streams in order of their start, and the total. The owner does the
// locking.
type streams struct {
	running  []*stream
	finished int    // streams that arrived
	arrived  uint64 // their bytes
	total    total
}

func (s *streams) start(id streamID, d *plan.Dataset, step int, now time.Time) *stream {
	st := &stream{streamID: id, name: d.Source, source: d.Source, target: d.Target, shown: now}
	var left []plan.Step
	if step >= 0 && step < len(d.Steps) {
		st.step, left = d.Steps[step], d.Steps[step+1:]
		st.name += "@" + st.step.Send.To
		st.last = connect.Progress{Bytes: st.step.Done}
		if st.step.Bytes > 0 {
			st.last.Total = st.step.Done + st.step.Bytes
		}
	}
	if id.part != "" {
		st.name = id.part + ": " + st.name
	}
	return s.add(st, left)
}

// startDevice is start for a device of total bytes, of which done are present.
func (s *streams) startDevice(source, target string, total, done uint64, now time.Time) {
	s.add(&stream{streamID: streamID{id: deviceID}, name: source, source: source, target: target, shown: now,
		step: plan.Step{Bytes: total}, last: connect.Progress{Bytes: done, Total: total}}, nil)
}

// deviceID is the id of the only stream of a device.
const deviceID = 1

func (s *streams) add(st *stream, left []plan.Step) *stream {
	st.name = oneLine(st.name)
	s.running = append(s.running, st)
	s.total.start(st.dataset(), gaugeOf(st.last), left)
	s.total.record(st.shown)
	return st
}

// dataset returns the stream's dataset.
func (st *stream) dataset() datasetID { return datasetID{st.part, st.source} }

// progress records p and returns its stream, or nil if it is not running.
func (s *streams) progress(id streamID, p connect.Progress, now time.Time) *stream {
	st := s.find(id)
	if st == nil {
		return nil
	}
	if st.step.Bytes == 0 {
		p.Total = 0 // only the bytes that arrived earlier are known
	}
	s.update(st, p)
	s.total.record(now)
	return st
}

func (s *streams) find(id streamID) *stream {
	for _, st := range s.running {
		if st.streamID == id {
			return st
		}
	}
	return nil
}

func (s *streams) update(st *stream, p connect.Progress) {
	s.total.moved += p.Bytes - min(p.Bytes, st.last.Bytes)
	s.total.update(st.dataset(), gaugeOf(p))
	st.last = p
}

// finish removes a stream that moved bytes. It returns nil if the stream is not running.
func (s *streams) finish(id streamID, bytes uint64, failed bool) *stream {
	st := s.find(id)
	if st == nil {
		return nil
	}
	s.running = slices.DeleteFunc(s.running, func(other *stream) bool { return other == st })
	if !failed {
		s.finished++
	}
	s.arrived += bytes
	last := st.last
	last.Bytes = max(last.Bytes, st.step.Done+bytes)
	s.update(st, last)
	s.total.end(st.dataset(), failed)
	return st
}

// snapshot returns the arriving snapshot, or "" for a device.
func (st *stream) snapshot() string {
	if st.step.Send.To == "" {
		return ""
	}
	return "@" + st.step.Send.To
}

// report describes the running streams on one line.
func (s *streams) report(now time.Time) string {
	switch {
	case len(s.running) == 0:
		return fmt.Sprintf("no stream is running; %s arrived, %s", english.Plural(s.finished, "stream", ""), size.Text(s.arrived))
	case len(s.running) == 1 && !s.total.multiple():
		return s.running[0].line()
	}
	var each []string
	for _, st := range s.running {
		each = append(each, st.short())
	}
	all := strings.Join(nonEmpty(append([]string{s.total.datasets()}, s.total.gauge(now).facts()...)), ", ")
	if len(s.running) == 1 {
		return all + ": " + strings.Join(nonEmpty([]string{each[0], s.running[0].limit()}), ", ")
	}
	return all + ": " + list(each, ", ", 8)
}

// limit names the bottleneck of a stream, or returns "".
func (st *stream) limit() string {
	if st.last.LimitedBy == "" {
		return ""
	}
	return "limited by " + oneLine(st.last.LimitedBy)
}

// short describes one of several streams.
func (st *stream) short() string {
	g := gaugeOf(st.last)
	if p, ok := g.percent(); ok {
		return fmt.Sprintf("%s %d %%", st.name, p)
	}
	return st.name + " " + size.Text(g.bytes)
}

// line returns one undecorated progress line.
func (st *stream) line() string {
	return st.name + ": " + strings.Join(nonEmpty(append(gaugeOf(st.last).facts(), st.limit())), ", ")
}

// rows returns the live lines, the total first.
func (s *streams) rows(now time.Time) (out []row) {
	if s.total.multiple() && len(s.running) > 0 {
		out = append(out, rowOf("total", s.total.gauge(now), s.total.datasets()))
	}
	for _, st := range s.running {
		out = append(out, rowOf(st.name, gaugeOf(st.last), st.limit()))
	}
	return out
}

func nonEmpty(parts []string) []string {
	out := parts[:0]
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return out
}

// activity is work in progress that is not a stream.
type activity struct {
	describe func() string // current description
	since    time.Time
}

// minActivityAge is the age from which an activity is shown. Shorter ones would flicker.
const minActivityAge = time.Second

// activities holds the running activities in order of their start. The owner does the locking.
type activities struct {
	running   []*activity
	showShort bool // show short ones too
}

func (a *activities) begin(what func() string, now time.Time) *activity {
	one := &activity{describe: func() string { return oneLine(what()) }, since: now}
	a.running = append(a.running, one)
	return one
}

func (a *activities) end(one *activity) {
	a.running = slices.DeleteFunc(a.running, func(other *activity) bool { return other == one })
}

// describeProgress describes the running streams and activities on one line, or returns "" if there are none.
func describeProgress(s *streams, a *activities, now time.Time) string {
	parts := a.lines(now)
	if len(s.running) > 0 {
		parts = append([]string{s.report(now)}, parts...)
	}
	return strings.Join(parts, "; ")
}

// lines describes the activities to show.
func (a *activities) lines(now time.Time) (out []string) {
	for _, one := range a.running {
		switch took := now.Sub(one.since); {
		case took >= minActivityAge:
			out = append(out, fmt.Sprintf("%s, %s", one.describe(), whole(took)))
		case a.showShort:
			out = append(out, one.describe())
		}
	}
	return out
}

// fixedText returns a function that returns what.
func fixedText(what string) func() string { return func() string { return what } }
