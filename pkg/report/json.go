package report

import (
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/send"
	"zxfer/pkg/option"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport/connect"
)

// ProgressSchema names the format of the lines that JSON writes to standard error. New versions
// only add fields.
const ProgressSchema = "zxfer.progress/v1"

// progressInterval is the minimum interval between progress events of a stream.
const progressInterval = time.Second

// Event is one line of progress. The value of Event determines which fields are set:
//
//	log       message
//	doing     message: an activity that starts and may take a while
//	planned   source, target, datasets, streams, total, wire
//	started   id, source, target, snapshot, kind, total
//	progress  id, source, target, snapshot, bytes, total, bytes_per_second, percent, eta_seconds, elapsed_seconds, limited_by
//	total     bytes, total, bytes_per_second, percent, eta_seconds, datasets, datasets_done:
//	          all streams together, if there are several
//	status    like progress, one for each running stream, and a total, on a signal
//	finished  id and result: the stream's entry in the final object's results;
//	          for a device, device instead of result
//	error     message, hint, class
//
// Sizes are bytes. total is an estimate. percent and eta_seconds are absent if unknown.
type Event struct {
	Schema   string           `json:"schema"`
	Time     time.Time        `json:"time"`
	Event    string           `json:"event"`
	Message  string           `json:"message,omitempty"`
	Hint     string           `json:"hint,omitempty"`
	Class    string           `json:"class,omitempty"`
	ID       int              `json:"id,omitempty"`
	Source   string           `json:"source,omitempty"`
	Target   string           `json:"target,omitempty"`
	Snapshot string           `json:"snapshot,omitempty"`
	Kind     plan.Kind        `json:"kind,omitempty"`
	Wire     string           `json:"wire,omitempty"`
	Datasets int              `json:"datasets,omitempty"`
	Done     int              `json:"datasets_done,omitempty"`
	Streams  int              `json:"streams,omitempty"`
	Bytes    uint64           `json:"bytes,omitempty"`
	Total    uint64           `json:"total,omitempty"`
	Rate     uint64           `json:"bytes_per_second,omitempty"`
	Percent  *int             `json:"percent,omitempty"`
	ETA      *float64         `json:"eta_seconds,omitempty"`
	Elapsed  float64          `json:"elapsed_seconds,omitempty"`
	Limited  string           `json:"limited_by,omitempty"`
	Result   *send.StepResult `json:"result,omitempty"`
	Device   *dev.Result      `json:"device,omitempty"`
}

// JSON reports a job to a program. Its methods may be called concurrently.
type JSON struct {
	opts Options

	mu         sync.Mutex
	streams    streams
	activities activities
	total      time.Time // when the last total event was written
}

// NewJSON returns a reporter for a program. Quiet suppresses all events except errors and
// requested status.
func NewJSON(o Options) *JSON { return &JSON{opts: o} }

// Log writes a log event.
func (j *JSON) Log(message string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.event(Event{Event: "log", Message: message})
}

// Activity writes that an activity starts.
func (j *JSON) Activity(what string) (done func()) { return j.ActivityState(fixedText(what)) }

// ActivityState is Activity with a description that changes.
func (j *JSON) ActivityState(what func() string) (done func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.event(Event{Event: "doing", Message: what()})
	one := j.activities.begin(what, j.opts.now())
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.activities.end(one)
	}
}

// Tick does nothing. A program keeps track of activities itself.
func (j *JSON) Tick() {}

// State describes the running streams and activities on one line.
func (j *JSON) State() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return describeProgress(&j.streams, &j.activities, j.opts.now())
}

// Planned writes the planned event.
func (j *JSON) Planned(r *send.Report) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := Event{Event: "planned", Source: r.Source, Target: r.Target, Wire: r.Wire.Mode}
	if r.Plan != nil {
		j.streams.total.plan("", r.Plan)
		e.Datasets, e.Streams, e.Total = len(r.Plan.Datasets), r.Plan.Steps(), r.Plan.Bytes()
	}
	j.event(e)
}

// Started writes that a stream starts.
func (j *JSON) Started(id int, d *plan.Dataset, step int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	st := j.streams.start(streamID{id: id}, d, step, j.opts.now())
	j.event(Event{
		Event: "started", ID: id, Source: d.Source, Target: d.Target, Snapshot: "@" + st.step.Send.To,
		Kind: st.step.Kind, Total: st.last.Total,
	})
}

// Progress writes the progress of a stream, and of all streams, at most once a second.
func (j *JSON) Progress(id int, p connect.Progress) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.opts.now()
	st := j.streams.progress(streamID{id: id}, p, now)
	if st != nil && now.Sub(st.shown) >= progressInterval {
		st.shown = now
		j.event(progressEvent("progress", st))
	}
	if j.streams.total.multiple() && now.Sub(j.total) >= progressInterval {
		j.total = now
		j.event(j.totalEvent())
	}
}

// totalEvent returns the progress of all streams.
func (j *JSON) totalEvent() Event {
	t := &j.streams.total
	e := Event{Event: "total", Datasets: len(t.progress), Done: t.done}
	e.measure(t.gauge(j.opts.now()))
	return e
}

func progressEvent(kind string, st *stream) Event {
	e := Event{
		Event: kind, ID: st.id, Source: st.source, Target: st.target, Snapshot: st.snapshot(),
		Elapsed: st.last.Elapsed.Seconds(), Limited: st.last.LimitedBy,
	}
	e.measure(gaugeOf(st.last))
	return e
}

// measure sets the known values of a gauge.
func (e *Event) measure(g gauge) {
	e.Bytes, e.Total, e.Rate = g.bytes, g.total, g.rate
	if p, ok := g.percent(); ok {
		e.Percent = &p
	}
	if d, ok := g.eta(); ok && d < maxETA {
		s := d.Seconds()
		e.ETA = &s
	}
}

// Finished writes the result of a stream.
func (j *JSON) Finished(id int, r *send.StepResult) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.streams.finish(streamID{id: id}, r.Bytes, r.Error != "") != nil {
		j.event(Event{Event: "finished", ID: id, Result: r})
	}
}

// Ended notes that a dataset is not tried again.
func (j *JSON) Ended(d *plan.Dataset, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.streams.total.ended(datasetID{source: d.Source}, err != nil)
}

// Status writes an event for each running stream and one for all, also with Quiet.
func (j *JSON) Status() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, st := range j.streams.running {
		j.line(progressEvent("status", st))
	}
	if j.streams.total.multiple() {
		j.line(j.totalEvent())
	}
}

// Done writes err, if any, as events, and the report as one object to standard output. A job that
// failed early also gets a report. The object needs no text.
func (j *JSON) Done(r send.Result, err error, _ ResultText) error {
	if sent, ok := r.(*send.Report); ok {
		complete := withoutNulls(*sent)
		r = &complete
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failed(err)
	return Object(j.opts.Stdout, r)
}

// failed writes error events.
func (j *JSON) failed(err error) {
	if err == nil {
		return
	}
	for _, e := range parts(err) {
		j.line(Event{Event: "error", Message: e.Error(), Hint: fault.HintOf(e), Class: className(fault.ClassOf(err))})
	}
}

// Object writes a report as one JSON object.
func Object(w io.Writer, report any) error { return encode(w, report, "  ") }

// texts matches the JSON fields that hold prose. Option names in them are rewritten as flags,
// which need no more JSON escaping. Fields with names of datasets, devices and hosts stay
// unchanged.
var texts = sync.OnceValue(func() *regexp.Regexp {
	const text = `"(?:[^"\\]|\\.)*"`
	return regexp.MustCompile(`"(?:discard|error|evidence|hint|message|note|notes|remedy|skipped|summary|unusable|why)": ?` +
		`(?:` + text + `|\[\s*` + text + `(?:,\s*` + text + `)*)`)
})

// encode writes v as JSON.
func encode(w io.Writer, v any, indent string) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return writeString(w, texts().ReplaceAllStringFunc(b.String(), option.Flags))
}

// className names a fault.Class.
func className(c fault.Class) string {
	switch c {
	case fault.Usage:
		return "usage"
	case fault.Refused:
		return "refused"
	case fault.Interrupted:
		return "interrupted"
	}
	return "failed"
}

// withoutNulls replaces nil slices with empty ones, so that readers see no null.
func withoutNulls(r send.Report) send.Report {
	notNil(&r.Hosts)
	notNil(&r.Findings)
	notNil(&r.Commands)
	notNil(&r.Results)
	if r.Plan != nil {
		p := *r.Plan
		p.Datasets = make([]*plan.Dataset, len(r.Plan.Datasets))
		for i, d := range r.Plan.Datasets {
			c := *d
			notNil(&c.Steps)
			p.Datasets[i] = &c
		}
		notNil(&p.Notes)
		r.Plan = &p
	}
	return r
}

func notNil[E any](s *[]E) {
	if *s == nil {
		*s = []E{}
	}
}

func (j *JSON) event(e Event) {
	if !j.opts.Quiet {
		j.line(e)
	}
}

func (j *JSON) line(e Event) {
	e.Schema, e.Time = ProgressSchema, j.opts.now().UTC()
	_ = encode(j.opts.Stderr, e, "") // nowhere left to report the error
}
