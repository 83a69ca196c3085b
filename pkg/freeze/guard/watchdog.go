package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/filelock"
	"zxfer/pkg/freeze"
)

// app is an application that the watchdog freezes.
type app interface {
	// freeze freezes the application.
	freeze(ctx context.Context) (frozen, error)
	// prove returns an error if it is no longer frozen.
	prove(ctx context.Context) error
	// thaw thaws it. It is called after each freeze, even a failed one.
	thaw(ctx context.Context) error
}

// frozen holds what an application reports about itself.
type frozen struct {
	DataDirs []string `json:"places,omitempty"` // directories with its data
	Position string   `json:"position,omitempty"`
}

// Messages of the watchdog: one after all freezes were tried, one after all thaws.
type (
	freezeMessage struct {
		Outcomes []freeze.Outcome `json:"outcomes"`
		Frozen   []frozen         `json:"frozen"`
		Stopped  bool             `json:"stopped"`
	}
	thawMessage struct {
		Outcomes []freeze.Outcome `json:"outcomes"`
	}
)

var (
	errRunEnded = errors.New("the run ended unexpectedly")
	errDropped  = errors.New("the snapshots were not taken")
	errOver     = errors.New("took longer than its timeout") // the cause of an application's own deadline
)

// thawTimeout is how long the run waits for an application to thaw.
const thawTimeout = 20 * time.Second

// proveTimeout is how long an application may take to confirm that it is frozen. It remains frozen
// during that time.
const proveTimeout = 5 * time.Second

var errNoAnswer = fmt.Errorf("no answer within %s", proveTimeout)

// retryTimeout is how long the watchdog retries a failed thaw without the run.
const retryTimeout = time.Hour

// Serve is the watchdog. It reads a freeze.Request, freezes all applications, reports that, and
// waits for messageTaken. At that message, at the end of its input or at a signal, it thaws all
// applications concurrently. At the deadline of one application it thaws that one. If a guest
// agent did not thaw in time, Serve retries after its last message.
func Serve(in io.Reader, out io.Writer) error { return serve(in, out, thawTimeout) }

func serve(in io.Reader, out io.Writer, patience time.Duration) error {
	// A child with Pdeathsig dies with the thread that started it, so this thread must last.
	runtime.LockOSThread()
	syscall.CloseOnExec(noteFD)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a closed pipe must not prevent the thaw
	go func() { cancel(fmt.Errorf("it was ended by a signal (%s)", <-signals)) }()

	messages := json.NewDecoder(in)
	var q freeze.Request
	if err := messages.Decode(&q); err != nil {
		return fault.Usagef("zxfer replicate run JOB starts it", "cannot read the applications to freeze: %w", err)
	}
	if err := q.Check(); err != nil {
		return err
	}
	taken := make(chan struct{})
	go func() {
		var word string
		if err := messages.Decode(&word); err != nil || word != messageTaken {
			cancel(errRunEnded)
			return
		}
		close(taken)
		_ = messages.Decode(&word) // returns at the end of the input
		cancel(errRunEnded)
	}()
	say := json.NewEncoder(out)
	h := &watchdog{request: &q, timeout: patience, taken: taken, cancel: cancel, outcomes: make([]freeze.Outcome, len(q.Applications))}
	_ = say.Encode(h.freeze(ctx)) // if the run has ended, the input ends too
	h.keepers.Wait()
	left, rest := h.leftFrozen()
	// Applications that are thawed need no entry, even if the run has ended.
	rewriteNote(rest)
	tried := make(chan struct{})
	go func() { // the run may not read the last message
		defer close(tried)
		if retryThaw(left) {
			rewriteNote(nil)
		}
	}()
	err := say.Encode(thawMessage{h.outcomes})
	<-tried
	return err
}

// leftFrozen returns the machines that may still be frozen, and a request for these alone.
func (h *watchdog) leftFrozen() (machines []*guestAgent, q *freeze.Request) {
	rest := *h.request
	rest.Applications = nil
	for i, a := range h.apps {
		if m, ok := a.(*guestAgent); ok && h.outcomes[i].ThawFailed {
			machines, rest.Applications = append(machines, m), append(rest.Applications, h.request.Applications[i])
		}
	}
	if len(machines) == 0 {
		return nil, nil
	}
	return machines, &rest
}

// retryThaw thaws machines concurrently and reports whether all succeeded.
func retryThaw(machines []*guestAgent) bool {
	ctx, cancel := context.WithTimeout(context.Background(), retryTimeout)
	defer cancel()
	errs := make(chan error)
	for _, m := range machines {
		go func() { errs <- m.thaw(ctx) }()
	}
	all := true
	for range machines {
		all = <-errs == nil && all // the outcome already reports that it may be frozen
	}
	return all
}

// watchdog is the state of a watchdog. Each application has a keeper goroutine from the end of its
// freeze until it is thawed.
type watchdog struct {
	request *freeze.Request
	timeout time.Duration
	taken   <-chan struct{} // closed when messageTaken arrives
	cancel  context.CancelCauseFunc
	keepers sync.WaitGroup
	apps    []app // in the order of the request; shorter if freezing stopped

	mu       sync.Mutex
	outcomes []freeze.Outcome
	tried    bool // all freezes were tried
}

// freeze freezes the applications one after the other and returns the result. If a required one
// cannot be frozen, or its deadline passes before all are frozen, freeze stops and the keepers
// thaw.
func (h *watchdog) freeze(ctx context.Context) freezeMessage {
	b := freezeMessage{Frozen: make([]frozen, len(h.request.Applications))}
	for i := range h.request.Applications {
		h.mu.Lock()
		stop := h.stopped()
		h.mu.Unlock()
		if stop {
			break
		}
		w := &h.request.Applications[i]
		start := time.Now()
		within, end := context.WithDeadlineCause(ctx, start.Add(w.Timeout), fmt.Errorf("%s %w of %s", w.Label(), errOver, w.Timeout))
		a := newApp(&w.Spec, environmentFor(h.request, w))
		h.apps = append(h.apps, a)
		f, err := a.freeze(within)
		b.Frozen[i] = f
		h.update(i, func(o *freeze.Outcome) { o.Position = freeze.Clean(f.Position) })
		if err != nil {
			h.failed(within, i, err)
		}
		h.keepers.Go(func() {
			defer end()
			h.keep(within, i, a)
			h.update(i, func(o *freeze.Outcome) { o.Seconds = time.Since(start).Seconds() })
		})
	}
	h.mu.Lock()
	h.tried, b.Stopped, b.Outcomes = true, h.stopped(), slices.Clone(h.outcomes)
	h.mu.Unlock()
	if b.Stopped {
		h.cancel(errDropped)
	}
	return b
}

func newApp(s *freeze.Spec, e environment) app {
	switch s.Kind {
	case freeze.PostgreSQL:
		return &postgresql{s}
	case freeze.MySQL:
		return &mysql{spec: s}
	case freeze.GuestAgent:
		return &guestAgent{spec: s}
	}
	return &command{s, e}
}

// stopped reports whether a required application is known not to be frozen. The caller must hold
// mu.
func (h *watchdog) stopped() bool {
	for i := range h.outcomes {
		if h.outcomes[i].Error != "" && h.request.Applications[i].Required {
			return true
		}
	}
	return false
}

// update changes the outcome of an application.
func (h *watchdog) update(i int, change func(*freeze.Outcome)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.outcomes[i])
}

// failed records why the freeze of an application is not verified.
func (h *watchdog) failed(ctx context.Context, i int, err error) {
	why := context.Cause(ctx)
	switch {
	case why == nil || errors.Is(err, why):
	case errors.Is(err, errDropped) && errors.Is(why, errOver):
		err = why // the snapshots may still be taken
	default:
		err = fmt.Errorf("%w: %w", why, err)
	}
	h.update(i, func(o *freeze.Outcome) {
		if o.Error == "" {
			o.Error, o.Hint = freeze.Clean(err.Error()), freeze.Clean(fault.HintOf(err))
		}
	})
}

// keep thaws an application when the snapshots are taken or ctx ends, which has the application's
// deadline. Before that it verifies that the application was frozen until then. It thaws
// immediately if the freeze failed. It waits for no other application.
func (h *watchdog) keep(ctx context.Context, i int, a app) {
	runtime.LockOSThread() // see serve; the thread ends with this goroutine
	h.mu.Lock()
	o := h.outcomes[i]
	h.mu.Unlock()
	if o.Error == "" {
		select {
		case <-h.taken:
		case <-ctx.Done():
		}
		select {
		case <-h.taken:
			if err := prove(ctx, a); err != nil {
				h.failed(ctx, i, err)
			}
		default:
			h.failed(ctx, i, errDropped)
			h.mu.Lock()
			inVain := !h.tried && h.stopped() // no snapshot will be taken, so no other freeze is needed
			h.mu.Unlock()
			if inVain {
				h.cancel(context.Cause(ctx))
			}
		}
		h.mu.Lock()
		o = h.outcomes[i]
		h.mu.Unlock()
	}
	thaw(a, &o, h.timeout)
	h.update(i, func(to *freeze.Outcome) { *to = o })
}

// prove returns an error unless the application is verified to be frozen.
func prove(ctx context.Context, a app) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	ctx, end := context.WithTimeoutCause(ctx, proveTimeout, errNoAnswer)
	defer end()
	return a.prove(ctx)
}

// thaw thaws one application within patience.
func thaw(a app, o *freeze.Outcome, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := a.thaw(ctx)
	if err == nil {
		return
	}
	o.ThawFailed = true
	if o.Error == "" {
		o.Error, o.Hint = freeze.Clean(err.Error()), freeze.Clean(fault.HintOf(err))
	} else {
		o.Error = freeze.Clean(o.Error + "; then: " + err.Error())
	}
}

// A note lists what is frozen. The run and the watchdog share its lock, so a free lock means that
// both have ended. The next run then thaws what the note lists. An empty note lists nothing.

// notePrefix starts the file names of notes.
const notePrefix = "frozen-"

// noteFD is the note's descriptor in the watchdog, if there is a note.
const noteFD = 3

// writeNote writes a note and returns it open and locked.
func writeNote(dir string, q *freeze.Request) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, notePrefix+filepath.Base(f.Name()))
	err = errors.Join(filelock.Try(f), json.NewEncoder(f).Encode(q))
	if err == nil {
		err = os.Rename(f.Name(), name) // visible only once it is locked
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return f, nil
}

// rewriteNote rewrites the watchdog's note; nil empties it.
func rewriteNote(q *freeze.Request) {
	if unix.Ftruncate(noteFD, 0) != nil || q == nil {
		return // there may be no note
	}
	if text, err := json.Marshal(q); err == nil { // cannot fail: it was decoded from JSON
		_, _ = unix.Pwrite(noteFD, text, 0) // on error, the next freeze reports what is still frozen
	}
}

// thawNotes thaws concurrently what ended runs and watchdogs left frozen.
func thawNotes(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, notePrefix+"*")) // fails only for an invalid pattern
	var notes sync.WaitGroup
	for _, name := range names {
		notes.Go(func() { thawNote(name) })
	}
	notes.Wait()
}

// thawNote thaws what a note lists, if its run and watchdog ended.
func thawNote(name string) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer filelock.Close(f)
	s, err := f.Stat()
	if err != nil {
		return
	}
	mine, ok := s.Sys().(*syscall.Stat_t)
	if !ok || !s.Mode().IsRegular() || int(mine.Uid) != os.Geteuid() || filelock.Try(f) != nil {
		return
	}
	var q freeze.Request
	left := false
	if s.Size() > 0 && json.NewDecoder(f).Decode(&q) == nil && q.Check() == nil {
		// The next freeze of an application reports a failed thaw.
		left = slices.ContainsFunc(thawAll(&q, nil, ""), func(o freeze.Outcome) bool { return o.ThawFailed })
	}
	if !left || time.Since(s.ModTime()) > retryTimeout {
		_ = os.Remove(name)
	}
}

// thawAll thaws all applications of a request concurrently, outside of a watchdog. b is the result
// of freezing, or nil if unknown. why becomes the error of freezes without one.
func thawAll(q *freeze.Request, b *freezeMessage, why string) []freeze.Outcome {
	outcomes := make([]freeze.Outcome, len(q.Applications))
	var all sync.WaitGroup
	for i := range outcomes {
		o, w := &outcomes[i], &q.Applications[i]
		if b != nil {
			*o = b.Outcomes[i]
		}
		a := newApp(&w.Spec, environmentFor(q, w))
		if machine, ok := a.(*guestAgent); ok {
			machine.owned = b == nil || o.Error == ""
		}
		if o.Error == "" {
			o.Error = freeze.Clean(why)
		}
		all.Go(func() {
			runtime.LockOSThread() // see serve; the thread ends with this goroutine
			thaw(a, o, thawTimeout)
		})
	}
	all.Wait()
	return outcomes
}
