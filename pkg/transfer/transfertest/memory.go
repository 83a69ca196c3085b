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
	// Chunk bounds the bytes of a Read; 0 = no bound, negative = random.
	Chunk int
	// Err is the producer's error after the last byte; nil = it ends well.
	Err error
	// Pause delays each Read.
	Pause time.Duration
	// Hang makes the producer hang after the last byte.
	Hang bool

	mu     sync.Mutex
	rest   []byte
	closed chan struct{}
	once   sync.Once
}

// NewSource returns a Source of p, which it does not modify.
func NewSource(p []byte) *Source { return &Source{rest: p, closed: make(chan struct{})} }

// errClosed is the error of a closed Source.
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

// Close closes the Source. A hanging Read returns.
func (s *Source) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *Source) Name() string { return "memory source" }
