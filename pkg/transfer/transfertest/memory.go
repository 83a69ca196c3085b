package transfertest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// Source is a transfer.Source of bytes in memory.
type Source struct {
	// Chunk is the most that a Read returns; 0 = as much as fits. Negative
	// means a random part of what fits.
	Chunk int
	// Err is what the producer fails with after its last byte; nil = it ends well.
	Err error
	// Pause delays each Read.
	Pause time.Duration
	// Hang makes the producer stop, after its last byte, without an end.
	Hang bool

	mu     sync.Mutex
	rest   []byte
	closed chan struct{}
	once   sync.Once
}

// NewSource returns a Source of p, which it does not change.
func NewSource(p []byte) *Source { return &Source{rest: p, closed: make(chan struct{})} }

// ErrClosed is what a Source and a Sink return once they were closed.
var ErrClosed = errors.New("closed")

func (s *Source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Pause > 0 {
		select {
		case <-s.closed:
		case <-time.After(s.Pause):
		}
	}
	select {
	case <-s.closed:
		return 0, ErrClosed
	default:
	}
	if len(s.rest) == 0 {
		switch {
		case s.Hang:
			<-s.closed
			return 0, ErrClosed
		case s.Err != nil:
			return 0, s.Err
		}
		return 0, io.EOF
	}
	switch {
	case s.Chunk > 0:
		p = p[:min(len(p), s.Chunk)]
	case s.Chunk < 0:
		p = p[:1+rand.IntN(len(p))]
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Close ends the Source; a Read that hangs returns.
func (s *Source) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Name is "memory source".
func (s *Source) Name() string { return "memory source" }

// Sink is a transfer.Sink in memory. It tells whether it was committed.
type Sink struct {
	Tail      int           // what Withhold returns
	Full      int64         // bytes after which Write fails with ErrFull; 0 = never
	Pause     time.Duration // delay of each Write
	HangAfter int64         // bytes after which Write hangs until Abort; 0 = never
	CommitErr error         // what Commit fails with
	AbortErr  error         // what Abort says
	Slow      time.Duration // delay of Commit
	Drop      bool          // count bytes, but keep none

	mu        sync.Mutex
	stored    []byte
	n         int64
	committed bool
	aborted   error
	gone      chan struct{}
	once      sync.Once
}

// ErrFull is what a Sink that is full returns.
var ErrFull = errors.New("no space left")

// NewSink returns an empty Sink.
func NewSink() *Sink { return &Sink{gone: make(chan struct{})} }

func (s *Sink) Write(p []byte) (int, error) {
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
		return 0, ErrClosed
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Full > 0 && s.n+int64(len(p)) > s.Full {
		return 0, ErrFull
	}
	if !s.Drop {
		s.stored = append(s.stored, p...)
	}
	s.n += int64(len(p))
	return len(p), nil
}

// Commit marks what was written as stored.
func (s *Sink) Commit(ctx context.Context) error {
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

// Abort ends the Sink; a Write that hangs returns.
func (s *Sink) Abort(cause error) error {
	s.once.Do(func() { close(s.gone) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborted = cause
	return s.AbortErr
}

// Name is "memory sink".
func (s *Sink) Name() string { return "memory sink" }

// Withhold is Tail.
func (s *Sink) Withhold() int { return s.Tail }

// Len is how many bytes were written.
func (s *Sink) Len() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// Stored returns what was written, and whether it was committed.
func (s *Sink) Stored() (p []byte, committed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored, s.committed
}

// Aborted is the cause that the Sink was aborted with, nil if it was not.
func (s *Sink) Aborted() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aborted
}
