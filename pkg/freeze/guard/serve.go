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
)

// thawing is how long the run waits for one application to go on.
const thawing = 20 * time.Second

// stubborn is how long what did not go on then is tried without it.
const stubborn = time.Hour

// Serve is the watchdog: it reads a freeze.Request, has all stand still, says so, and
// waits for the word that the snapshots are taken. Whatever comes instead (the end of its
// input, the end of the time, a signal), it has all go on again, in reverse. A machine
// whose agent did not thaw it in time it tries to thaw after its last word, too.
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
	h := &holding{request: &q, patience: patience, outcomes: make([]freeze.Outcome, len(q.Wanted))}
	b := began{Frozen: make([]frozen, len(q.Wanted))}
	ctx, end := h.freeze(ctx, &b)
	defer end()
	b.Outcomes = h.outcomes
	_ = say.Encode(b) // where nobody listens, the input has ended, too
	if !b.Stopped {
		select {
		case <-taken:
		case <-ctx.Done():
		}
	}
	h.thaw(ctx, taken)
	left, rest := h.left()
	// Where the run is gone, or is over, nobody need thaw the others again.
	renote(rest)
	err := say.Encode(ended{h.outcomes})
	if goOn(left) {
		renote(nil)
	}
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

// holding is what the watchdog holds.
type holding struct {
	request  *freeze.Request
	patience time.Duration
	apps     []app // that were begun with
	begun    []time.Time
	outcomes []freeze.Outcome
}

// freeze returns the context in which all stand still.
func (h *holding) freeze(ctx context.Context, b *began) (context.Context, context.CancelFunc) {
	var ends []context.CancelFunc
	for i := range h.request.Wanted {
		w := &h.request.Wanted[i]
		now := time.Now()
		within, end := context.WithDeadlineCause(ctx, now.Add(w.Within), fmt.Errorf("%s took longer than its timeout of %s", w.Label(), w.Within))
		ctx, ends = within, append(ends, end)
		a := appOf(&w.Spec, environmentOf(h.request, w))
		h.apps, h.begun = append(h.apps, a), append(h.begun, now)
		err := context.Cause(ctx)
		if err == nil {
			b.Frozen[i], err = a.freeze(ctx)
		}
		if err != nil {
			h.failed(ctx, i, err)
			if b.Stopped = b.Stopped || w.Required; b.Stopped {
				break
			}
		}
		h.outcomes[i].Position = freeze.Clean(b.Frozen[i].Position)
	}
	return ctx, func() {
		for _, end := range ends {
			end()
		}
	}
}

// failed notes why one is not proved to have stood still.
func (h *holding) failed(ctx context.Context, i int, err error) {
	if why := context.Cause(ctx); why != nil && !errors.Is(err, why) {
		err = fmt.Errorf("%w: %w", why, err)
	}
	if h.outcomes[i].Error == "" {
		h.outcomes[i].Error, h.outcomes[i].Hint = freeze.Clean(err.Error()), freeze.Clean(fault.HintOf(err))
	}
}

// thaw has all go on, last first, each proved before to have stood still until now.
func (h *holding) thaw(ctx context.Context, taken <-chan struct{}) {
	for i := len(h.apps) - 1; i >= 0; i-- {
		o := &h.outcomes[i]
		select {
		case <-taken:
			if o.Error != "" {
				break
			}
			err := context.Cause(ctx)
			if err == nil {
				err = h.apps[i].prove(ctx)
			}
			if err != nil {
				h.failed(ctx, i, err)
			}
		default:
			h.failed(ctx, i, errDropped)
		}
		thaw(h.apps[i], o, h.patience)
		o.Seconds = time.Since(h.begun[i]).Seconds()
	}
}

// thaw has one go on.
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
