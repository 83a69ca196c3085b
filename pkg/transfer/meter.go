package transfer

import (
	"sync/atomic"
	"time"

	"zxfer/pkg/transport/tcp"
)

// meter counts the bytes and waits of a stage. It reads the clock only for waits, because that
// is a system call on some machines.
type meter struct {
	name  string
	bytes atomic.Int64
	// waitIn and waitOut return the time waited so far, averaged over the stage's goroutines;
	// nil if the stage never waits.
	waitIn, waitOut func(life time.Duration) time.Duration
}

func (m *meter) stage(life time.Duration) Stage {
	s := Stage{Name: m.name, Bytes: m.bytes.Load()}
	if m.waitIn != nil {
		s.WaitIn = min(m.waitIn(life), life)
	}
	if m.waitOut != nil {
		s.WaitOut = min(m.waitOut(life), life-s.WaitIn)
	}
	s.Busy = life - s.WaitIn - s.WaitOut
	return s
}

// WaitTimers holds one timer for each goroutine of a stage.
type WaitTimers []*tcp.WaitTimer

// NewWaitTimers returns n timers.
func NewWaitTimers(n int) WaitTimers {
	out := make(WaitTimers, n)
	for i := range out {
		out[i] = new(tcp.WaitTimer)
	}
	return out
}

// Mean returns the average of the timers.
func (w WaitTimers) Mean() time.Duration {
	var sum time.Duration
	for _, s := range w {
		sum += s.Elapsed()
	}
	return sum / time.Duration(max(1, len(w)))
}

// mean is Mean as a meter calls it.
func (w WaitTimers) mean(time.Duration) time.Duration { return w.Mean() }

// exceptWait returns the lifetime of a stage without the time of w.
func exceptWait(w *tcp.WaitTimer) func(time.Duration) time.Duration {
	return func(life time.Duration) time.Duration { return life - min(life, w.Elapsed()) }
}

// sumWaits returns the sum of two waits of a stage.
func sumWaits(a, b func(time.Duration) time.Duration) func(time.Duration) time.Duration {
	return func(life time.Duration) time.Duration { return a(life) + b(life) }
}
