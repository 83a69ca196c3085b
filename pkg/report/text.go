package report

import (
	"io"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/job"
	"zxfer/pkg/meet"
	"zxfer/pkg/plan"
)

// Options say where and how a job is shown.
type Options struct {
	Stdout, Stderr io.Writer
	Quiet          bool // errors only
	Verbose        bool // the whole plan first, each stream's stages afterwards
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

// How often a running stream is shown, at most.
const (
	logEvery     = 10 * time.Second       // a line in a log
	repaintEvery = 250 * time.Millisecond // the live lines of a terminal
)

// Text shows a job to a person. Its methods may be called from several
// goroutines; errors of writing to standard error are passed over, as there
// is nowhere left to tell of them.
type Text struct {
	opts Options

	mu      sync.Mutex
	streams streams
	doing   activities
	screen  *screen // nil without a terminal
	painted time.Time
	quiet   bool
}

// NewText returns a reporter for a person.
func NewText(o Options) *Text {
	t := &Text{opts: o, quiet: o.Quiet}
	if o.Size != nil && !o.Quiet {
		t.screen = &screen{out: o.Stderr, size: o.Size}
	}
	return t
}

// Log shows a message.
func (t *Text) Log(message string) {
	if !t.quiet {
		t.write(Line(message) + "\n")
	}
}

// Planned shows what is about to be done: everything with Verbose, else a
// headline and what a user must not miss. A dry run shows its plan when done.
func (t *Text) Planned(r *job.Report) {
	switch {
	case t.quiet || r.DryRun:
	case t.opts.Verbose:
		t.write(planText(r))
	default:
		t.write(headline(r))
	}
}

// Started shows that a stream begins.
func (t *Text) Started(id int, d *plan.Dataset, step int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.streams.start(id, d, step, t.opts.now())
	switch {
	case t.quiet:
	case t.screen != nil:
		t.paint("")
	default:
		t.print(st.name + " -> " + oneLine(st.target) + ": " + stepText(&st.step) + ", " + stepSize(&st.step) + "\n")
	}
}

// Progress shows how far a stream is, now and then.
func (t *Text) Progress(id int, p meet.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.streams.progress(id, p)
	if st == nil || t.quiet {
		return
	}
	now := t.opts.now()
	switch {
	case t.screen != nil:
		if now.Sub(t.painted) >= repaintEvery {
			t.paint("")
		}
	case now.Sub(st.shown) >= logEvery:
		st.shown = now
		t.print(st.line() + "\n")
	}
}

// Finished shows what came of a stream.
func (t *Text) Finished(id int, r *job.StepResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if st := t.streams.finish(id, r.Bytes, r.Error != ""); st != nil && !t.quiet {
		t.paint(resultText(st.name, r, t.opts.Verbose))
	}
}

// Status shows one line about what is running, also with Quiet: it was asked for.
func (t *Text) Status() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paint(t.streams.report() + "\n")
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
	return writeString(t.opts.Stdout, summary(r))
}

// over takes the live lines away.
func (t *Text) over() {
	if t.screen != nil {
		t.streams.running = nil
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
	var live []string
	for _, st := range t.streams.running {
		live = append(live, liveLine(st, columns-1))
	}
	live = append(live, t.doing.lines(t.opts.now())...)
	t.painted = t.opts.now()
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
