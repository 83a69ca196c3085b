// Package tcptest simulates a network with a delay and unlimited bandwidth. In a bubble of
// testing/synctest, elapsed time divided by the round-trip time is the number of round trips.
package tcptest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// Network is a network between hosts. Every byte arrives OneWay after it was sent. With Refuses, hosts
// refuse connections, except on the loopback interface.
type Network struct {
	OneWay  time.Duration
	Refuses bool

	mu        sync.Mutex
	ports     uint16
	listeners map[netip.AddrPort]*listener
	open      map[*Conn]bool
}

// RTT returns the round-trip time.
func (n *Network) RTT() time.Duration { return 2 * n.OneWay }

// Pipe returns both ends of a connection.
func (n *Network) Pipe() (*Conn, *Conn) { return n.pipe(netip.AddrPort{}, netip.AddrPort{}) }

func (n *Network) pipe(a, b netip.AddrPort) (*Conn, *Conn) {
	forth, back := newDirection(n.OneWay), newDirection(n.OneWay)
	near, far := &Conn{net: n, in: back, out: forth, local: a, remote: b}, &Conn{net: n, in: forth, out: back, local: b, remote: a}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open == nil {
		n.open = map[*Conn]bool{}
	}
	n.open[near], n.open[far] = true, true
	return near, far
}

// Open returns how many listeners and ends of connections are open at an address.
func (n *Network) Open(address string) (open int) {
	at := netip.MustParseAddr(address)
	n.mu.Lock()
	defer n.mu.Unlock()
	for a := range n.listeners {
		if a.Addr() == at {
			open++
		}
	}
	for c := range n.open {
		if c.local.Addr() == at {
			open++
		}
	}
	return open
}

// Host returns the TCP stack of a host with an address.
func (n *Network) Host(address string) tcp.Stack { return stack{n, netip.MustParseAddr(address)} }

type stack struct {
	net     *Network
	address netip.Addr
}

func (s stack) port() netip.AddrPort {
	s.net.ports++
	return netip.AddrPortFrom(s.address, 1024+s.net.ports)
}

// Listen opens a listener at the address of this host, or at a loopback address.
func (s stack) Listen(_ context.Context, o tcp.Offer) (tcp.Acceptor, error) {
	address, err := netip.ParseAddr(o.Address)
	if err != nil || address != s.address && !address.IsLoopback() {
		return nil, fmt.Errorf("%s has no address %s", s.address, o.Address)
	}
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	l := &listener{net: s.net, at: netip.AddrPortFrom(address, s.port().Port()), arrivals: make(chan *Conn, 64), closed: make(chan struct{})}
	if s.net.listeners == nil {
		s.net.listeners = map[netip.AddrPort]*listener{}
	}
	s.net.listeners[l.at] = l
	return l, nil
}

// Dial takes one round trip. The listener accepts after half of it.
func (s stack) Dial(ctx context.Context, address string, _ transport.Socket) (tcp.Socket, error) {
	if err := sleep(ctx, s.net.OneWay); err != nil {
		return nil, err
	}
	own := s.connect(address)
	if err := sleep(ctx, s.net.OneWay); err != nil {
		if own != nil {
			_ = own.Close() // never fails
		}
		return nil, err
	}
	if own == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return own, nil
}

// connect returns a connection that a listener will accept, or nil if there is no listener.
func (s stack) connect(address string) *Conn {
	at, err := netip.ParseAddrPort(address)
	s.net.mu.Lock()
	l, here := s.net.listeners[at], s.port()
	s.net.mu.Unlock()
	if err != nil || l == nil || s.net.Refuses && !at.Addr().IsLoopback() {
		return nil
	}
	own, there := s.net.pipe(here, at)
	l.arrivals <- there
	select {
	case <-l.closed:
		l.drop()
	default:
	}
	return own
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type listener struct {
	net      *Network
	at       netip.AddrPort
	arrivals chan *Conn
	once     sync.Once
	closed   chan struct{}
}

func (l *listener) Accept() (tcp.Socket, error) {
	select {
	case c := <-l.arrivals:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

func (l *listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, l.at)
		l.net.mu.Unlock()
		close(l.closed)
		l.drop()
	})
	return nil
}

// drop closes the connections that nobody accepted.
func (l *listener) drop() {
	for {
		select {
		case c := <-l.arrivals:
			_ = c.Close() // never fails
		default:
			return
		}
	}
}

// Conn is an end of a connection. It is a tcp.Socket.
type Conn struct {
	net           *Network
	in, out       *direction
	local, remote netip.AddrPort
}

var _ tcp.Socket = (*Conn)(nil)

func (c *Conn) Read(p []byte) (int, error)         { return c.in.read(p) }
func (c *Conn) Write(p []byte) (int, error)        { return c.out.write(p) }
func (c *Conn) CloseWrite() error                  { c.out.end(nil); return nil }
func (c *Conn) LocalAddr() net.Addr                { return net.TCPAddrFromAddrPort(c.local) }
func (c *Conn) RemoteAddr() net.Addr               { return net.TCPAddrFromAddrPort(c.remote) }
func (c *Conn) SetReadDeadline(t time.Time) error  { c.in.setDeadline(t); return nil }
func (c *Conn) SetWriteDeadline(t time.Time) error { return nil } // writes never wait
func (c *Conn) SetDeadline(t time.Time) error      { return c.SetReadDeadline(t) }

// SyscallConn fails, because there is no socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// Close closes both directions. The peer reads what was sent before.
func (c *Conn) Close() error {
	c.out.end(nil)
	c.in.end(net.ErrClosed)
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	delete(c.net.open, c)
	return nil
}

// direction carries bytes one way.
type direction struct {
	delay time.Duration

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced after each change
	packets  []packet
	ended    bool
	err      error // of reads, immediately; nil = io.EOF after all packets
	deadline time.Time
}

// packet holds the data of one write. Without data, it marks the end.
type packet struct {
	due  time.Time
	data []byte
}

func newDirection(delay time.Duration) *direction {
	return &direction{delay: delay, changed: make(chan struct{})}
}

// change runs f with the lock held, and wakes the reader.
func (d *direction) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *direction) write(p []byte) (n int, err error) {
	d.change(func() {
		if d.ended {
			err = net.ErrClosed
			return
		}
		n = len(p)
		d.packets = append(d.packets, packet{time.Now().Add(d.delay), append([]byte{}, p...)})
	})
	return n, err
}

// end ends the direction after what was written or, with an error, immediately.
func (d *direction) end(err error) {
	d.change(func() {
		if d.err == nil {
			d.err = err
		}
		if !d.ended {
			d.ended = true
			d.packets = append(d.packets, packet{due: time.Now().Add(d.delay)})
		}
	})
}

func (d *direction) setDeadline(t time.Time) { d.change(func() { d.deadline = t }) }

func (d *direction) read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, wait, changed, err := d.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		var due <-chan time.Time
		if !wait.IsZero() {
			due = time.After(time.Until(wait))
		}
		select {
		case <-due:
		case <-changed:
		}
	}
}

// take reads the data that has arrived. Otherwise it returns when to try again; zero = after a change.
func (d *direction) take(p []byte) (n int, wait time.Time, changed <-chan struct{}, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch {
	case d.err != nil:
		return 0, wait, nil, d.err
	case !d.deadline.IsZero() && !now.Before(d.deadline):
		return 0, wait, nil, os.ErrDeadlineExceeded
	}
	for n < len(p) && len(d.packets) > 0 && !d.packets[0].due.After(now) {
		first := &d.packets[0]
		if first.data == nil { // the end
			if n == 0 {
				return 0, wait, nil, io.EOF
			}
			return n, wait, nil, nil
		}
		k := copy(p[n:], first.data)
		n += k
		if first.data = first.data[k:]; len(first.data) == 0 {
			d.packets = d.packets[1:]
		}
	}
	if len(d.packets) > 0 {
		wait = d.packets[0].due
	}
	if !d.deadline.IsZero() && (wait.IsZero() || d.deadline.Before(wait)) {
		wait = d.deadline
	}
	return n, wait, d.changed, nil
}
