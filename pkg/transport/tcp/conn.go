package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is one authenticated connection of a Link. Only one goroutine at a time may read. Writes
// may be concurrent.
type Conn struct {
	stream  int
	mode    Mode
	tcp     Socket
	rw      net.Conn     // tcp, or TLS over records over tcp
	records *frameBuffer // nil except in mode tls
	keyed   int64        // bytes that the key of this connection may still encrypt; mode tls only

	writing sync.Mutex // guards send to out
	send    *tagger
	sent    uint64 // number of frames
	broken  bool   // part of a frame was written
	out     tally

	receive  *tagger
	received uint64 // number of frames
	in       tally
	silence  time.Duration
	lowat    int // current SO_RCVLOWAT, 0 if never set

	interrupted atomic.Bool
	wireBytes   atomic.Int64
	readWait    WaitTimer
	writeWait   WaitTimer
}

type tally struct{ frames, bytes uint64 }

func (t *tally) add(h Header) {
	if h.Kind == Data {
		t.frames++
		t.bytes += uint64(h.Raw)
	}
}

// newConn returns a connection without TLS after its handshake.
func newConn(stream int, mode Mode, tcp Socket, send, receive *tagger) *Conn {
	return &Conn{stream: stream, mode: mode, tcp: tcp, rw: tcp, send: send, receive: receive}
}

// Stream returns the number of the connection in its Link, from 0.
func (c *Conn) Stream() int { return c.stream }

// ReadWait returns the timer of reads in the kernel, which mostly wait for the network.
func (c *Conn) ReadWait() *WaitTimer { return &c.readWait }

// WriteWait returns the timer of writes in the kernel.
func (c *Conn) WriteWait() *WaitTimer { return &c.writeWait }

// WireBytes returns the bytes of frames sent and received so far, without the overhead of TLS.
func (c *Conn) WireBytes() int64 { return c.wireBytes.Load() }

// tagged reports whether frames of a kind carry a tag: in mode signed all, in mode plain control frames. TLS
// authenticates its records itself.
func (c *Conn) tagged(k Kind) bool { return c.mode == Signed || c.mode == Plain && k != Data }

// WriteFrame sends the payload of b as one frame and sets h.Payload. The block may be reused
// afterwards.
func (c *Conn) WriteFrame(h Header, b *Block) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	h.Payload = b.n
	frame := b.buf[b.off-HeaderSize : b.off+b.n]
	if c.keyed -= int64(len(frame)); c.records != nil && h.Kind == Data && c.keyed < 0 {
		return c.sendError(fmt.Errorf("%w: its key has encrypted %d GiB, and TLS permits no more", ErrConnectionLost, int64(maxTLSBytes)>>30))
	}
	h.put(frame)
	if c.tagged(h.Kind) {
		frame = c.send.seal(frame, c.sent)
	}
	if err := c.write(frame); err != nil {
		return c.sendError(err)
	}
	c.sent++
	c.out.add(h)
	return nil
}

// WriteControl sends a control frame. It truncates text to MaxControl.
func (c *Conn) WriteControl(k Kind, position uint64, text []byte) error {
	b := NewBlock(min(len(text), MaxControl), 0)
	b.SetLen(copy(b.Buffer(), text))
	return c.WriteFrame(Header{Kind: k, Position: position}, b)
}

// WriteEnd sends the End frame with this connection's counts and closes the connection for
// writing.
func (c *Conn) WriteEnd(a Account) error {
	c.writing.Lock()
	a.StreamBytes, a.StreamFrames = c.out.bytes, c.out.frames
	c.writing.Unlock()
	if err := c.WriteControl(End, 0, a.Append(nil)); err != nil {
		return err
	}
	// If an attacker enlarges the frame's length, the receiver sees the end of the connection
	// instead of waiting.
	if err := c.closeWrite(); err != nil {
		return c.sendError(err)
	}
	return nil
}

// CheckEnd compares the counts in this connection's End frame with the received frames.
func (c *Conn) CheckEnd(a Account) error {
	if a.StreamBytes != c.in.bytes || a.StreamFrames != c.in.frames {
		return c.receiveError(fmt.Errorf("%w: received %d bytes in %d frames, sent %d in %d",
			ErrTampered, c.in.bytes, c.in.frames, a.StreamBytes, a.StreamFrames))
	}
	return nil
}

func (c *Conn) write(frame []byte) error {
	if c.broken {
		return net.ErrClosed
	}
	c.wireBytes.Add(int64(len(frame)))
	if c.records != nil {
		c.records.hold()
		_, err := c.rw.Write(frame)
		if ferr := c.records.flush(); err == nil {
			err = ferr
		}
		c.broken = err != nil
		return err
	}
	c.writeWait.Start()
	n, err := c.rw.Write(frame)
	c.writeWait.Stop()
	c.broken = err != nil && n > 0 // if nothing was written, another frame may follow
	return err
}

func (c *Conn) closeWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if t, ok := c.rw.(*tls.Conn); ok && !c.broken {
		if err := t.CloseWrite(); err != nil {
			return err
		}
	}
	return c.tcp.CloseWrite()
}

// SetSilence makes reads fail with ErrConnectionLost after d without a frame.
func (c *Conn) SetSilence(d time.Duration) { c.silence = d }

// ReadHeader reads the header of the next frame. The caller must call ReadPayload with the same
// Block next. For a Data frame in mode plain, it may call SpliceTo and ReadPart instead, until
// the payload is consumed.
//
// The header of a tagged frame is not authenticated until ReadPayload returns nil.
func (c *Conn) ReadHeader(b *Block) (Header, error) {
	if c.silence > 0 {
		_ = c.tcp.SetReadDeadline(time.Now().Add(c.silence)) // if this fails, so does the read
	}
	head := b.buf[b.off-HeaderSize : b.off]
	if err := c.read(head); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && c.silence > 0 && !c.interrupted.Load() {
			err = fmt.Errorf("%w: no data from the other host for %s", ErrConnectionLost, c.silence)
		}
		return Header{}, c.receiveError(err)
	}
	h, err := parseHeader(head)
	if err != nil {
		return h, c.receiveError(fmt.Errorf("%w: %w", ErrTampered, err))
	}
	c.received++
	c.in.add(h)
	return h, nil
}

// ReadPayload reads the rest of a frame into b and checks its tag.
func (c *Conn) ReadPayload(h Header, b *Block) error {
	if h.Payload > b.cap {
		return c.receiveError(fmt.Errorf("%w: payload of %d bytes, more than the agreed %d", ErrTampered, h.Payload, b.cap))
	}
	b.n = h.Payload
	end := b.off + h.Payload
	size := h.Payload
	if c.tagged(h.Kind) {
		size += TagSize
	}
	if err := c.read(b.buf[b.off : b.off+size]); err != nil {
		return c.receiveError(err)
	}
	if c.tagged(h.Kind) && !c.receive.open(b.buf[b.off-HeaderSize:end], b.buf[end:end+TagSize], c.received-1) {
		return c.receiveError(fmt.Errorf("%w: authentication tag does not match", ErrTampered))
	}
	return nil
}

// ReadFrame reads and checks one frame.
func (c *Conn) ReadFrame(b *Block) (Header, error) {
	h, err := c.ReadHeader(b)
	if err == nil {
		err = c.ReadPayload(h, b)
	}
	return h, err
}

// ReadPart reads the next len(p) bytes of the payload of a Data frame in mode plain.
func (c *Conn) ReadPart(p []byte) error {
	if err := c.read(p); err != nil {
		return c.receiveError(err)
	}
	return nil
}

// read fills p.
func (c *Conn) read(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if c.records == nil { // frameBuffer counts its own waits, without decryption
		c.readWait.Start()
		defer c.readWait.Stop()
	}
	n := 0
	for n < len(p) {
		if c.interrupted.Load() { // a later deadline must not revive reads
			return os.ErrDeadlineExceeded
		}
		c.setLowat(len(p)-n, n > 0)
		k, err := c.rw.Read(p[n:])
		n += k
		c.wireBytes.Add(int64(k))
		if err == io.EOF && n > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && n < len(p) {
			return err
		}
	}
	return nil
}

// maxLowat bounds the bytes that one read waits for. On a slow link each packet would
// otherwise wake the reader. The kernel wakes it earlier if its buffer is full.
const maxLowat = 128 << 10

// setLowat makes the next read wait for up to need bytes, but never for more. It raises the
// value only after a short read.
func (c *Conn) setLowat(need int, short bool) {
	if need = min(need, maxLowat); need == c.lowat || need > c.lowat && !short {
		return
	}
	if c.records != nil { // records hold fewer bytes than their encoded length
		return
	}
	if c.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, need) }) == nil {
		c.lowat = need
	}
}

// sendError returns an error of the next frame that matches ErrConnectionLost or ErrTampered.
func (c *Conn) sendError(err error) error {
	return fmt.Errorf("send: stream %d, frame %d: %w", c.stream, c.sent, classify(err))
}

// receiveError is sendError for the last frame whose header was read.
func (c *Conn) receiveError(err error) error {
	return fmt.Errorf("receive: stream %d, frame %d: %w", c.stream, max(c.received, 1)-1, classify(err))
}

// pastDeadline returns a deadline that has expired.
func pastDeadline() time.Time { return time.Unix(1, 0) }

// interrupt makes all reads fail, and all writes unless keepWrites is set.
func (c *Conn) interrupt(keepWrites bool) {
	c.interrupted.Store(true)
	_ = c.tcp.SetReadDeadline(pastDeadline()) // fails only if the connection is closed
	if !keepWrites {
		_ = c.tcp.SetWriteDeadline(pastDeadline())
	}
}

// Errors that callers distinguish with errors.Is.
var (
	// ErrConnectionLost means that a connection broke, fell silent or ended early. A retry may succeed.
	ErrConnectionLost = errors.New("connection lost")
	// ErrTampered means that a frame or TLS record does not match its tag, or that no correct
	// peer sends it. An attacker, broken memory or network hardware changed it.
	ErrTampered = errors.New("frame was modified in transit")
	// ErrDial means that a connection could not be made.
	ErrDial = errors.New("cannot connect")
	// ErrNoPeer means that the peer did not connect in time.
	ErrNoPeer = errors.New("nobody connected")
)

// errTruncated means that a connection was closed properly, but before its authenticated end.
var errTruncated = fmt.Errorf("%w: no authenticated end of data", ErrConnectionLost)

// classify wraps an error of a connection in errTruncated, ErrTampered or ErrConnectionLost.
func classify(err error) error {
	var op *net.OpError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, ErrConnectionLost), errors.Is(err, ErrTampered):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errTruncated
	case errors.As(err, &record):
		return fmt.Errorf("%w: %w", ErrTampered, err)
	case errors.As(err, &op) && (op.Op == "local error" || op.Op == "remote error"):
		// crypto/tls reports alerts this way: one end found an invalid record.
		return fmt.Errorf("%w: %w", ErrTampered, err)
	}
	return fmt.Errorf("%w: %w", ErrConnectionLost, err)
}
