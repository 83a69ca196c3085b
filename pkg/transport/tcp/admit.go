package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// serve accepts connections until the listener closes. Handshakes run concurrently, so a silent
// client delays nobody.
func (l *Listener) serve() {
	for {
		c, err := l.tcp.AcceptTCP()
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
func (l *Listener) admit(c *net.TCPConn) {
	if from, ok := c.RemoteAddr().(*net.TCPAddr); l.peer.IsValid() && (!ok || from.AddrPort().Addr().Unmap().WithZone("") != l.peer) {
		l.drop(c, fmt.Sprintf("only %s may connect", l.peer))
		return
	}
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
func (l *Listener) handle(c *net.TCPConn) {
	conn, err := l.authenticate(c)
	l.mu.Lock()
	l.unnamed.remove(c)
	l.named.remove(c)
	switch {
	case err != nil:
	case l.closed:
		err = errors.New("all connections are there")
	case l.conns[conn.stream] != nil:
		err = fmt.Errorf("stream %d is there already", conn.stream)
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

func (l *Listener) authenticate(c *net.TCPConn) (*Conn, error) {
	if err := c.SetDeadline(time.Now().Add(l.handshakeLimit)); err != nil {
		return nil, err
	}
	if l.unauthenticated {
		conn, err := l.checkSecret(c)
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
	stream, send, receive, err := l.session.acceptHandshake(rw, func() { l.sessionNamed(c) })
	if err != nil {
		return nil, err
	}
	return newConn(stream, l.ticket.Mode, c, rw, send, receive), c.SetDeadline(time.Time{})
}

// sessionNamed moves a connection to the pending ones that have named the session.
func (l *Listener) sessionNamed(c *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unnamed.remove(c) { // false if it was just dropped
		l.named.add(c)
		_ = c.SetDeadline(time.Now().Add(l.handshakeLimit)) // if this fails, so does the next read
	}
}

// drop closes an unauthenticated connection and logs the reason.
func (l *Listener) drop(c *net.TCPConn, why string) {
	_ = c.Close()
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

// pending holds connections whose handshakes run, oldest first.
type pending []*net.TCPConn

// add adds a connection. If there are maxPending already, it drops the oldest.
func (p *pending) add(c *net.TCPConn) {
	if len(*p) >= maxPending {
		_ = (*p)[0].Close() // its handshake then fails and is logged
		*p = (*p)[1:]
	}
	*p = append(*p, c)
}

// remove removes a connection and reports whether it was pending.
func (p *pending) remove(c *net.TCPConn) bool {
	i := slices.Index(*p, c)
	if i >= 0 {
		*p = slices.Delete(*p, i, i+1)
	}
	return i >= 0
}
