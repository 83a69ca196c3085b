package tcp

import (
	"context"
	"crypto/rand"
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
	tcp        Acceptor
	ticket     Ticket
	handshake  accepter
	peer       netip.Addr
	log        func(string)
	stopTimers func() // stops the deadline and the watch on ctx
	handshakes sync.WaitGroup

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
func Listen(ctx context.Context, s Stack, o Offer, log func(msg string)) (*Listener, error) {
	return listenFor(ctx, s, o, log, (*session).accepter, handshakeTimeout)
}

// listenFor opens a listener with another handshake, whose parts may each take as long as limit.
func listenFor(ctx context.Context, s Stack, o Offer, log func(msg string), handshake func(*session) (accepter, error), limit time.Duration) (*Listener, error) {
	o.Streams = max(o.Streams, 1)
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	l := &Listener{log: log, handshakeLimit: limit, conns: make([]*Conn, o.Streams), complete: make(chan struct{})}
	if log == nil {
		l.log = func(string) {}
	}
	if o.Peer != "" {
		// sshd adds a zone to a link-local address.
		l.peer = netip.MustParseAddr(o.Peer).Unmap().WithZone("")
	}
	l.ticket = newTicket(o)
	session, err := l.ticket.check()
	if err != nil {
		return nil, err
	}
	if l.handshake, err = handshake(session); err != nil {
		return nil, err
	}
	if l.tcp, err = s.Listen(ctx, o); err != nil {
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

// newTicket returns a ticket without an address.
func newTicket(o Offer) Ticket {
	secret, id := make([]byte, secretSize), make([]byte, sessionSize)
	_, _ = rand.Read(secret) // never fails
	_, _ = rand.Read(id)
	return Ticket{
		Mode: o.Mode, Session: hex.EncodeToString(id), Secret: secret,
		Streams: o.Streams, Socket: o.Socket, Deadline: o.Deadline,
	}
}

// timeoutError returns the error of an expired deadline.
func (l *Listener) timeoutError(after time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fault.Failf(dialHint, "%w to %s within %s: %d of %d connections made, %d unauthenticated clients dropped",
		ErrNoPeer, l.ticket.Address, after, l.accepted, len(l.conns), l.dropped)
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
		return nil, errors.New("the listener already accepted its link")
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

// serve accepts connections until the listener closes. Handshakes run concurrently, so a silent
// client delays nobody.
func (l *Listener) serve() {
	for {
		c, err := l.tcp.Accept()
		if err != nil {
			select {
			case <-l.complete:
				return
			case <-time.After(50 * time.Millisecond): // out of file descriptors
				continue
			}
		}
		l.admit(c)
	}
}

// admit starts a handshake, unless only another address may connect.
func (l *Listener) admit(c Socket) {
	if from, ok := c.RemoteAddr().(*net.TCPAddr); l.peer.IsValid() && (!ok || from.AddrPort().Addr().Unmap().WithZone("") != l.peer) {
		l.drop(c, fmt.Sprintf("only %s may connect", l.peer))
		return
	}
	l.Take(c)
}

// Take starts a handshake. Its connection may also be one that did not come through the listening socket, such as a
// stream of the remote shell.
func (l *Listener) Take(c Socket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.Close()
		return
	}
	l.unnamed.add(c)
	l.handshakes.Go(func() { l.handle(c) })
}

// handle runs one handshake and stores the connection.
func (l *Listener) handle(c Socket) {
	conn, err := l.authenticate(c)
	l.mu.Lock()
	l.unnamed.remove(c)
	l.named.remove(c)
	switch {
	case err != nil:
	case l.closed:
		err = errors.New("all connections exist already")
	case l.conns[conn.stream] != nil:
		err = fmt.Errorf("stream %d exists already", conn.stream)
	default:
		l.conns[conn.stream] = conn
		l.accepted++
	}
	all := l.accepted == len(l.conns)
	l.mu.Unlock()
	if err != nil {
		l.drop(c, err.Error())
	} else if all {
		l.finish(nil)
	}
}

func (l *Listener) authenticate(c Socket) (*Conn, error) {
	if err := c.SetDeadline(time.Now().Add(l.handshakeLimit)); err != nil {
		return nil, err
	}
	conn, err := l.handshake(c, func() { l.sessionNamed(c) })
	if err != nil {
		return nil, err
	}
	return conn, c.SetDeadline(time.Time{})
}

// sessionNamed moves a connection to the pending ones that have named the session.
func (l *Listener) sessionNamed(c Socket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unnamed.remove(c) { // false if it was just dropped
		l.named.add(c)
		_ = c.SetDeadline(time.Now().Add(l.handshakeLimit)) // if this fails, so does the next read
	}
}

// drop closes an unauthenticated connection and logs the reason.
func (l *Listener) drop(c Socket, why string) {
	_ = c.Close()
	l.mu.Lock()
	l.dropped++
	n := l.dropped
	l.mu.Unlock()
	switch {
	case n < maxLogged:
		l.log(fmt.Sprintf("%s: dropped a connection from %s: %s", l.ticket.Address, c.RemoteAddr(), why))
	case n == maxLogged:
		l.log(fmt.Sprintf("%s: dropped %d connections; zxfer logs no further ones", l.ticket.Address, n))
	}
}

// pending holds connections whose handshakes run, oldest first.
type pending []Socket

// add adds a connection. If there are maxPending already, it drops the oldest.
func (p *pending) add(c Socket) {
	if len(*p) >= maxPending {
		_ = (*p)[0].Close() // its handshake then fails and is logged
		*p = (*p)[1:]
	}
	*p = append(*p, c)
}

// remove removes a connection and reports whether it was pending.
func (p *pending) remove(c Socket) bool {
	i := slices.Index(*p, c)
	if i >= 0 {
		*p = slices.Delete(*p, i, i+1)
	}
	return i >= 0
}
