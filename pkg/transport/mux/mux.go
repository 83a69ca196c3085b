// Package mux carries several streams over one connection in both directions, such as the standard input and
// output of a remote shell.
//
// A stream has its own flow control, so that one whose reader is slow delays no other one. Stream 1, the control
// stream, exists from the start. The client opens the others. docs/reference/protocol-control.md specifies the
// frames. All bytes from the other end are untrusted: what it sends costs at most the windows of the streams that
// this end accepted.
package mux

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Limits, in bytes.
const (
	// window is how much a stream may hold unread. OpenSSH permits 2 MiB on its way in each channel, so
	// that this is enough for its rate over any round trip.
	window = 4 << 20
	// maxData is the largest payload of a frame. Frames of other streams wait no longer than for one.
	maxData = 64 << 10
	// maxAddress and maxReason limit the texts of open and reset frames.
	maxAddress = 64
	maxReason  = 1 << 10
)

// MaxStreams limits the open streams of a session, without the control stream. Further ones are refused.
const MaxStreams = 64

// MaxOpened limits the streams that an end opens: further ones wait. The other end may not know yet that some of
// MaxStreams have ended.
const MaxOpened = 48

// A frame is a header and its payload. The header is the number of the stream (4 bytes), the kind (1 byte) and the
// length of the payload (3 bytes), big-endian.
const headerSize = 8

// The kinds of frames.
const (
	kindData   = 1 // bytes of the stream
	kindWindow = 2 // the receiver has room for that many more bytes, 4 bytes
	kindEnd    = 3 // the sender sends no more data
	kindReset  = 4 // the stream has ended in both directions; the payload is the reason
	kindOpen   = 5 // a new stream; the payload is its address
)

// controlID is the number of the control stream.
const controlID = 1

// Session is one end of a connection.
type Session struct {
	// Accept gets each stream that the other end opens, with the address it asked for, and must not block.
	// It owns the stream. nil = this end accepts none. It must be set before Run.
	Accept func(s *Stream, address string)

	queue   chan item     // frames to write
	done    chan struct{} // closed when the session has ended
	written chan struct{} // closed when nothing more is written

	opened  chan struct{} // holds a value for each stream that this end opened
	opening chan struct{} // holds a value while an open frame is queued: their numbers rise
	resets  atomic.Int32  // reset frames that wait for the queue

	mu      sync.Mutex
	streams map[uint32]*Stream
	last    uint32 // highest number of a stream that was opened
	err     error  // set when the session has ended
}

// maxQueued is the number of frames that wait for the connection.
const maxQueued = 4

// New returns a session that writes to out in another goroutine, until End, or until a write fails. preface
// precedes its frames. Its control stream is open. A failed write is the end of the connection, as the end of its
// input is.
func New(out io.Writer, preface string) *Session {
	s := &Session{queue: make(chan item, maxQueued), done: make(chan struct{}), written: make(chan struct{}), opened: make(chan struct{}, MaxOpened),
		opening: make(chan struct{}, 1),
		streams: map[uint32]*Stream{}, last: controlID}
	s.streams[controlID] = newStream(s, controlID)
	s.queue <- item{frame: []byte(preface)}
	go s.writeTo(out)
	return s
}

// item is a queued frame, or a mark that everything before it was written.
type item struct {
	frame []byte
	mark  chan struct{}
}

// writeTo writes the queued frames, including the ones in the queue when the session ends.
func (s *Session) writeTo(out io.Writer) {
	defer close(s.written)
	for {
		var next item
		select {
		case next = <-s.queue:
		case <-s.done:
			select {
			case next = <-s.queue:
			default:
				return
			}
		}
		if next.mark != nil {
			close(next.mark)
			continue
		}
		if _, err := out.Write(next.frame); err != nil {
			s.End(io.EOF)
			return
		}
		if frame := next.frame; cap(frame) == headerSize+maxData {
			frames.Put(&frame)
		}
	}
}

// Flush waits until everything that was queued before is written, at most for a time.
func (s *Session) Flush(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	mark := make(chan struct{})
	select {
	case s.queue <- item{mark: mark}:
	case <-s.done:
		mark = s.written
	case <-timer.C:
		return
	}
	select {
	case <-mark:
	case <-s.written:
	case <-timer.C:
	}
}

// Control returns the control stream.
func (s *Session) Control() *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[controlID]
}

// Open opens a stream. If the other end refuses it, reads and writes return the reason. The streams of a session are
// opened by one end only. Open waits for the connection, and while MaxOpened streams are open. ctx ends the wait.
func (s *Session) Open(ctx context.Context, address string) (*Stream, error) {
	if len(address) > maxAddress {
		return nil, fmt.Errorf("address of %d bytes, more than %d", len(address), maxAddress)
	}
	for _, place := range []chan struct{}{s.opened, s.opening} {
		select {
		case place <- struct{}{}:
		case <-s.done:
			return nil, s.ended()
		case <-ctx.Done():
			if place == s.opening {
				<-s.opened
			}
			return nil, context.Cause(ctx)
		}
	}
	defer func() { <-s.opening }()
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, s.err
	}
	s.last++
	t := newStream(s, s.last)
	t.opened = true
	s.streams[t.id] = t
	s.mu.Unlock()
	if err := s.write(t.id, kindOpen, []byte(address), ctx.Done()); err != nil {
		t.drop(err)
		return nil, errors.Join(context.Cause(ctx), err)
	}
	return t, nil
}

// Run reads frames from in until it ends, and then fails all streams. It returns io.EOF if the input ended
// between two frames.
func (s *Session) Run(in io.Reader) error {
	err := s.read(bufio.NewReaderSize(in, headerSize+maxData))
	s.End(err)
	return err
}

// End fails all streams. The first error counts. io.EOF stands for the end of the connection: the control stream then
// ends, and all others fail with io.ErrUnexpectedEOF.
func (s *Session) End(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	close(s.done)
	streams := s.streams
	s.streams = map[uint32]*Stream{}
	s.streams[controlID] = streams[controlID]
	s.mu.Unlock()
	for id, t := range streams {
		switch {
		case err != io.EOF:
			t.abort(err)
		case id == controlID:
			t.endAll()
		default:
			t.abort(io.ErrUnexpectedEOF)
		}
	}
}

// errFrame means that the other end does not speak this protocol.
var errFrame = errors.New("malformed frame")

func (s *Session) read(in *bufio.Reader) error {
	for {
		var h [headerSize]byte
		if _, err := io.ReadFull(in, h[:]); err != nil {
			return err
		}
		id, kind, n := binary.BigEndian.Uint32(h[:]), h[4], int(binary.BigEndian.Uint32(h[4:])&0xffffff)
		if n > limitOf(kind) {
			return fmt.Errorf("%w: kind %d with %d bytes", errFrame, kind, n)
		}
		payload, err := in.Peek(n)
		if err != nil {
			return noEOF(err)
		}
		if err := s.take(id, kind, payload); err != nil {
			return err
		}
		_, _ = in.Discard(n) // Peek has read them
		if err := s.ended(); err != nil {
			return err
		}
	}
}

// take takes one frame.
func (s *Session) take(id uint32, kind byte, payload []byte) error {
	if kind == kindOpen {
		return s.accept(id, string(payload))
	}
	s.mu.Lock()
	t, last := s.streams[id], s.last
	s.mu.Unlock()
	switch {
	case t != nil:
		return t.receive(kind, payload)
	case id == 0 || id > last:
		return fmt.Errorf("%w: stream %d was not opened", errFrame, id)
	}
	return nil // this end has closed the stream, which the other end did not know yet
}

// limitOf returns the largest payload of a kind, -1 for unknown kinds.
func limitOf(kind byte) int {
	switch kind {
	case kindData:
		return maxData
	case kindWindow:
		return 4
	case kindEnd:
		return 0
	case kindReset:
		return maxReason
	case kindOpen:
		return maxAddress
	}
	return -1
}

// accept adds a stream that the other end opened.
func (s *Session) accept(id uint32, address string) error {
	s.mu.Lock()
	if s.Accept == nil || id <= s.last {
		s.mu.Unlock()
		return fmt.Errorf("%w: stream %d was opened", errFrame, id)
	}
	s.last = id
	t := newStream(s, id)
	full := len(s.streams) > MaxStreams
	if !full {
		s.streams[id] = t
	}
	s.mu.Unlock()
	if full {
		s.reset(id, fmt.Sprintf("more than %d streams at once", MaxStreams))
		return nil
	}
	s.Accept(t, address)
	return nil
}

// frames holds buffers for the largest frames.
var frames = sync.Pool{New: func() any { b := make([]byte, 0, headerSize+maxData); return &b }}

// write queues one frame. It waits for room until expired is closed.
func (s *Session) write(id uint32, kind byte, payload []byte, expired <-chan struct{}) error {
	var frame []byte
	if len(payload) > maxReason {
		frame = (*frames.Get().(*[]byte))[:0]
	}
	frame = binary.BigEndian.AppendUint32(frame, id)
	frame = binary.BigEndian.AppendUint32(frame, uint32(kind)<<24|uint32(len(payload)))
	frame = append(frame, payload...)
	select {
	case s.queue <- item{frame: frame}:
		return nil
	case <-expired:
		return os.ErrDeadlineExceeded
	case <-s.done:
		return s.ended()
	}
}

// ended returns the error given to End, nil before that.
func (s *Session) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// maxResets limits the reset frames that wait for the connection. An end that opens streams and reads nothing would
// otherwise cost memory for each.
const maxResets = 4 * MaxStreams

// reset tells the other end that a stream has ended. It does not wait, because reading must not wait for writing.
func (s *Session) reset(id uint32, reason string) {
	if s.resets.Add(1) > maxResets {
		s.End(fmt.Errorf("%w: the other end opens streams, but reads nothing", errFrame))
		return
	}
	go func() {
		defer s.resets.Add(-1)
		_ = s.write(id, kindReset, []byte(reason[:min(len(reason), maxReason)]), nil) // a session that ended has no streams
	}()
}

// forget removes a stream.
func (s *Session) forget(t *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.id == controlID || s.streams[t.id] != t {
		return
	}
	delete(s.streams, t.id)
	if t.opened {
		<-s.opened
	}
}

// noEOF turns io.EOF within a frame into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
