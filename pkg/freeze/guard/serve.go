package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
)

// app is an application as the watchdog holds it.
type app interface {
	// freeze has it stand still; what it tells is in the frozen.
	freeze(ctx context.Context) (frozen, error)
	// prove fails where it does not stand still any more.
	prove(ctx context.Context) error
	// thaw has it go on. It is called whenever freeze was, also where that failed.
	thaw(ctx context.Context) error
}

// frozen is what an application tells of itself.
type frozen struct {
	Places   []string `json:"places,omitempty"` // directories with its data
	Position string   `json:"position,omitempty"`
}

func appOf(s *freeze.Spec, e environment) app {
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

// What the watchdog says: once when all is tried, and once when all is thawed.
type (
	began struct {
		Outcomes []freeze.Outcome `json:"outcomes"`
		Frozen   []frozen         `json:"frozen"`
		Stopped  bool             `json:"stopped"`
	}
	ended struct {
		Outcomes []freeze.Outcome `json:"outcomes"`
	}
)

var (
	errGone    = errors.New("the run that it was for is gone")
	errDropped = errors.New("the snapshots were not taken")
	errOver    = errors.New("took longer than its timeout") // the cause of an application's own deadline
)

// thawing is how long the run waits until an application is thawed.
const thawing = 20 * time.Second

// proving is how long an application may take to answer that it is still frozen. It stays
// frozen meanwhile.
const proving = 5 * time.Second

var errSilent = fmt.Errorf("no answer within %s", proving)

// stubborn is how long what did not go on then is tried without it.
const stubborn = time.Hour

// Serve is the watchdog: it reads a freeze.Request, freezes all applications, reports
// that, and waits for the word that the snapshots are taken. At the word, the end of its
// input, or a signal, it thaws all applications at the same time. At the deadline of one
// application it thaws that one. If the agent of a machine did not thaw it in time, Serve
// tries again after its last word.
func Serve(in io.Reader, out io.Writer) error { return serve(in, out, thawing) }

func serve(in io.Reader, out io.Writer, patience time.Duration) error {
	// A child with Pdeathsig ends with the thread that started it: this one lasts.
	runtime.LockOSThread()
	syscall.CloseOnExec(noteFD)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // to thaw, nobody need listen
	go func() { cancel(fmt.Errorf("it was told to end (%s)", <-signals)) }()

	messages := json.NewDecoder(in)
	var q freeze.Request
	if err := messages.Decode(&q); err != nil {
		return fault.Usagef("zxfer starts it by itself", "it reads what to hold still: %w", err)
	}
	if err := q.Check(); err != nil {
		return err
	}
	taken := make(chan struct{})
	go func() {
		var word string
		if err := messages.Decode(&word); err != nil || word != wordTaken {
			cancel(errGone)
			return
		}
		close(taken)
		_ = messages.Decode(&word) // the end
		cancel(errGone)
	}()
	say := json.NewEncoder(out)
	h := &holding{request: &q, patience: patience, taken: taken, cancel: cancel, outcomes: make([]freeze.Outcome, len(q.Wanted))}
	_ = say.Encode(h.freeze(ctx)) // if nobody listens, the input has ended, too
	h.keepers.Wait()
	left, rest := h.left()
	// If the run is gone or over, nobody needs to thaw the others again.
	renote(rest)
	tried := make(chan struct{})
	go func() { // the run may not read the last word
		defer close(tried)
		if goOn(left) {
			renote(nil)
		}
	}()
	err := say.Encode(ended{h.outcomes})
	<-tried
	return err
}

// left are the machines that may still be frozen, and the request that is for them alone.
func (h *holding) left() (machines []*guestAgent, q *freeze.Request) {
	rest := *h.request
	rest.Wanted = nil
	for i, a := range h.apps {
		if m, ok := a.(*guestAgent); ok && h.outcomes[i].Left {
			machines, rest.Wanted = append(machines, m), append(rest.Wanted, h.request.Wanted[i])
		}
	}
	if len(machines) == 0 {
		return nil, nil
	}
	return machines, &rest
}

// goOn has machines go on, all at once, and tells whether all do.
func goOn(machines []*guestAgent) bool {
	ctx, cancel := context.WithTimeout(context.Background(), stubborn)
	defer cancel()
	errs := make(chan error)
	for _, m := range machines {
		go func() { errs <- m.thaw(ctx) }()
	}
	all := true
	for range machines {
		all = <-errs == nil && all // it was told that it may be frozen
	}
	return all
}

// holding is what the watchdog holds. Each application has a goroutine, its keeper, from
// the end of its freezing until it is thawed.
type holding struct {
	request  *freeze.Request
	patience time.Duration
	taken    <-chan struct{} // closed at the word of the run
	cancel   context.CancelCauseFunc
	keepers  sync.WaitGroup
	apps     []app // in the order of the request; shorter if the freezing stopped

	mu       sync.Mutex
	outcomes []freeze.Outcome
	began    bool // all are frozen, or were tried
}

// freeze freezes the applications one after the other, and returns the result. If a
// required one cannot be frozen, or its deadline comes before all are frozen, freeze
// stops, and its keepers thaw.
func (h *holding) freeze(ctx context.Context) began {
	b := began{Frozen: make([]frozen, len(h.request.Wanted))}
	for i := range h.request.Wanted {
		h.mu.Lock()
		stop := h.stopped()
		h.mu.Unlock()
		if stop {
			break
		}
		w := &h.request.Wanted[i]
		start := time.Now()
		within, end := context.WithDeadlineCause(ctx, start.Add(w.Within), fmt.Errorf("%s %w of %s", w.Label(), errOver, w.Within))
		a := appOf(&w.Spec, environmentOf(h.request, w))
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
	h.began, b.Stopped, b.Outcomes = true, h.stopped(), slices.Clone(h.outcomes)
	h.mu.Unlock()
	if b.Stopped {
		h.cancel(errDropped)
	}
	return b
}

// stopped reports whether a required application is known not to be frozen. The caller
// holds mu.
func (h *holding) stopped() bool {
	for i := range h.outcomes {
		if h.outcomes[i].Error != "" && h.request.Wanted[i].Required {
			return true
		}
	}
	return false
}

// update changes the outcome of an application.
func (h *holding) update(i int, change func(*freeze.Outcome)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.outcomes[i])
}

// failed notes why an application is not proved to have been frozen.
func (h *holding) failed(ctx context.Context, i int, err error) {
	why := context.Cause(ctx)
	switch {
	case why == nil || errors.Is(err, why):
	case errors.Is(err, errDropped) && errors.Is(why, errOver):
		err = why // the snapshots may be taken later
	default:
		err = fmt.Errorf("%w: %w", why, err)
	}
	h.update(i, func(o *freeze.Outcome) {
		if o.Error == "" {
			o.Error, o.Hint = freeze.Clean(err.Error()), freeze.Clean(fault.HintOf(err))
		}
	})
}

// keep thaws an application when the snapshots are taken, or when ctx ends, which has the
// application's deadline. It first asks for the proof that the application was frozen
// until then. It thaws an application that could not be frozen immediately. It waits for
// no other application.
func (h *holding) keep(ctx context.Context, i int, a app) {
	runtime.LockOSThread() // as in serve; the thread ends with this goroutine
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
			inVain := !h.began && h.stopped() // no snapshot will be taken: others need not be frozen
			h.mu.Unlock()
			if inVain {
				h.cancel(context.Cause(ctx))
			}
		}
		h.mu.Lock()
		o = h.outcomes[i]
		h.mu.Unlock()
	}
	thaw(a, &o, h.patience)
	h.update(i, func(to *freeze.Outcome) { *to = o })
}

// prove returns an error if an application is not proved to be frozen still.
func prove(ctx context.Context, a app) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	ctx, end := context.WithTimeoutCause(ctx, proving, errSilent)
	defer end()
	return a.prove(ctx)
}

// thaw thaws one application within the patience.
func thaw(a app, o *freeze.Outcome, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := a.thaw(ctx)
	if err == nil {
		return
	}
	o.Left = true
	if o.Error == "" {
		o.Error, o.Hint = freeze.Clean(err.Error()), freeze.Clean(fault.HintOf(err))
	} else {
		o.Error = freeze.Clean(o.Error + "; then: " + err.Error())
	}
}
