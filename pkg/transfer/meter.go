package transfer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"zxfer/pkg/wire"
)

// meter counts what a stage does. Stages take the time only where they have to
// wait: a clock reading is a system call on some machines.
type meter struct {
	name  string
	bytes atomic.Int64
	// in and out are the times waited so far, on average over the stage's
	// goroutines.
	in, out func(life time.Duration) time.Duration
}

func (m *meter) stage(life time.Duration) Stage {
	s := Stage{Name: m.name, Bytes: m.bytes.Load()}
	if m.in != nil {
		s.WaitIn = min(m.in(life), life)
	}
	if m.out != nil {
		s.WaitOut = min(m.out(life), life-s.WaitIn)
	}
	s.Busy = life - s.WaitIn - s.WaitOut
	return s
}

// waits is a meter's time of one or several goroutines.
func waits(watches ...*wire.Stopwatch) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration {
		var sum time.Duration
		for _, w := range watches {
			sum += w.Elapsed()
		}
		return sum / time.Duration(max(1, len(watches)))
	}
}

// allBut is the time of a stage that waits except for what w measures.
func allBut(w *wire.Stopwatch) func(time.Duration) time.Duration {
	return func(life time.Duration) time.Duration { return life - min(life, w.Elapsed()) }
}

// plus adds up the waits of a stage for different things.
func plus(a, b func(time.Duration) time.Duration) func(time.Duration) time.Duration {
	return func(life time.Duration) time.Duration { return a(life) + b(life) }
}

// stopwatches returns n of them.
func stopwatches(n int) []*wire.Stopwatch {
	out := make([]*wire.Stopwatch, n)
	for i := range out {
		out[i] = new(wire.Stopwatch)
	}
	return out
}

// progressEvery is how often a running transfer reports.
const progressEvery = 500 * time.Millisecond

// watcher reports progress and ends a transfer that stalls.
type watcher struct {
	now    func() Progress
	report func(Progress) // may be nil
	stall  time.Duration
	// moved is anything that changes while the transfer gets on.
	moved func() int64
	// idle tells that this end has nothing to do, which is no stall; nil where
	// it always has.
	idle func() bool
	// stalled makes the error of a transfer that does not.
	stalled func() error // a wire.ErrCut if it is the other end's
	fail    context.CancelCauseFunc
}

// start begins to watch. stop ends it; the last report is the caller's.
func (w *watcher) start() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(min(progressEvery, max(w.stall/8, time.Millisecond)))
		defer tick.Stop()
		last, since := w.moved(), time.Now()
		reported := time.Now()
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				if m := w.moved(); m != last || w.idle != nil && w.idle() {
					last, since = m, now
				} else if now.Sub(since) >= w.stall {
					// The end whose source or sink hangs knows more: it
					// speaks first.
					err := w.stalled()
					if !errors.Is(err, wire.ErrCut) || now.Sub(since) >= w.stall+w.stall/4 {
						w.fail(err)
						return
					}
				}
				if w.report != nil && now.Sub(reported) >= progressEvery-progressEvery/10 {
					reported = now
					w.report(w.now())
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}
