package transfertest

import (
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

// errClosed is what a Source returns once it was closed.
var errClosed = errors.New("closed")

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
		return 0, errClosed
	default:
	}
	if len(s.rest) == 0 {
		switch {
		case s.Hang:
			<-s.closed
			return 0, errClosed
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
