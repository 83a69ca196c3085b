package report

import (
	"cmp"
	"io"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/job/heal"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport/connect"
)

// Options configures Text and JSON.
type Options struct {
	Stdout, Stderr io.Writer
	Quiet          bool // errors only
	Verbose        bool // the whole plan first, and the stages of each stream
	// Scheduled suppresses lines about single streams unless a terminal is attached. It is for jobs
	// that a timer repeats.
	Scheduled bool
	// Eager shows activities immediately, for commands that show nothing else.
	Eager bool
	// Size returns the dimensions of the terminal that Stderr is, with 0 for unknown ones. It is
	// nil if Stderr is not a terminal.
	Size func() (columns, rows int)
	Now  func() time.Time // nil = time.Now
}

// Minimum intervals between reports of the total progress.
const (
	logInterval     = time.Minute            // a line in a log
	repaintInterval = 250 * time.Millisecond // the live lines of a terminal
)

// Text reports a job to a person, with live progress on a terminal. Its methods may be called
// concurrently. They ignore errors of writing to standard error, because there is nowhere left to
// report them.
type Text struct {
	part // for a job of one transfer
	opts Options

	mu         sync.Mutex
	streams    streams
	activities activities
	screen     *screen // nil without a terminal
	table      table
	painted    time.Time
	logged     time.Time // when the last line of total progress was printed, without a terminal
	quiet      bool
}

// NewText returns a reporter for a person.
func NewText(o Options) *Text {
	t := &Text{opts: o, quiet: o.Quiet, logged: o.now()}
	t.part = part{t, ""}
	if t.activities.showShort = o.Eager; o.Eager {
		t.logged = time.Time{}
	}
	if o.Size != nil && !o.Quiet {
		t.screen = &screen{out: o.Stderr, size: o.Size}
	}
	return t
}

func (o Options) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// part is one of several transfers that are shown together.
type part struct {
	*Text
	name string
}

// Part returns a Reporter for one of several transfers that are shown with a common total. Its
// stream names start with name.
func (t *Text) Part(name string) send.Reporter { return part{t, name} }

// Log shows a message.
func (t *Text) Log(message string) {
	if !t.quiet {
		t.write(Line(message) + "\n")
	}
}

// Planned shows the plan with Verbose, otherwise a headline and important warnings. A dry run
// shows its plan in Done.
func (t part) Planned(r *send.Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Plan != nil {
		t.streams.total.plan(t.name, r.Plan)
	}
	switch {
	case t.quiet || r.DryRun:
	case t.opts.Verbose:
		t.paint(planText(r))
	default:
		t.paint(headline(r))
	}
}

// Started shows that a stream starts.
func (t part) Started(id int, d *plan.Dataset, step int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.streams.start(streamID{t.name, id}, d, step, t.opts.now())
	switch {
	case t.quiet:
	case t.screen != nil:
		t.paint("")
	case !t.opts.Scheduled:
		t.print(st.name + " -> " + oneLine(st.target) + ": " + StepText(&st.step) + ", " + stepSize(&st.step) + "\n")
	}
}

// Progress records and occasionally shows the progress of a stream.
func (t part) Progress(id int, p connect.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams.progress(streamID{t.name, id}, p, t.opts.now()) != nil {
		t.refresh()
	}
}

// Finished shows the result of a stream.
func (t part) Finished(id int, r *send.StepResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.streams.finish(streamID{t.name, id}, r.Bytes, r.Error != "")
	if st != nil && !t.quiet && (t.screen != nil || !t.opts.Scheduled) {
		t.paint(resultText(st.name, r, t.opts.Verbose))
	}
}

// Ended notes that a dataset is not tried again.
func (t part) Ended(d *plan.Dataset, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams.total.ended(datasetID{t.name, d.Source}, err != nil)
	t.refresh()
}

// Activity shows an activity while it lasts.
func (t *Text) Activity(what string) (done func()) { return t.ActivityState(fixedText(what)) }

// ActivityState is Activity with a description that changes.
func (t *Text) ActivityState(what func() string) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.activities.begin(what, t.opts.now())
	if t.opts.Eager && t.screen != nil && !t.quiet {
		t.paint("")
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.activities.end(one)
		t.refresh()
	}
}

// Tick refreshes the output. The caller calls it regularly.
func (t *Text) Tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.streams.running) > 0 { // the time before the first stream does not count for the rate
		t.streams.total.record(t.opts.now())
	}
	t.refresh()
}

// refresh shows the progress if the interval has passed.
func (t *Text) refresh() {
	now := t.opts.now()
	switch {
	case t.quiet:
	case t.screen != nil:
		if now.Sub(t.painted) >= repaintInterval {
			t.paint("")
		}
	case now.Sub(t.logged) >= logInterval:
		if line := t.state(now); line != "" {
			t.logged = now
			t.print(line + "\n")
		}
	}
}

// State describes the running streams and activities on one line, or returns "".
func (t *Text) State() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state(t.opts.now())
}

func (t *Text) state(now time.Time) string { return describeProgress(&t.streams, &t.activities, now) }

// Status shows one line about progress, even with Quiet, because the user requested it.
func (t *Text) Status() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.opts.now()
	t.paint(cmp.Or(t.state(now), t.streams.report(now)) + "\n")
}

// EndJob ends one of several jobs that are shown one after the other. It clears live lines and
// totals.
func (t *Text) EndJob() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over()
}

// ResultText returns what Done prints about a job that ended with err: the plan of a dry run or a
// summary on standard output, and on standard error details that [Error] does not print.
type ResultText func(err error) (stdout, stderr string)

// Done shows the result of a job with text. Without a result, both are nil. It returns errors of
// writing to standard output.
func (t *Text) Done(r send.Result, err error, text ResultText) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over()
	heal, ok := r.(*heal.Report)
	if text == nil || t.quiet && !(ok && len(heal.Objects) > 0) {
		return nil
	}
	stdout, stderr := text(err)
	t.print(stderr)
	return writeString(t.opts.Stdout, stdout)
}

func (t *Text) over() {
	t.streams.running, t.streams.total, t.activities.running = nil, total{}, nil
	if t.screen != nil {
		t.paint("")
	}
}

func (t *Text) write(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paint(text)
}

// paint writes text above the live lines.
func (t *Text) paint(text string) {
	if t.screen == nil {
		t.print(text)
		return
	}
	columns, _ := t.screen.dimensions()
	now := t.opts.now()
	live := t.table.lines(t.streams.rows(now), columns-1)
	for _, line := range t.activities.lines(now) {
		live = append(live, ascii(line))
	}
	t.painted = now
	_ = t.screen.show(text, live) // see Text: nowhere left to report the error
}

func (t *Text) print(text string) { _ = writeString(t.opts.Stderr, text) }

func writeString(w io.Writer, s string) error {
	if s == "" {
		return nil
	}
	_, err := io.Copy(w, strings.NewReader(s))
	return err
}
