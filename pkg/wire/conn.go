package wire

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent bytes may stay unacknowledged before the
// connection counts as cut.
const userTimeout = 20 * time.Second

// Conn is one authenticated connection of a Link. One goroutine may read
// frames while another writes them.
type Conn struct {
	index   int
	tcp     *net.TCPConn // nil where the transport is another (tests)
	rw      net.Conn     // tcp, or tls over it
	mode    Mode
	send    tagger
	receive tagger
}

// tagged tells whether frames of a kind carry a tag. Inside TLS nothing does:
// the record layer protects it.
func (c *Conn) tagged(k Kind) bool {
	return c.mode == Signed || c.mode == Plain && k != Data
}

// Seal completes a frame's header and tag. Frames must be flushed in the
// order in which they were sealed.
func (c *Conn) Seal(f *Frame) {
	f.putHeader()
	if c.tagged(f.Kind) {
		c.send.seal(f)
	}
}

// Flush sends a sealed frame in one write.
func (c *Conn) Flush(f *Frame) error {
	if _, err := c.rw.Write(f.buf[:f.wireSize(c)]); err != nil {
		return cut("send", err)
	}
	return nil
}

func (f *Frame) wireSize(c *Conn) int {
	n := HeaderSize + f.n
	if c.tagged(f.Kind) {
		n += TagSize
	}
	return n
}

// WriteFrame seals and sends a frame.
func (c *Conn) WriteFrame(f *Frame) error {
	c.Seal(f)
	return c.Flush(f)
}

// WriteHeader sends the header of a Data frame of mode plain, whose n bytes of
// payload the caller puts onto the connection by itself.
func (c *Conn) WriteHeader(f *Frame, n int) error {
	f.n = n
	f.putHeader()
	if _, err := c.rw.Write(f.buf[:HeaderSize]); err != nil {
		return cut("send", err)
	}
	return nil
}

// SetWriteDeadline bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.rw.SetWriteDeadline(t) }

// ReadHeader reads a frame's header and returns the length of its payload.
// For Data frames of mode plain the caller may take the payload off the
// connection by itself; otherwise ReadBody must follow.
func (c *Conn) ReadHeader(f *Frame) (int, error) {
	f.grow(0)
	if err := readFull(c.rw, f.buf[:HeaderSize]); err != nil {
		return 0, cut("receive", err)
	}
	n, err := f.parseHeader(f.buf[:HeaderSize])
	if err != nil {
		return 0, fmt.Errorf("receive: connection %d: %w: %w", c.index, ErrTampered, err)
	}
	return n, nil
}

// ReadBody reads the rest of a frame whose payload has n bytes. Nothing of it
// may be used before Check.
func (c *Conn) ReadBody(f *Frame, n int) error {
	if len(f.Room()) < n {
		header := [HeaderSize]byte(f.buf[:HeaderSize])
		f.grow(n)
		copy(f.buf, header[:])
	}
	f.n = n
	if err := readFull(c.rw, f.buf[HeaderSize:f.wireSize(c)]); err != nil {
		return cut("receive", err)
	}
	return nil
}

// Check checks the tag of a frame that was read, where its kind has one.
func (c *Conn) Check(f *Frame) error {
	if c.tagged(f.Kind) && !c.receive.open(f) {
		return fmt.Errorf("receive: connection %d, frame %d: %w", c.index, f.Seq, ErrTampered)
	}
	return nil
}

// ReadFrame reads and checks one frame.
func (c *Conn) ReadFrame(f *Frame) error {
	n, err := c.ReadHeader(f)
	if err == nil {
		err = c.ReadBody(f, n)
	}
	if err == nil {
		err = c.Check(f)
	}
	return err
}

// SetReadDeadline bounds reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.rw.SetReadDeadline(t) }

// TCP is the connection itself, for zero-copy; nil in mode tls.
func (c *Conn) TCP() *net.TCPConn {
	if c.mode == TLS {
		return nil
	}
	return c.tcp
}

// tune sets what every data connection has: no delay of small control frames,
// an early end for a dead peer, and the window if one was asked for.
func tune(c *net.TCPConn, window int) error {
	if err := c.SetNoDelay(true); err != nil {
		return err
	}
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}); err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		if serr == nil && window > 0 {
			serr = setWindow(int(fd), window)
		}
	})
	if err != nil {
		return err
	}
	return serr
}

// setWindow asks for socket buffers beyond net.core.*mem_max where the
// process may (CAP_NET_ADMIN), within it otherwise; Network shows what was
// granted.
func setWindow(fd, bytes int) error {
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], bytes) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], bytes); err != nil {
			return err
		}
	}
	return nil
}
