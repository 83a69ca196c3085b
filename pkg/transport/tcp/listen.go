package tcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
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
	unauthenticated    bool // the peer knows no handshake, see Bare
	peer    netip.Addr
	log     func(string)
	stopTimers func() // stops what would close the listener later
	handshakes  sync.WaitGroup

	handshakeLimit time.Duration // limit for one handshake

	mu       sync.Mutex
	unnamed   pending // have not named the session
	named    pending // have named it
	conns    []*Conn // by stream
	accepted     int
	dropped  int
	closed     bool
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
func listenFor(ctx context.Context, o Offer, log func(msg string), unauthenticated bool, handshake time.Duration) (*Listener, error) {
	o.Streams = max(o.Streams, 1)
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	l := &Listener{log: log, unauthenticated: unauthenticated, handshakeLimit: handshake, conns: make([]*Conn, o.Streams), complete: make(chan struct{})}
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
	timer := time.AfterFunc(o.Deadline+acceptGrace, func() { l.finish(l.timeoutError(o.Deadline)) })
	stop := context.AfterFunc(ctx, func() { l.finish(context.Cause(ctx)) })
	l.stopTimers = func() { timer.Stop(); stop() }
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
		if l.config, err = l.ticket.makeIdentities(); err != nil {
			return err
		}
	}
	l.session, err = l.ticket.session()
	return err
}

// timeoutError is the error of a deadline that passed.
func (l *Listener) timeoutError(after time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fault.Failf(dialHint, "%w to %s within %s: %d of %d connections were made, %d strangers were dropped",
		ErrNobody, l.ticket.Address, after, l.accepted, len(l.conns), l.dropped)
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
	l.handshakes.Wait()
	return nil
}

// finish closes the listener; err is nil when it is because all is there.
func (l *Listener) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed, l.err = true, err
	l.stopTimers()
	_ = l.tcp.Close() // it had but to listen
	for _, c := range append(l.unnamed, l.named...) {
		_ = c.Close() // strangers
	}
	if err != nil {
		closeAll(l.conns)
	}
	close(l.complete)
}
