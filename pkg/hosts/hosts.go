// Package hosts keeps the hosts open that a command works on: each is reached
// when it is first needed, once however many jobs and targets need it, and anew
// after its connection was lost.
//
// It does not know how a host is reached, which an Opener does. What a lost
// connection cut short it repeats once, where it is told that this does no harm
// (Host.Again): of all else whoever asked decides.
package hosts

import (
	"context"
	"errors"
	"sync"

	"zxfer/pkg/transport"
)

// Address is a way to a host. Two lines that differ are two connections.
type Address struct {
	Host        string // "[user@]host", "" for this one
	RSH         string // remote shell command, "" = the usual one
	NoBootstrap bool   // do not copy zxfer there
	Plain       bool   // use it without zxfer, by its plain tools
}

// Opener reaches hosts.
type Opener interface {
	// Open returns the Site at the end of a line. It is called again after a
	// connection was lost.
	Open(ctx context.Context, l Address) (Host, error)
	// Relay opens a listener on this host's loopback that forwards every
	// connection to a loopback address of the line's host, through the remote
	// shell (wire ssh). It closes when ctx ends. refused is told, where the host
	// takes none.
	Relay(ctx context.Context, l Address, address string, refused func(error)) (string, error)
}

// Set is the hosts of one command.
type Set struct {
	open Opener

	mu    sync.Mutex
	conns map[Address]*Conn
}

// New returns a Set without hosts.
func New(open Opener) *Set { return &Set{open: open, conns: map[Address]*Conn{}} }

// Get returns a host, "" for this one, as a way leads there. It is not reached by
// that.
func (s *Set) Get(host string, w *transport.Settings) *Conn {
	l := Address{Host: host}
	if host != "" {
		l.RSH, l.NoBootstrap, l.Plain = w.RSH, w.NoBootstrap, w.Wire == transport.NC
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.conns[l]
	if h == nil {
		h = &Conn{address: l, open: s.open, connecting: make(chan struct{}, 1)}
		s.conns[l] = h
	}
	return h
}

// Close ends all connections.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for l, h := range s.conns {
		errs = append(errs, h.close())
		delete(s.conns, l)
	}
	return errors.Join(errs...)
}
