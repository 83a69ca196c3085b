package history

import (
	"slices"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport/connect"
)

// Limits of a recording.
const (
	maxSpans    = 240
	maxMarks    = 40  // at either end
	maxMessages = 100 // at either end
	maxText     = 400 // bytes of a message
)

// Recorder records the course of one or more jobs. Its methods are safe for
// concurrent use. A nil Recorder records nothing.
type Recorder struct {
	now func() time.Time

	mu     sync.Mutex
	course Recording
	spans  []*Span
}

// NewRecorder returns a Recorder that reads the time from now.
func NewRecorder(now func() time.Time) *Recorder { return &Recorder{now: now} }

// Send returns a Reporter that records all calls and forwards them to next. target
// names the job's target, if r records jobs for several targets.
func (r *Recorder) Send(next send.Reporter, target string) send.Reporter {
	if r == nil {
		return next
	}
	return &sending{Reporter: next, watch: watch{Recorder: r, to: target, running: map[int]*stream{}}}
}

// Device returns the counterpart of Send for a device copy.
func (r *Recorder) Device(next dev.Reporter) dev.Reporter {
	if r == nil {
		return next
	}
	return &copying{Reporter: next, watch: watch{Recorder: r, running: map[int]*stream{}}}
}

// Log records a message.
func (r *Recorder) Log(message string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.course.Messages.add(Message{At: r.now(), Text: clip(message)}, maxMessages)
}

// Recording returns a copy of the recording so far.
func (r *Recorder) Recording() Recording {
	if r == nil {
		return Recording{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.course
	c.Moved, c.Marks, c.Messages = c.Moved.clone(), c.Marks.clone(), c.Messages.clone()
	c.Spans = nil
	for _, s := range r.spans {
		span := *s
		if span.running {
			span.End = c.Length
		}
		c.Spans = append(c.Spans, span)
	}
	return c
}

// watch records the streams of one job.
type watch struct {
	*Recorder
	to      string
	running map[int]*stream
}

// stream holds the state of a running stream.
type stream struct {
	span  *Span
	began time.Duration
	at    time.Duration // time of the last update
	bytes uint64        // received at that time
	first uint64        // received before the stream started
	limit string
}

// begin records the start of a stream.
func (w *watch) begin(id int, source, target string, done uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.course.Began.IsZero() {
		w.course.Began = w.now()
	}
	at := w.elapsed()
	before := w.lastOf(source, target)
	if before == nil || before.running || before.Error != "" || done > 0 {
		switch {
		case done > 0:
			w.mark(Mark{At: at, Event: Resumed, Source: source, Done: done})
		case before != nil && before.Error != "":
			w.mark(Mark{At: at, Event: Restarted, Source: source})
		}
		before = &Span{Source: source, Target: target, To: w.to, Start: at, Resumed: done > 0}
		w.spans = append(w.spans, before)
		w.trim()
	}
	before.running, before.End = true, at
	before.Streams++
	w.running[id] = &stream{span: before, began: at, at: at, bytes: done, first: done}
}

// elapsed returns the time since the first stream started and extends Length.
func (w *watch) elapsed() time.Duration {
	now := max(0, w.now().Sub(w.course.Began))
	w.course.Length = max(w.course.Length, now)
	return now
}

func (w *watch) mark(m Mark) {
	m.To, m.Text = w.to, clip(m.Text)
	w.course.Marks.add(m, maxMarks)
}

// lastOf returns the most recent span of a dataset or device, or nil.
func (w *watch) lastOf(source, target string) *Span {
	for _, s := range slices.Backward(w.spans) {
		if s.Source == source && s.Target == target && s.To == w.to {
			return s
		}
	}
	return nil
}

// trim drops the shortest finished span if there are too many, preferably one without an error.
func (w *watch) trim() {
	if len(w.spans) <= maxSpans {
		return
	}
	shortest := -1
	less := func(a, b *Span) bool {
		if (a.Error == "") != (b.Error == "") {
			return a.Error == ""
		}
		return a.End-a.Start < b.End-b.Start
	}
	for i, s := range w.spans[:len(w.spans)-1] {
		if !s.running && (shortest < 0 || less(s, w.spans[shortest])) {
			shortest = i
		}
	}
	if shortest >= 0 {
		w.spans = slices.Delete(w.spans, shortest, shortest+1)
		w.course.Omitted++
	}
}

// progress records the progress of a stream.
func (w *watch) progress(id int, p connect.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if st := w.running[id]; st != nil {
		w.moved(st, p.Bytes, p.LimitedBy)
	}
}

// moved records that st has received bytes in total.
func (w *watch) moved(st *stream, bytes uint64, limit string) {
	at := w.elapsed()
	bytes = max(bytes, st.bytes)
	w.course.Moved.add(st.at, at, float64(bytes-st.bytes), limit)
	st.span.Bytes += bytes - st.bytes
	st.at, st.bytes, st.limit, st.span.End = at, bytes, limit, at
}

// finish records the end of a stream. moved counts the bytes that it transferred;
// arrived is a lower bound for the bytes on the target.
func (w *watch) finish(id int, moved, arrived uint64, limit, failure string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.running[id]
	if st == nil {
		return
	}
	delete(w.running, id)
	last := st.limit
	if failure != "" {
		last = "" // the wait before the failure has no bottleneck
	}
	w.moved(st, max(st.first+moved, arrived), last)
	s := st.span
	s.running = false
	if took := s.End - st.began; took >= s.longest {
		s.longest, s.LimitedBy = took, limit
	}
	if failure != "" {
		s.Error = clip(failure)
		w.mark(Mark{At: s.End, Event: Stopped, Source: s.Source, Text: failure})
	}
}

// sending implements send.Reporter.
type sending struct {
	send.Reporter
	watch
}

func (s *sending) Log(message string) {
	s.watch.Log(message)
	s.Reporter.Log(message)
}

func (s *sending) Started(id int, d *plan.Dataset, step int) {
	s.begin(id, d.Source, d.Target, d.Steps[step].Done)
	s.Reporter.Started(id, d, step)
}

func (s *sending) Progress(id int, p connect.Progress) {
	s.progress(id, p)
	s.Reporter.Progress(id, p)
}

func (s *sending) Finished(id int, r *send.StepResult) {
	s.finish(id, r.Bytes, 0, r.LimitedBy, r.Error)
	s.Reporter.Finished(id, r)
}

// copying implements dev.Reporter.
type copying struct {
	dev.Reporter
	watch
}

// deviceID identifies the only stream of a device.
const deviceID = 1

func (c *copying) Log(message string) {
	c.watch.Log(message)
	c.Reporter.Log(message)
}

func (c *copying) DeviceStarted(r *dev.Report, done uint64) {
	c.begin(deviceID, r.Source, r.Target, done)
	c.Reporter.DeviceStarted(r, done)
}

func (c *copying) Progress(id int, p connect.Progress) {
	c.progress(id, p)
	c.Reporter.Progress(id, p)
}

func (c *copying) DeviceFinished(r *dev.Report, res *dev.Result) {
	// Skipped blocks count as transferred.
	arrived := r.Size
	if res.Error != "" {
		arrived = 0 // the last progress report has the amount
	}
	c.finish(deviceID, 0, arrived, res.LimitedBy, res.Error)
	c.Reporter.DeviceFinished(r, res)
}

// clip limits s to maxText bytes.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
