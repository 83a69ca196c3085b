package transfer

import (
	"sync/atomic"
	"time"

	"zxfer/pkg/transport/tcp"
)

// meter counts what a stage does. Stages take the time only where they have to
// wait: a clock reading is a system call on some machines.
type meter struct {
	name  string
	bytes atomic.Int64
	// waitIn and out are the times waited so far, on average over the stage's
	// goroutines.
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

// WaitTimers are stopwatches of a stage, one for each of its goroutines.
type WaitTimers []*tcp.WaitTimer

// NewWaitTimers returns n of them.
func NewWaitTimers(n int) WaitTimers {
	out := make(WaitTimers, n)
	for i := range out {
		out[i] = new(tcp.WaitTimer)
	}
	return out
}

// Mean is the time that they measured, on average.
func (w WaitTimers) Mean() time.Duration {
	var sum time.Duration
	for _, s := range w {
		sum += s.Elapsed()
	}
	return sum / time.Duration(max(1, len(w)))
}

// mean is Mean for a meter.
func (w WaitTimers) mean(time.Duration) time.Duration { return w.Mean() }

// exceptWait is the time of a stage that waits except for what w measures.
func exceptWait(w *tcp.WaitTimer) func(time.Duration) time.Duration {
	return func(life time.Duration) time.Duration { return life - min(life, w.Elapsed()) }
}

// sumWaits adds up the waits of a stage for different things.
func sumWaits(a, b func(time.Duration) time.Duration) func(time.Duration) time.Duration {
	return func(life time.Duration) time.Duration { return a(life) + b(life) }
}
