package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
)

// Attached is a stream of the control connection that carries the data of a task, as raw bytes. Its end of data means
// that the source ended well. The client opens it (see Attach), and the agent finds it by its number.
type Attached struct {
	Number uint32 `json:"number"`
	// Stream is the stream in the client's process.
	Stream *mux.Stream `json:"-"`
}

func (Attached) from() kind { return attached }

func (Attached) to() kind { return attached }

// AttachAddress is the address of the streams for Attached.
const AttachAddress = ""

// Attach opens a stream of the connection to a remote host. It does not wait for the host.
func Attach(ctx context.Context, on Host) (Attached, error) {
	s, err := dialThrough(ctx, on, AttachAddress)
	if err != nil {
		return Attached{}, err
	}
	return Attached{Number: s.ID(), Stream: s}, nil
}

// attachments holds the streams of the client that no task has named yet, at most mux.MaxStreams.
type attachments struct {
	mu      sync.Mutex
	streams map[uint32]*mux.Stream
}

func (a *attachments) add(s *mux.Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams == nil {
		a.streams = map[uint32]*mux.Stream{}
	}
	if len(a.streams) >= mux.MaxStreams { // package mux forgets those that the client closed
		oldest := a.streams[slices.Min(slices.Collect(maps.Keys(a.streams)))]
		_ = oldest.Refuse("no task named the stream") // the client may have closed it
		delete(a.streams, oldest.ID())
	}
	a.streams[s.ID()] = s
}

// take returns the stream of an end, which can be used once.
func (a *attachments) take(end Attached) (*mux.Stream, error) {
	if end.Stream != nil {
		return end.Stream, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.streams[end.Number]
	if s == nil {
		return nil, fmt.Errorf("%w: no stream %d was opened for a task", ErrMalformed, end.Number)
	}
	delete(a.streams, end.Number)
	return s, nil
}

// Attach keeps a stream that the client opened until a task names its number.
func (l *Local) Attach(s *mux.Stream) { l.attached.add(s) }

// moveAttached moves the data of a task whose other end is in this process.
func (l *Local) moveAttached(ctx context.Context, end Attached, t Task, progress func(transfer.Progress)) (res Result, err error) {
	s, err := l.attached.take(end)
	if err != nil {
		return res, err
	}
	defer func() {
		if err != nil {
			_ = s.Refuse(err.Error())
		}
		_ = s.Close()
	}()
	ends := attachedEnds{Local: l, from: &attachedSource{from: s}, to: &attachedSink{s}}
	if _, receives := t.From.(Attached); receives {
		// A stream that waits for its sender must not use a place of one that moves.
		if err := ends.from.wait(ctx); err != nil {
			return res, err
		}
	}
	leave, err := l.places.Enter(ctx, t.options())
	if err != nil {
		return res, err
	}
	defer leave()
	return l.moveStream(ctx, ends, t, nil, progress)
}

// attachedEnds opens the ends of a task of which one is an Attached.
type attachedEnds struct {
	*Local
	from *attachedSource
	to   *attachedSink
}

func (a attachedEnds) OpenFrom(ctx context.Context, from From) (transfer.Source, error) {
	if _, ok := from.(Attached); ok {
		return a.from, nil
	}
	return a.Local.OpenFrom(ctx, from)
}

func (a attachedEnds) OpenTo(ctx context.Context, to To) (transfer.Sink, error) {
	if _, ok := to.(Attached); ok {
		return a.to, nil
	}
	return a.Local.OpenTo(ctx, to)
}

// firstDataTimeout is how long a receiver waits for the first data. A sender may wait for many others before it.
const firstDataTimeout = time.Hour

// attachedSource reads the stream of an Attached.
type attachedSource struct {
	from  *mux.Stream
	first []byte // was read before
}

// wait waits for the first data or its end.
func (a *attachedSource) wait(ctx context.Context) error {
	if err := a.from.SetReadDeadline(time.Now().Add(firstDataTimeout)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = a.Close() })()
	first := make([]byte, 4<<10)
	n, err := a.from.Read(first)
	a.first = first[:n]
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w for %s: %s sent no data", transfer.ErrStall, firstDataTimeout, a.Name())
	case err != nil && err != io.EOF: // the next Read returns io.EOF again
		return peerError(err)
	}
	return a.from.SetReadDeadline(time.Time{})
}

func (a *attachedSource) Read(p []byte) (int, error) {
	if len(a.first) > 0 {
		n := copy(p, a.first)
		a.first = a.first[n:]
		return n, nil
	}
	n, err := a.from.Read(p)
	return n, peerError(err)
}

// Close ends reading. It does not reset the stream, so that the other end gets the reason (see moveAttached).
func (a *attachedSource) Close() error { return a.from.SetReadDeadline(time.Unix(0, 1)) }

func (*attachedSource) Name() string { return "received stream" }

// attachedSink writes the stream of an Attached.
type attachedSink struct{ to *mux.Stream }

func (a *attachedSink) Write(p []byte) (int, error) {
	n, err := a.to.Write(p)
	return n, peerError(err)
}

// Commit ends the data. Only the other end knows whether it was stored.
func (a *attachedSink) Commit(context.Context) error { return peerError(a.to.CloseWrite()) }

// Abort resets the stream with the reason.
func (a *attachedSink) Abort(cause error) error {
	_ = a.to.Refuse(cause.Error()) // it always ends the stream
	return nil
}

func (*attachedSink) Name() string { return "control connection" }

// peerError returns the error of a stream: a transfer.PeerError if the other end reset it with a reason, and otherwise
// tcp.ErrConnectionLost.
func peerError(err error) error {
	switch {
	case err == nil || err == io.EOF || errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.As(err, new(*mux.Refused)):
		return &transfer.PeerError{Text: err.Error()}
	}
	return fmt.Errorf("%w: %w", tcp.ErrConnectionLost, err)
}

var (
	_ transfer.Source = (*attachedSource)(nil)
	_ transfer.Sink   = (*attachedSink)(nil)
)
