package tcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"zxfer/pkg/fault"
)

const (
	// MaxStreams is the largest number of connections of a Link.
	MaxStreams = 64

	// maxPending bounds the connections that have not named the session, and
	// apart from them those that have, but have not proved themselves. The
	// oldest is dropped for a new one: a peer needs only some round trips, a
	// stranger who says nothing becomes the oldest. A flood thus drops a peer
	// only as long as that sees it and tries again: once the peer was told
	// the listener's proof it takes its own for accepted, and only who reads
	// the link can crowd it out there.
	maxPending = 64

	// maxLogged bounds the strangers that are logged one by one.
	maxLogged = 32

	// defaultDeadline is how long both ends wait for each other unless told.
	defaultDeadline = 30 * time.Second

	// acceptGrace is added to the listener's deadline, so that the dialer,
	// which knows more about what went wrong, speaks first.
	acceptGrace = 2 * time.Second
)

// Listener waits for the connections of one Link and drops everybody else.
type Listener struct {
	tcp     *net.TCPListener
	ticket  Ticket
	session session
	config  *tls.Config
	bare    bool // the peer knows no handshake, see Bare
	peer    netip.Addr
	log     func(string)
	release func() // stops what would close the listener later
	greets  sync.WaitGroup

	handshake time.Duration // limit for one handshake

	mu       sync.Mutex
	silent   pending // have not named the session
	named    pending // have named it
	conns    []*Conn // by stream
	have     int
	dropped  int
	over     bool
	taken    bool
	err      error
	complete chan struct{} // closed when over
}

// Listen opens a listener as offered and starts to welcome connections. It
// closes when its connections are there, when the offer's deadline passes or
// when ctx ends. log is told of dropped strangers; it may be nil and is called
// from several goroutines.
//
// An address that this host does not have, and a port range without a free
// port, are *fault.Errors with a hint.
func Listen(ctx context.Context, o Offer, log func(msg string)) (*Listener, error) {
	return listenFor(ctx, o, log, false, handshakeTimeout)
}

// listenFor opens a listener. It drops a connection whose handshake takes longer than
// handshake.
func listenFor(ctx context.Context, o Offer, log func(msg string), bare bool, handshake time.Duration) (*Listener, error) {
	o.Streams = max(o.Streams, 1)
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	l := &Listener{log: log, bare: bare, handshake: handshake, conns: make([]*Conn, o.Streams), complete: make(chan struct{})}
	if log == nil {
		l.log = func(string) {}
	}
	if o.Peer != "" {
		// What sshd says of a link-local address has a zone.
		l.peer = netip.MustParseAddr(o.Peer).Unmap().WithZone("")
	}
	if err := l.makeTicket(o); err != nil {
		return nil, err
	}
	var err error
	if l.tcp, err = o.bind(ctx); err != nil {
		return nil, err
	}
	l.ticket.Address = l.tcp.Addr().String()
	l.mu.Lock() // ctx may have ended already
	timer := time.AfterFunc(o.Deadline+acceptGrace, func() { l.finish(l.nobody(o.Deadline)) })
	stop := context.AfterFunc(ctx, func() { l.finish(context.Cause(ctx)) })
	l.release = func() { timer.Stop(); stop() }
	l.mu.Unlock()
	go l.serve()
	return l, nil
}

func (l *Listener) makeTicket(o Offer) (err error) {
	secret, id := make([]byte, secretSize), make([]byte, sessionSize)
	_, _ = rand.Read(secret) // never fails
	_, _ = rand.Read(id)
	l.ticket = Ticket{
		Mode: o.Mode, Session: hex.EncodeToString(id), Secret: secret,
		Streams: o.Streams, Socket: o.Socket, Deadline: o.Deadline,
	}
	if o.Mode == TLS {
		if l.config, err = l.ticket.setIdentities(); err != nil {
			return err
		}
	}
	l.session, err = l.ticket.session()
	return err
}

// nobody is the error of a deadline that passed.
func (l *Listener) nobody(after time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fault.Failf(dialHint, "%w to %s within %s: %d of %d connections were made, %d strangers were dropped",
		ErrNobody, l.ticket.Address, after, l.have, len(l.conns), l.dropped)
}

// Ticket is what the dialling end needs.
func (l *Listener) Ticket() Ticket { return l.ticket }

// Failed tells whether the listener has ended without its connections.
func (l *Listener) Failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// Accept returns the Link once all its connections have proved themselves. It
// can succeed once. When ctx ends, the listener stays open.
func (l *Listener) Accept(ctx context.Context) (*Link, error) {
	select {
	case <-l.complete:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return nil, l.err
	case l.taken:
		return nil, errors.New("the listener's link was accepted already")
	}
	l.taken = true
	return newLink(l.ticket.Mode, l.ticket.Socket, l.conns), nil
}

// Close ends the listener and the connections that were not accepted, and
// waits for all that it started. It may be called more than once.
func (l *Listener) Close() error {
	l.finish(net.ErrClosed)
	l.mu.Lock()
	if !l.taken {
		l.taken = true
		closeAll(l.conns)
	}
	l.mu.Unlock()
	l.greets.Wait()
	return nil
}

// finish closes the listener; err is nil when it is because all is there.
func (l *Listener) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.over, l.err = true, err
	l.release()
	_ = l.tcp.Close() // it had but to listen
	for _, c := range append(l.silent, l.named...) {
		_ = c.Close() // strangers
	}
	if err != nil {
		closeAll(l.conns)
	}
	close(l.complete)
}

// serve accepts until the listener closes. Handshakes run side by side: a
// stranger who says nothing delays nobody.
func (l *Listener) serve() {
	for {
		c, err := l.tcp.AcceptTCP()
		if err != nil {
			select {
			case <-l.complete:
				return
			case <-time.After(50 * time.Millisecond): // out of descriptors
				continue
			}
		}
		l.admit(c)
	}
}

// admit starts a handshake, unless the address is not the peer's.
func (l *Listener) admit(c *net.TCPConn) {
	if from, ok := c.RemoteAddr().(*net.TCPAddr); l.peer.IsValid() && (!ok || from.AddrPort().Addr().Unmap().WithZone("") != l.peer) {
		l.drop(c, fmt.Sprintf("only %s may connect", l.peer))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		_ = c.Close() // too late
		return
	}
	l.silent.add(c)
	l.greets.Go(func() { l.greet(c) })
}

// introduced notes that a connection has named the session.
func (l *Listener) introduced(c *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent.remove(c) { // else it was dropped just now
		l.named.add(c)
		_ = c.SetDeadline(time.Now().Add(l.handshake)) // closed: the next read says so
	}
}

// pending are connections whose handshakes are under way, oldest first.
type pending []*net.TCPConn

// add adds a connection, and drops the oldest where there are too many.
func (p *pending) add(c *net.TCPConn) {
	if len(*p) >= maxPending {
		_ = (*p)[0].Close() // its handshake fails and is logged
		*p = (*p)[1:]
	}
	*p = append(*p, c)
}

// remove tells whether the connection was there.
func (p *pending) remove(c *net.TCPConn) bool {
	i := slices.Index(*p, c)
	if i >= 0 {
		*p = slices.Delete(*p, i, i+1)
	}
	return i >= 0
}

// greet runs one handshake and files the connection.
func (l *Listener) greet(c *net.TCPConn) {
	conn, err := l.authenticate(c)
	l.mu.Lock()
	l.silent.remove(c)
	l.named.remove(c)
	switch {
	case err != nil:
	case l.over:
		err = errors.New("all connections are there")
	case l.conns[conn.stream] != nil:
		err = fmt.Errorf("stream %d is there already", conn.stream)
	default:
		l.conns[conn.stream] = conn
		l.have++
	}
	all := l.have == len(l.conns)
	l.mu.Unlock()
	if err != nil {
		l.drop(c, err.Error())
	} else if all {
		l.finish(nil)
	}
}

func (l *Listener) authenticate(c *net.TCPConn) (*Conn, error) {
	if err := c.SetDeadline(time.Now().Add(l.handshake)); err != nil {
		return nil, err
	}
	if l.bare {
		conn, err := l.authenticateWithoutSession(c)
		if err != nil {
			return nil, err
		}
		return conn, c.SetDeadline(time.Time{})
	}
	var rw net.Conn = c
	if l.config != nil {
		t := tls.Server(newFrameBuffer(c), l.config)
		if err := t.Handshake(); err != nil {
			return nil, err
		}
		rw = t
	}
	stream, send, receive, err := l.session.welcome(rw, func() { l.introduced(c) })
	if err != nil {
		return nil, err
	}
	return newConn(stream, l.ticket.Mode, c, rw, send, receive), c.SetDeadline(time.Time{})
}

// drop closes a stranger's connection and logs why.
func (l *Listener) drop(c *net.TCPConn, why string) {
	_ = c.Close() // a stranger
	l.mu.Lock()
	l.dropped++
	n := l.dropped
	l.mu.Unlock()
	switch {
	case n < maxLogged:
		l.log(fmt.Sprintf("%s: dropped a connection from %s: %s", l.ticket.Address, c.RemoteAddr(), why))
	case n == maxLogged:
		l.log(fmt.Sprintf("%s: dropped %d connections so far; further ones are not logged", l.ticket.Address, n))
	}
}
