package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"zxfer/pkg/printable"
)

// Stream is one stream of a Session. It is a net.Conn that also closes one direction (CloseWrite).
type Stream struct {
	session *Session
	id      uint32
	opened  bool // by this end

	mu       sync.Mutex
	changed  sync.Cond
	unread   [][]byte // received data, in chunks
	from     int      // bytes of the first chunk that were read
	size     int      // bytes in unread
	consumed int      // bytes read since the last window frame
	credit   int      // bytes that may be sent
	acked    uint64   // bytes that the other end has read
	received uint64   // bytes that have arrived
	ended    bool     // the other end sends no more data
	closed   bool     // this end sends no more data
	told     bool     // the other end knows that
	err      error    // the stream has ended in both directions

	readBy, writeBy deadline
}

var _ net.Conn = (*Stream)(nil)

func newStream(s *Session, id uint32) *Stream {
	t := &Stream{session: s, id: id, credit: window}
	t.changed.L = &t.mu
	t.readBy.over, t.writeBy.over = make(chan struct{}), make(chan struct{})
	return t
}

// receive takes a frame from the other end.
func (t *Stream) receive(kind byte, payload []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.changed.Broadcast()
	switch kind {
	case kindData:
		if t.size+t.consumed+len(payload) > window || t.ended {
			return fmt.Errorf("%w: stream %d has no room for data", errFrame, t.id)
		}
		if t.err == nil && len(payload) > 0 {
			t.keepLocked(payload)
		}
	case kindWindow:
		more := 0
		if len(payload) == 4 {
			more = int(binary.BigEndian.Uint32(payload))
		}
		if more <= 0 || more > window-t.credit {
			return fmt.Errorf("%w: stream %d got a window of %d", errFrame, t.id, more)
		}
		t.credit += more
		t.acked += uint64(more)
	case kindEnd:
		t.ended = true
	case kindReset:
		why := fmt.Errorf("%w: the other end closed the stream", io.ErrUnexpectedEOF)
		if len(payload) > 0 {
			why = &Refused{printable.Line(string(payload))}
		}
		t.abortLocked(why)
		t.session.forget(t)
	}
	return nil
}

// Refused is the error of a stream that the other end closed for a reason.
type Refused struct{ Reason string }

func (r *Refused) Error() string { return r.Reason }

// ID returns the number of the stream, which both ends of the session know.
func (t *Stream) ID() uint32 { return t.id }

// keepLocked stores received data. Pieces share chunks, so that they need little more memory than their bytes.
func (t *Stream) keepLocked(data []byte) {
	t.size += len(data)
	t.received += uint64(len(data))
	for len(data) > 0 {
		last := len(t.unread) - 1
		if last < 0 || len(t.unread[last]) == cap(t.unread[last]) {
			t.unread = append(t.unread, (*chunks.Get().(*[]byte))[:0])
			last++
		}
		room := cap(t.unread[last]) - len(t.unread[last])
		n := min(room, len(data))
		t.unread[last], data = append(t.unread[last], data[:n]...), data[n:]
	}
}

// chunks holds buffers of maxData bytes.
var chunks = sync.Pool{New: func() any { b := make([]byte, 0, maxData); return &b }}

// abort ends the stream in both directions. Data that arrived before can still be read.
func (t *Stream) abort(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abortLocked(err)
	t.changed.Broadcast()
}

// endAll ends the data of both ends.
func (t *Stream) endAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended, t.closed = true, true
	t.changed.Broadcast()
}

func (t *Stream) abortLocked(err error) {
	if t.err == nil {
		t.err = err
	}
}

// drop aborts the stream and removes it.
func (t *Stream) drop(err error) {
	t.abort(err)
	t.session.forget(t)
}

// Read reads data. At the end of the other end's data it returns io.EOF.
func (t *Stream) Read(p []byte) (n int, err error) {
	t.mu.Lock()
	for {
		switch {
		case t.readBy.passed:
			err = os.ErrDeadlineExceeded
		case t.size > 0 && len(p) > 0:
			n = t.takeLocked(p)
		case t.ended:
			err = io.EOF
		case t.err != nil:
			err = t.err
		case len(p) > 0:
			t.changed.Wait()
			continue
		}
		break
	}
	more, expired := 0, t.readBy.over
	if t.consumed >= window/16 && !t.ended && t.err == nil {
		more, t.consumed = t.consumed, 0
	}
	t.mu.Unlock()
	if more > 0 && t.session.write(t.id, kindWindow, binary.BigEndian.AppendUint32(nil, uint32(more)), expired) != nil {
		t.mu.Lock() // a later Read tells the other end
		defer t.mu.Unlock()
		t.consumed += more
	}
	return n, err
}

// takeLocked copies unread data to p.
func (t *Stream) takeLocked(p []byte) (n int) {
	for n < len(p) && len(t.unread) > 0 {
		k := copy(p[n:], t.unread[0][t.from:])
		n += k
		if t.from += k; t.from == len(t.unread[0]) {
			chunk := t.unread[0]
			chunks.Put(&chunk)
			t.unread, t.from = t.unread[1:], 0
		}
	}
	t.size -= n
	t.consumed += n
	return n
}

// Write writes p. It waits while the other end has no room.
func (t *Stream) Write(p []byte) (n int, err error) {
	for n < len(p) {
		k, err := t.reserve(min(len(p)-n, maxData))
		if err != nil {
			return n, err
		}
		if err := t.session.write(t.id, kindData, p[n:n+k], t.writeExpired()); err != nil {
			t.mu.Lock() // a later Write may send
			defer t.mu.Unlock()
			t.credit += k
			t.changed.Broadcast()
			return n, err
		}
		n += k
	}
	return n, nil
}

// reserve waits until the other end has room, and takes up to n bytes of it.
func (t *Stream) reserve(n int) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		switch {
		case t.err != nil:
			return 0, t.err
		case t.closed:
			return 0, net.ErrClosed
		case t.writeBy.passed:
			return 0, os.ErrDeadlineExceeded
		case t.credit > 0:
			n = min(n, t.credit)
			t.credit -= n
			return n, nil
		}
		t.changed.Wait()
	}
}

// CloseWrite ends this end's data.
func (t *Stream) CloseWrite() error {
	t.mu.Lock()
	done, err := t.closed, t.err
	t.closed = true
	t.mu.Unlock()
	if done || err != nil {
		return err
	}
	err = t.session.write(t.id, kindEnd, nil, t.writeExpired())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told = err == nil; err != nil {
		t.closed = false // it may be tried again
	}
	return err
}

// Close ends the stream. Reads and writes of both ends fail, except that the other end can read data that was
// ended with CloseWrite before.
func (t *Stream) Close() error { return t.Refuse("") }

// Refuse is Close with a reason, which reads and writes of the other end return.
func (t *Stream) Refuse(reason string) error {
	t.mu.Lock()
	ended := t.told && t.ended
	first := t.err == nil
	t.abortLocked(net.ErrClosed)
	t.ended, t.unread, t.size = false, nil, 0
	t.readBy.set(t, time.Time{})
	t.writeBy.set(t, time.Time{})
	t.changed.Broadcast()
	t.mu.Unlock()
	t.session.forget(t)
	if !first || ended {
		return nil
	}
	t.session.reset(t.id, reason)
	return nil
}

// Acked returns how many bytes the other end has read, up to a sixteenth of its window less.
func (t *Stream) Acked() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acked
}

// Received returns how many bytes have arrived.
func (t *Stream) Received() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.received
}

// SyscallConn returns an error, because the stream has no socket of its own.
func (t *Stream) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

type address struct{}

func (address) Network() string { return "ssh" }
func (address) String() string  { return "the remote shell" }

// LocalAddr returns the name of the connection.
func (t *Stream) LocalAddr() net.Addr { return address{} }

// RemoteAddr returns the name of the connection.
func (t *Stream) RemoteAddr() net.Addr { return address{} }

// SetDeadline implements net.Conn.
func (t *Stream) SetDeadline(at time.Time) error {
	return errors.Join(t.SetReadDeadline(at), t.SetWriteDeadline(at))
}

// SetReadDeadline implements net.Conn.
func (t *Stream) SetReadDeadline(at time.Time) error { return t.setDeadline(&t.readBy, at) }

// SetWriteDeadline implements net.Conn.
func (t *Stream) SetWriteDeadline(at time.Time) error { return t.setDeadline(&t.writeBy, at) }

// deadline is the time after which reads or writes fail. The mutex of its stream guards it.
type deadline struct {
	passed bool
	timer  *time.Timer
	over   chan struct{} // closed when passed is set
}

// set sets the time, or none. It broadcasts a change of the stream.
func (d *deadline) set(t *Stream, at time.Time) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.passed {
		d.over, d.passed = make(chan struct{}), false
	}
	switch left := time.Until(at); {
	case at.IsZero():
	case left <= 0:
		d.pass()
	default:
		var timer *time.Timer
		timer = time.AfterFunc(left, func() {
			t.mu.Lock() // held until timer is set
			defer t.mu.Unlock()
			if d.timer == timer {
				d.pass()
				t.changed.Broadcast()
			}
		})
		d.timer = timer
	}
	t.changed.Broadcast()
}

func (d *deadline) pass() {
	d.passed = true
	close(d.over)
}

// setDeadline sets one of the deadlines.
func (t *Stream) setDeadline(d *deadline, at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.set(t, at)
	return nil
}

// writeExpired returns a channel that is closed when the write deadline has passed.
func (t *Stream) writeExpired() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.writeBy.over
}
