package transfer

import (
	"sync/atomic"
	"time"
)

// meter counts what one stage does. Its methods may be called from the
// stage's goroutines at once; times are then averaged over them.
type meter struct {
	name    string
	workers int
	bytes   atomic.Int64
	busy    atomic.Int64
	in      atomic.Int64
	out     atomic.Int64
}

// timer adds the time between its creation, or its last call, to a counter.
type timer struct{ last time.Time }

func startTimer() timer { return timer{time.Now()} }

func (t *timer) add(to *atomic.Int64) {
	now := time.Now()
	to.Add(int64(now.Sub(t.last)))
	t.last = now
}

func (m *meter) stage() Stage {
	n := int64(max(1, m.workers))
	return Stage{
		Name: m.name, Bytes: m.bytes.Load(), Busy: time.Duration(m.busy.Load() / n),
		WaitIn: time.Duration(m.in.Load() / n), WaitOut: time.Duration(m.out.Load() / n),
	}
}

// progressEvery is how often a running transfer reports.
const progressEvery = 500 * time.Millisecond

// watch reports progress and ends the transfer when it stalls. stalledAt says
// what was being waited for. The returned function ends it and reports once
// more.
func watch(now func() Progress, report func(Progress), stall time.Duration, fail func(error), stalledAt func(Progress) string) (stop func()) {
	if stall <= 0 {
		stall = DefaultStall
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		var bytes int64
		moved := time.Now()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			p := now()
			if report != nil {
				report(p)
			}
			if p.Bytes != bytes {
				bytes, moved = p.Bytes, time.Now()
			} else if time.Since(moved) > stall {
				fail(stalled(stalledAt(p), stall))
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		if report != nil {
			report(now())
		}
	}
}
