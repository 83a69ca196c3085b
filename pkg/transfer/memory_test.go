package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
)

// memorySink is a transfer.Sink in memory.
type memorySink struct {
	Tail      int           // result of Withhold
	Full      int64         // bytes after which Write fails with errFull; 0 = never
	Pause     time.Duration // delay of each Write
	HangAfter int64         // bytes after which Write hangs until Abort; 0 = never
	CommitErr error         // error of Commit
	AbortErr  error         // error of Abort
	Slow      time.Duration // delay of Commit
	Drop      bool          // count bytes without keeping them

	mu        sync.Mutex
	stored    []byte
	n         int64
	committed bool
	aborted   error
	gone      chan struct{}
	once      sync.Once
}

// errFull is the error of a full memorySink.
var errFull = errors.New("no space left")

// newSink returns an empty memorySink.
func newSink() *memorySink { return &memorySink{Tail: tailSize, gone: make(chan struct{})} }

func (s *memorySink) Write(p []byte) (int, error) {
	if s.Pause > 0 {
		select {
		case <-s.gone:
		case <-time.After(s.Pause):
		}
	}
	if s.HangAfter > 0 && s.Len() >= s.HangAfter {
		<-s.gone
	}
	select {
	case <-s.gone:
		return 0, os.ErrClosed
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Full > 0 && s.n+int64(len(p)) > s.Full {
		return 0, errFull
	}
	if !s.Drop {
		s.stored = append(s.stored, p...)
	}
	s.n += int64(len(p))
	return len(p), nil
}

// Commit marks the written bytes as stored.
func (s *memorySink) Commit(ctx context.Context) error {
	if s.Slow > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(s.Slow):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aborted != nil {
		return errors.New("commit after abort")
	}
	s.committed = s.CommitErr == nil
	return s.CommitErr
}

// Abort aborts the sink. A hanging Write returns.
func (s *memorySink) Abort(cause error) error {
	s.once.Do(func() { close(s.gone) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborted = cause
	return s.AbortErr
}

func (s *memorySink) Name() string { return "memory sink" }

func (s *memorySink) Withhold() int { return s.Tail }

// Len returns the number of bytes written.
func (s *memorySink) Len() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// Stored returns the written bytes, and whether they were committed.
func (s *memorySink) Stored() (p []byte, committed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored, s.committed
}

// Aborted returns the cause given to Abort, or nil.
func (s *memorySink) Aborted() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aborted
}

func TestMemorySink(t *testing.T) {
	t.Parallel()
	transfertest.SinkConforms(t, transfertest.Sinks{
		Stream: bytes.Repeat([]byte("abcd"), 1<<20),
		Sink: func(*testing.T) (transfer.Sink, func() ([]byte, bool)) {
			s := newSink()
			return s, s.Stored
		},
		Full: func(*testing.T) (transfer.Sink, error) {
			s := newSink()
			s.Full = 3 << 20
			return s, errFull
		},
	})
}
