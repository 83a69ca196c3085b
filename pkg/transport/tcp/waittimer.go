package tcp

import (
	"sync/atomic"
	"time"
)

// WaitTimer adds up the time that one goroutine spends waiting. Start and Stop
// belong to that goroutine; Elapsed may be called by any, and counts a wait
// that has not ended. The zero value is ready.
type WaitTimer struct{ total, since atomic.Int64 }

// epoch makes clock readings monotonic and small.
var epoch = time.Now()

func clock() int64 { return int64(time.Since(epoch)) + 1 }

// Start begins a wait.
func (s *WaitTimer) Start() { s.since.Store(clock()) }

// Stop ends the wait, if there is one.
func (s *WaitTimer) Stop() {
	if since := s.since.Load(); since != 0 {
		s.total.Add(clock() - since)
		s.since.Store(0)
	}
}

// Elapsed is the time waited so far.
func (s *WaitTimer) Elapsed() time.Duration {
	total := s.total.Load()
	if since := s.since.Load(); since != 0 {
		total += clock() - since
	}
	return time.Duration(total)
}

// Running tells whether there is a wait that has not ended.
func (s *WaitTimer) Running() bool { return s.since.Load() != 0 }
