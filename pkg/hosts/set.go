package hosts

import (
	"context"
	"errors"
	"sync"

	"zxfer/pkg/transport"
)

// Set holds the connections to the hosts of one command.
type Set struct {
	open Opener

	mu    sync.Mutex
	conns map[Address]*Conn
}

// New returns an empty Set.
func New(open Opener) *Set { return &Set{open: open, conns: map[Address]*Conn{}} }

// Get returns the connection to a host, "" for the local host. It does not connect.
func (s *Set) Get(host string, w *transport.Settings) *Conn {
	l := Address{Host: host}
	if host != "" {
		l.RSH, l.NoBootstrap, l.NC = w.RSH, w.NoBootstrap, w.Wire == transport.NC
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.conns[l]
	if h == nil {
		h = &Conn{address: l, open: s.open, connecting: make(chan struct{}, 1), askingFacts: make(chan struct{}, 1), askingSystem: make(chan struct{}, 1)}
		s.conns[l] = h
	}
	return h
}

// Close closes all connections.
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

// Address says how to reach a host. Two different addresses are two connections.
type Address struct {
	Host        string // "[user@]host", "" for the local host
	RSH         string // remote shell command, "" = default
	NoBootstrap bool   // do not copy zxfer to the host
	NC          bool   // use zfs(8) and nc there, without zxfer
}

// Opener connects to hosts.
type Opener interface {
	// Open connects to the host at an address. It is called again after a connection was lost.
	Open(ctx context.Context, l Address) (Host, error)
}
