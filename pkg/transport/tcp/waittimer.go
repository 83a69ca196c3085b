package tcp

import (
	"sync/atomic"
	"time"
)

// WaitTimer adds up the time that one goroutine waits. Only that goroutine calls Start and
// Stop. Any goroutine may call Elapsed, which includes a running wait. The zero value is ready.
type WaitTimer struct{ total, since atomic.Int64 }

// epoch keeps clock readings monotonic and small.
var epoch = time.Now()

func clock() int64 { return int64(time.Since(epoch)) + 1 }

// Start starts a wait.
func (s *WaitTimer) Start() { s.since.Store(clock()) }

// Stop ends the running wait, if any.
func (s *WaitTimer) Stop() {
	if since := s.since.Load(); since != 0 {
		s.total.Add(clock() - since)
		s.since.Store(0)
	}
}

// Elapsed returns the time waited so far.
func (s *WaitTimer) Elapsed() time.Duration {
	total := s.total.Load()
	if since := s.since.Load(); since != 0 {
		total += clock() - since
	}
	return time.Duration(total)
}

// Running reports whether a wait is running.
func (s *WaitTimer) Running() bool { return s.since.Load() != 0 }
