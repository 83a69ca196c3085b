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

	// maxPending bounds the connections that have not named the session, and separately those
	// that have but are not yet authenticated. A new one displaces the oldest. The peer needs
	// only a few round trips, while silent clients become the oldest. A dropped peer retries
	// until it has seen the listener's proof. After that, only an attacker who reads the link,
	// and so knows the session, can displace it.
	maxPending = 64

	// maxLogged bounds the dropped connections that are logged one by one.
	maxLogged = 32

	// defaultDeadline is how long both ends wait for each other by default.
	defaultDeadline = 30 * time.Second

	// acceptGrace extends the listener's deadline, so that the dialer's error, which says more,
	// comes first.
	acceptGrace = 2 * time.Second
)

// Listener waits for the connections of one Link and drops all others.
type Listener struct {
	tcp             *net.TCPListener
	ticket          Ticket
	session         session
	config          *tls.Config
	unauthenticated bool // the peer uses no handshake, see Unauthenticated
	peer            netip.Addr
	log             func(string)
	stopTimers      func() // stops the deadline and the watch on ctx
	handshakes      sync.WaitGroup

	handshakeLimit time.Duration // timeout of one handshake

	mu       sync.Mutex
	unnamed  pending // have not named the session
	named    pending // have named the session
	conns    []*Conn // by stream
	accepted int
	dropped  int
	closed   bool
	taken    bool
	err      error
	complete chan struct{} // closed when closed is set
}

// Listen opens a listener and accepts connections. It closes once the link is complete, when
// the offer's deadline expires or when ctx ends. log is called for dropped connections, from
// several goroutines; it may be nil.
//
// If this host lacks the address, or no port of the range is free, the error is a *fault.Error
// with a hint.
func Listen(ctx context.Context, o Offer, log func(msg string)) (*Listener, error) {
	return listenFor(ctx, o, log, false, handshakeTimeout)
}

// listenFor opens a listener that drops connections whose handshake takes longer than
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
		// sshd adds a zone to a link-local address.
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

// timeoutError returns the error of an expired deadline.
func (l *Listener) timeoutError(after time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fault.Failf(dialHint, "%w to %s within %s: %d of %d connections were made, %d strangers were dropped",
		ErrNobody, l.ticket.Address, after, l.accepted, len(l.conns), l.dropped)
}

// Ticket returns the dialer's ticket.
func (l *Listener) Ticket() Ticket { return l.ticket }

// Failed reports whether the listener closed before the link was complete.
func (l *Listener) Failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// Accept returns the Link once all its connections are authenticated. It can succeed only once.
// If ctx ends, the listener stays open.
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

// Close closes the listener and connections that were not accepted, and waits for its
// goroutines. It may be called more than once.
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

// finish closes the listener. err is nil if the link is complete.
func (l *Listener) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed, l.err = true, err
	l.stopTimers()
	_ = l.tcp.Close() // it only listened
	for _, c := range append(l.unnamed, l.named...) {
		_ = c.Close() // unauthenticated
	}
	if err != nil {
		closeAll(l.conns)
	}
	close(l.complete)
}
