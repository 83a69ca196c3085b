package tcp

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transport"
)

// Link holds the authenticated connections of one transfer.
type Link struct {
	mode  Mode
	conns []*Conn

	receiving       bool
	windowFixed     bool // chosen by the user
	congestionFixed bool // chosen by the user or by WatchLosses
	linger          time.Duration
	losses          lossWatch

	mu   sync.Mutex
	last Network // the last complete figures of the kernel
}

func newLink(mode Mode, s transport.Socket, conns []*Conn) *Link {
	return &Link{mode: mode, conns: conns, windowFixed: s.Window != 0, congestionFixed: s.Congestion != "", linger: lingerTime}
}

// Mode returns the mode of the connections.
func (l *Link) Mode() Mode { return l.mode }

// Local returns the address of this end; the zero Addr if unknown.
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

// Conns returns the connections by stream number.
func (l *Link) Conns() []*Conn { return l.conns }

// control calls f with the socket of each connection. It ignores errors: if a connection is closed, the
// next read or write fails.
func (l *Link) control(f func(fd int) error) {
	for _, c := range l.conns {
		_ = c.control(f)
	}
}

// Receiving marks this end as the receiver. The peer reads the receiver's small frames immediately,
// so unacknowledged bytes mean a dead network. Without this, only many minutes of
// retransmissions would reveal it.
//
// If the round trip is long, the connections offer a large window from the start.
func (l *Link) Receiving() { l.setReceiving(l.far()) }

func (l *Link) setReceiving(far bool) {
	l.receiving = true
	l.control(func(fd int) error {
		if far && !l.windowFixed {
			_ = offerWindow(fd) // if it fails, the window grows slowly
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
	})
}

// Sending marks this end as the sender. If the round trip is long, the kernel holds little unsent data
// for each of several connections.
func (l *Link) Sending() { l.setSending(l.far()) }

func (l *Link) setSending(far bool) {
	if far && len(l.conns) > 1 {
		l.control(func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
		})
	}
}

// far reports whether the round trip is longer than in any LAN.
func (l *Link) far() bool { return l.Network().MinRTT > farRTT }

// Interrupt makes all reads of this end fail permanently, and keeps the connections open for
// Abort. Unless this end is the receiver, writes fail, too. The receiver's writes are small,
// and half a frame would prevent an Abort.
func (l *Link) Interrupt() {
	for _, c := range l.conns {
		c.interrupt(l.receiving)
	}
}

// Close closes all connections. Reads and writes of both ends fail immediately. It may be called
// more than once.
func (l *Link) Close() error {
	l.Network() // keep the figures for later callers
	for _, c := range l.conns {
		_ = c.tcp.Close() // nothing is buffered, so nothing is lost
	}
	return nil
}

// lingerTime bounds how long Finish waits for a peer that takes no data. Abort and Finish take at most
// maxLinger.
const (
	lingerTime = 5 * time.Second
	maxLinger  = 15 * time.Second
)

// Abort sends the reason to the peer on every usable connection and closes the link. Nothing
// else may use the link at that time (see Interrupt). It takes up to lingerTime if the peer
// does not answer, and longer if the peer still takes data.
func (l *Link) Abort(why error) {
	text := []byte(why.Error())
	end := time.Now().Add(maxLinger)
	l.each(func(c *Conn) {
		defer c.whileTaken(l.linger/2, end, c.tcp.SetWriteDeadline)()
		_ = c.WriteControl(Abort, 0, text) // on failure the peer sees a cut
	})
	l.finish(end)
}

// Finish closes the link after this end's last frame. Closing a connection with unread bytes
// resets it and loses frames that the peer has not read. So Finish reads to the end first.
func (l *Link) Finish() { l.finish(time.Now().Add(maxLinger)) }

func (l *Link) finish(end time.Time) {
	l.each(func(c *Conn) {
		defer c.whileTaken(l.linger, end, c.tcp.SetDeadline)()
		if c.closeWrite() == nil {
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{c.tcp})
		}
	})
	_ = l.Close()
}

// whileTaken sets a deadline d from now. While the peer takes data it postpones the deadline, at most to
// end, until the caller calls stop.
func (c *Conn) whileTaken(d time.Duration, end time.Time, set func(time.Time) error) (stop func()) {
	next := func() {
		t := time.Now().Add(d)
		if t.After(end) {
			t = end
		}
		_ = set(t)
	}
	next()
	taken := c.acked()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(d / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if now := c.acked(); now != taken {
					taken = now
					next()
				}
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// acked returns how many bytes the peer's kernel has confirmed, or its end of a stream.
func (c *Conn) acked() uint64 {
	var n Network
	n.add(c)
	return n.Acked
}

// each runs f for all connections concurrently.
func (l *Link) each(f func(*Conn)) {
	var wg sync.WaitGroup
	for _, c := range l.conns {
		wg.Go(func() { f(c) })
	}
	wg.Wait()
}

// WaitTimer adds up the time that one goroutine waits. Only that goroutine calls Start and
// Stop. Any goroutine may call Elapsed, which includes a running wait. The zero value is ready.
type WaitTimer struct{ total, since atomic.Int64 }

// epoch keeps clock readings monotonic and small.
var epoch = time.Now()

func clock() int64 { return int64(time.Since(epoch)) + 1 }

// Start starts a wait.
func (s *WaitTimer) Start() { s.since.Store(clock()) }

// Stop ends the running wait, if any.
func (s *WaitTimer) Stop() {
	if since := s.since.Load(); since != 0 {
		s.total.Add(clock() - since)
		s.since.Store(0)
	}
}

// Elapsed returns the time waited so far.
func (s *WaitTimer) Elapsed() time.Duration {
	total := s.total.Load()
	if since := s.since.Load(); since != 0 {
		total += clock() - since
	}
	return time.Duration(total)
}

// Running reports whether a wait is running.
func (s *WaitTimer) Running() bool { return s.since.Load() != 0 }
