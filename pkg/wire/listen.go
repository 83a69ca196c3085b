package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"zxfer/pkg/fault"
)

// maxPending bounds the connections that have not proved themselves yet;
// more are dropped at once.
const maxPending = 64

// maxStreams is the largest number of connections of a link.
const maxStreams = 64

// defaultDeadline is how long both ends wait for each other.
const defaultDeadline = 30 * time.Second

// Listener waits for the connections of one transfer, exactly as many as were
// offered, and drops everybody else.
type Listener struct {
	tcp    *net.TCPListener
	offer  Offer
	ticket Ticket
	tls    *tls.Config
	log    func(string)
	peer   netip.Addr
	stop   func() bool
}

// Listen opens a listener as offered. It closes when ctx ends, when the
// offer's deadline passes or when its connections are there. log is told of
// dropped strangers; it may be nil.
//
// An address that this host does not have, or a port range without a free
// port, is a *fault.Error with a hint.
func Listen(ctx context.Context, o Offer, log func(string)) (*Listener, error) {
	if log == nil {
		log = func(string) {}
	}
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	o.Streams = max(o.Streams, 1)
	if o.Streams > maxStreams {
		return nil, fault.Usagef("", "%d connections asked for, at most %d are possible", o.Streams, maxStreams)
	}
	if modeByte[o.Mode] == 0 {
		return nil, fault.Usagef("", "unknown wire %q", o.Mode)
	}
	l := &Listener{offer: o, log: log}
	if o.Peer != "" {
		peer, err := netip.ParseAddr(o.Peer)
		if err != nil {
			return nil, fmt.Errorf("peer %q is not an IP address", o.Peer)
		}
		l.peer = peer.Unmap()
	}
	if err := l.makeTicket(); err != nil {
		return nil, err
	}
	if err := l.bind(); err != nil {
		return nil, err
	}
	host := o.Address
	if o.Advertise != "" {
		host = o.Advertise
	}
	_, port, err := net.SplitHostPort(l.tcp.Addr().String())
	if err != nil {
		return nil, err
	}
	l.ticket.Address = net.JoinHostPort(host, port)
	if err := l.tcp.SetDeadline(time.Now().Add(o.Deadline)); err != nil {
		return nil, err
	}
	// A listener that nobody ever accepts on must not stay open either.
	timer := time.AfterFunc(o.Deadline, func() { _ = l.tcp.Close() })
	stopCtx := context.AfterFunc(ctx, func() { _ = l.tcp.Close() })
	l.stop = func() bool { timer.Stop(); return stopCtx() }
	return l, nil
}

func (l *Listener) makeTicket() error {
	secret, session := make([]byte, 32), make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	if _, err := rand.Read(session); err != nil {
		return err
	}
	l.ticket = Ticket{
		Mode: l.offer.Mode, Session: hex.EncodeToString(session), Secret: secret,
		Streams: l.offer.Streams, Window: l.offer.Window, Deadline: l.offer.Deadline,
	}
	if l.offer.Mode != TLS {
		return nil
	}
	server, err := identity("zxfer listener")
	if err != nil {
		return err
	}
	client, err := identity("zxfer dialer")
	if err != nil {
		return err
	}
	key, err := x509.MarshalECPrivateKey(client.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		return err
	}
	l.tls = pinned(server, pinOf(client.Certificate[0]))
	l.ticket.ServerPin = pinOf(server.Certificate[0])
	l.ticket.ClientCert, l.ticket.ClientKey = client.Certificate[0], key
	return nil
}

// bind listens on any port, or on a free one of the range.
func (l *Listener) bind() error {
	addr, err := netip.ParseAddr(l.offer.Address)
	if err != nil {
		return fault.Usagef("give an IP address of the host that listens", "cannot listen on %q: not an IP address", l.offer.Address)
	}
	ports := []int{0}
	if l.offer.PortLow > 0 {
		ports = ports[:0]
		for p := l.offer.PortLow; p <= l.offer.PortHigh; p++ {
			ports = append(ports, p)
		}
		mrand.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	}
	for _, p := range ports {
		l.tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, uint16(p))))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fault.Failf("--data-address names an address of the host that listens", "cannot listen on %s: this host has no such address", addr)
	case errors.Is(err, syscall.EADDRINUSE):
		return fault.Failf("widen --port-range", "cannot listen on %s: every port of %d-%d is in use", addr, l.offer.PortLow, l.offer.PortHigh)
	case errors.Is(err, syscall.EACCES):
		return fault.Failf("choose ports above 1023 with --port-range", "cannot listen on %s, ports %d-%d: %w", addr, l.offer.PortLow, l.offer.PortHigh, err)
	}
	return fmt.Errorf("listen on %s: %w", addr, err)
}

// Ticket is what the dialling end needs.
func (l *Listener) Ticket() Ticket { return l.ticket }

// Close ends the listener. It may be called more than once.
func (l *Listener) Close() error {
	l.stop()
	if err := l.tcp.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Accept returns the Link once all its connections have proved themselves,
// and closes the listener. Handshakes run side by side, so that a stranger
// who says nothing delays nobody.
func (l *Listener) Accept(ctx context.Context) (*Link, error) {
	defer l.Close()
	ctx, cancel := context.WithTimeout(ctx, l.offer.Deadline)
	defer cancel()
	unblock := context.AfterFunc(ctx, func() { _ = l.tcp.Close() })
	defer unblock()

	ready := make(chan *Conn)
	var pending sync.WaitGroup
	slots := make(chan struct{}, maxPending)
	accepting := make(chan error, 1)
	go func() {
		for {
			c, err := l.tcp.AcceptTCP()
			if err != nil {
				accepting <- err
				return
			}
			select {
			case slots <- struct{}{}:
			default:
				l.drop(c, "too many connections wait for their handshake")
				continue
			}
			pending.Add(1)
			go func() {
				defer pending.Done()
				defer func() { <-slots }()
				l.handshake(ctx, c, ready)
			}()
		}
	}()
	conns := make([]*Conn, l.offer.Streams)
	var err error
	for have := 0; have < len(conns) && err == nil; {
		select {
		case c := <-ready:
			if conns[c.index] != nil {
				l.drop(c.rw, fmt.Sprintf("connection %d is there already", c.index))
				continue
			}
			conns[c.index] = c
			have++
		case err = <-accepting:
			accepting <- err
		}
	}
	_ = l.tcp.Close() // ends the accepting goroutine
	<-accepting
	cancel() // and the handshakes of strangers
	go func() { pending.Wait(); close(ready) }()
	for c := range ready {
		l.drop(c.rw, "all connections are there already")
	}
	if err != nil {
		closeAll(conns)
		if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) || errors.Is(err, net.ErrClosed) && !errors.Is(cause, context.Canceled) {
			return nil, fmt.Errorf("%w to %s within %s", ErrNobody, l.ticket.Address, l.offer.Deadline)
		}
		return nil, fmt.Errorf("listen on %s: %w", l.ticket.Address, err)
	}
	return newLink(l.offer.Mode, conns), nil
}

// handshake hands the connection over once it has proved itself.
func (l *Listener) handshake(ctx context.Context, c *net.TCPConn, ready chan<- *Conn) {
	if peer, err := netip.ParseAddrPort(c.RemoteAddr().String()); l.peer.IsValid() && (err != nil || peer.Addr().Unmap() != l.peer) {
		l.drop(c, fmt.Sprintf("only %s may connect", l.peer))
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	conn, err := l.authenticate(c)
	if !stop() && err == nil {
		return // closed under our hands: the transfer is full or over
	}
	if err != nil {
		l.drop(c, err.Error())
		return
	}
	ready <- conn
}

func (l *Listener) authenticate(c *net.TCPConn) (*Conn, error) {
	if err := tune(c, l.offer.Window); err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	var rw net.Conn = c
	if l.tls != nil {
		t := tls.Server(c, l.tls)
		if err := t.Handshake(); err != nil {
			return nil, fmt.Errorf("%w: %w", errStranger, err)
		}
		rw = t
	}
	conn, err := welcome(rw, &l.ticket)
	if err != nil {
		return nil, err
	}
	conn.tcp = c
	return conn, c.SetDeadline(time.Time{})
}

func (l *Listener) drop(c net.Conn, why string) {
	_ = c.Close() // a stranger
	l.log(fmt.Sprintf("dropped a connection from %s to %s: %s", c.RemoteAddr(), l.ticket.Address, why))
}

func closeAll(conns []*Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.rw.Close()
		}
	}
}
