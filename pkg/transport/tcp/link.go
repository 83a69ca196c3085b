package tcp

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transport"
)

// Link is the authenticated connections of one transfer.
type Link struct {
	mode  Mode
	conns []*Conn

	receiving bool
	congestionFixed    bool    // nothing is left to choose for losses
	lastChecked    Network // at the last look for losses

	mu   sync.Mutex
	last Network // of the last time that the kernel could be asked
}

func newLink(mode Mode, s transport.Socket, conns []*Conn) *Link {
	return &Link{mode: mode, conns: conns, congestionFixed: s.Congestion != ""}
}

// Mode is how the link's bytes cross.
func (l *Link) Mode() Mode { return l.mode }

// Local is this end's address; the zero Addr where it is not known.
func (l *Link) Local() netip.Addr {
	if len(l.conns) == 0 {
		return netip.Addr{}
	}
	a, ok := l.conns[0].tcp.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return a.AddrPort().Addr().Unmap()
}

// Conns are the connections, by stream number.
func (l *Link) Conns() []*Conn { return l.conns }

// Receiving says that this end receives a stream: what it sends (Alive, Ack)
// is small and read at once, so a peer that does not take it is gone. Without
// it a dead network would show only after many minutes of retransmissions.
func (l *Link) Receiving() {
	l.receiving = true
	for _, c := range l.conns {
		raw, err := c.tcp.SyscallConn()
		if err != nil {
			continue // closed: the next read says so
		}
		_ = control(raw, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
		})
	}
}

// Interrupt makes all reads of this end fail, now and later, and leaves the
// connections open for Abort. It does the same to writes, unless this end is
// the receiver: what that writes is small, and half of a frame would be in the
// way of Abort.
func (l *Link) Interrupt() {
	for _, c := range l.conns {
		c.interrupt(l.receiving)
	}
}

// Close ends all connections; reads and writes of both ends fail at once. It
// may be called more than once.
func (l *Link) Close() error {
	l.Network() // for who asks afterwards
	for _, c := range l.conns {
		_ = c.tcp.Close() // nothing is buffered: there is nothing to lose
	}
	return nil
}

// lingerTime bounds how long a link that ends in an orderly way waits for the
// peer to do the same.
const lingerTime = 5 * time.Second

// Abort tells the peer why this end gives up, on every connection that still
// takes a frame, and closes the link. Nobody else may use the link any more:
// see Interrupt. It takes up to lingerTime if the peer does not answer.
func (l *Link) Abort(why error) {
	text := []byte(why.Error())
	l.each(func(c *Conn) {
		_ = c.tcp.SetWriteDeadline(time.Now().Add(lingerTime / 2))
		_ = c.WriteControl(Abort, 0, text) // else the peer sees a cut
	})
	l.Finish()
}

// Finish closes the link after the last frame of this end was written. A
// connection that is closed with unread bytes in it is reset, and what the
// peer has not read yet is lost; so it is read to its end first.
func (l *Link) Finish() {
	l.each(func(c *Conn) {
		_ = c.tcp.SetDeadline(time.Now().Add(lingerTime))
		if c.closeWrite() == nil {
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{c.tcp})
		}
	})
	_ = l.Close()
}

// each runs f for all connections at once.
func (l *Link) each(f func(*Conn)) {
	var wg sync.WaitGroup
	for _, c := range l.conns {
		wg.Go(func() { f(c) })
	}
	wg.Wait()
}
