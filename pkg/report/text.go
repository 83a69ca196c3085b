package report

import (
	"cmp"
	"io"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/job"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport/connect"
)

// Options say where and how a job is shown.
type Options struct {
	Stdout, Stderr io.Writer
	Quiet          bool // errors only
	Verbose        bool // the whole plan first, each stream's stages afterwards
	// Often tells that the same is done again and again, by a timer: where no
	// terminal is looked at, single streams are not told of.
	Often bool
	// Eager shows at once what is under way, which else is shown where it lasts:
	// there is nothing else to see.
	Eager bool
	// Size returns the terminal that Stderr is; nil where it is none.
	// Unknown dimensions are 0.
	Size func() (columns, rows int)
	Now  func() time.Time // nil = time.Now
}

func (o Options) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// How often it is shown how far all is, at most.
const (
	sayEvery     = time.Minute            // a line in a log
	repaintEvery = 250 * time.Millisecond // the live lines of a terminal
)

// Text shows a job to a person, and where a terminal is looked at, how far it is.
// Its methods may be called from several goroutines; errors of writing to standard
// error are passed over, as there is nowhere left to tell of them.
type Text struct {
	part // of a job that is one transfer
	opts Options

	mu      sync.Mutex
	streams streams
	doing   activities
	screen  *screen // nil without a terminal
	table   table
	painted time.Time
	said    time.Time // that without a terminal it was told how far all is
	quiet   bool
}

// NewText returns a reporter for a person.
func NewText(o Options) *Text {
	t := &Text{opts: o, quiet: o.Quiet, said: o.now()}
	t.part = part{t, ""}
	if t.doing.all = o.Eager; o.Eager {
		t.said = time.Time{}
	}
	if o.Size != nil && !o.Quiet {
		t.screen = &screen{out: o.Stderr, size: o.Size}
	}
	return t
}

// part is a transfer of those that are shown together.
type part struct {
	*Text
	name string
}

// Part returns a Reporter for one of several transfers that are shown together,
// and whose total is that of all. Its name is before those of its streams.
func (t *Text) Part(name string) job.Reporter { return part{t, name} }

// Log shows a message.
func (t *Text) Log(message string) {
	if !t.quiet {
		t.write(Line(message) + "\n")
	}
}

// Planned shows what is about to be done: everything with Verbose, else a
// headline and what a user must not miss. A dry run shows its plan when done.
func (t part) Planned(r *job.Report) {
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

// Started shows that a stream begins.
func (t part) Started(id int, d *plan.Dataset, step int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.streams.start(streamID{t.name, id}, d, step, t.opts.now())
	switch {
	case t.quiet:
	case t.screen != nil:
		t.paint("")
	case !t.opts.Often:
		t.print(st.name + " -> " + oneLine(st.target) + ": " + StepText(&st.step) + ", " + stepSize(&st.step) + "\n")
	}
}

// Progress shows how far a stream is, now and then.
func (t part) Progress(id int, p connect.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams.progress(streamID{t.name, id}, p, t.opts.now()) != nil {
		t.refresh()
	}
}

// Finished shows what came of a stream.
func (t part) Finished(id int, r *job.StepResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.streams.finish(streamID{t.name, id}, r.Bytes, r.Error != "")
	if st != nil && !t.quiet && (t.screen != nil || !t.opts.Often) {
		t.paint(resultText(st.name, r, t.opts.Verbose))
	}
}

// Ended notes that no more is tried of a dataset.
func (t part) Ended(d *plan.Dataset, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams.total.ended(datasetID{t.name, d.Source}, err != nil)
	t.refresh()
}

// Activity shows what no stream tells of, while it lasts.
func (t *Text) Activity(what string) (done func()) { return t.ActivityState(said(what)) }

// ActivityState is Doing of what tells how far it is.
func (t *Text) ActivityState(what func() string) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.doing.begin(what, t.opts.now())
	if t.opts.Eager && t.screen != nil && !t.quiet {
		t.paint("")
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.doing.end(one)
		t.refresh()
	}
}

// Tick is called now and then, so that what is shown stays fresh where nothing
// happens.
func (t *Text) Tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.streams.running) > 0 { // what comes before the first is no part of the rate
		t.streams.total.note(t.opts.now())
	}
	t.refresh()
}

// refresh shows how far all is, where it is time to.
func (t *Text) refresh() {
	now := t.opts.now()
	switch {
	case t.quiet:
	case t.screen != nil:
		if now.Sub(t.painted) >= repaintEvery {
			t.paint("")
		}
	case now.Sub(t.said) >= sayEvery:
		if line := t.state(now); line != "" {
			t.said = now
			t.print(line + "\n")
		}
	}
}

// State is one line about what is going on, "" where nothing is.
func (t *Text) State() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state(t.opts.now())
}

func (t *Text) state(now time.Time) string { return state(&t.streams, &t.doing, now) }

// Status shows one line about what is going on, also with Quiet: it was asked for.
func (t *Text) Status() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.opts.now()
	t.paint(cmp.Or(t.state(now), t.streams.report(now)) + "\n")
}

// Over ends a job of several that are shown one after the other: what was live is
// gone, and what it moved is no part of the next one's total.
func (t *Text) Over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over()
}

// Done shows the outcome: a dry run's plan or the summary of a job that
// succeeded on standard output; on standard error what explains err beyond
// its own text, which is [Error]'s to print. It returns the error of writing
// to standard output.
func (t *Text) Done(r *job.Report, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over()
	if r == nil || t.quiet {
		return nil
	}
	switch {
	case r.DryRun && r.Plan != nil:
		return writeString(t.opts.Stdout, planText(r)+dryRunText(err))
	case err != nil:
		t.print(failureText(r))
		return nil
	}
	return writeString(t.opts.Stdout, summary(r)+nextText(r.Next)+divergedText(r.Diverged))
}

func (t *Text) over() {
	t.streams.running, t.streams.total, t.doing.under = nil, total{}, nil
	if t.screen != nil {
		t.paint("")
	}
}

func (t *Text) write(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paint(text)
}

// paint writes text, above the live lines where there are any.
func (t *Text) paint(text string) {
	if t.screen == nil {
		t.print(text)
		return
	}
	columns, _ := t.screen.dimensions()
	now := t.opts.now()
	live := t.table.lines(t.streams.rows(now), columns-1)
	for _, line := range t.doing.lines(now) {
		live = append(live, ascii(line))
	}
	t.painted = now
	_ = t.screen.show(text, live) // see Text: nowhere left to tell of it
}

func (t *Text) print(text string) { _ = writeString(t.opts.Stderr, text) }

func writeString(w io.Writer, s string) error {
	if s == "" {
		return nil
	}
	_, err := io.Copy(w, strings.NewReader(s))
	return err
}
