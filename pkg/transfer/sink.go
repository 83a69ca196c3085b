package transfer

import (
	"context"
	"io"

	"zxfer/pkg/transport/tcp"
)

// writer writes the pieces of a ring to a Sink and withholds the tail of the stream.
type writer struct {
	sink  Sink
	ring  *ring
	tail  tail
	lend  *lender // nil if the sink has no pipe
	write meter
	empty tcp.WaitTimer // counts the time with an empty ring
	// beforeWrite is called for each piece before it is written.
	beforeWrite func(context.Context, *piece) error

	frames  uint64
	sinkErr error // returned by the sink's Abort
}

func newWriter(sink Sink, opt Options) *writer {
	w := &writer{sink: sink, tail: newTail(sink), lend: newLender(sink)}
	w.ring = newRing(opt.Buffer, opt.Block, w.tail.keep)
	w.write.name, w.write.waitIn = StageWrite, WaitTimers{&w.empty}.mean
	return w
}

// store writes pieces to the sink until the ring ends.
func (w *writer) store(ctx context.Context) error {
	for {
		p, err := w.ring.take(&w.empty)
		if p == nil {
			return err
		}
		if err := p.wait(ctx, &w.empty); err != nil {
			return err
		}
		if err := w.beforeWrite(ctx, p); err != nil {
			return err
		}
		n := len(p.block.Payload())
		if err := w.pass(p.block); err != nil {
			return &TargetError{err}
		}
		w.frames++
		w.write.bytes.Add(int64(n))
	}
}

// pass writes a block to the sink and releases it.
func (w *writer) pass(b *tcp.Block) error {
	if w.lend != nil {
		return w.lend.write(&w.tail, w.ring, b)
	}
	err := w.tail.write(w.sink, b)
	w.ring.release(b)
	return err
}

// end writes the tail, after the stream has ended well.
func (w *writer) end() error {
	if err := w.tail.flush(w.sink, len(w.tail.held)); err != nil {
		return &TargetError{err}
	}
	return nil
}

// abort aborts the sink, even during a Write.
func (w *writer) abort(cause error) {
	w.ring.fail(cause)
	w.sinkErr = w.sink.Abort(cause)
}

// aborted returns the sink's name, and the error of its Abort.
func (w *writer) aborted() (target string, err error) { return w.sink.Name(), w.sinkErr }

// tail passes on a stream and withholds its last keep bytes.
type tail struct {
	keep int
	held []byte
}

// newTail returns the tail that a sink asks for; the zero tail withholds nothing.
func newTail(s Sink) tail {
	if w, ok := s.(TailHolder); ok {
		n := max(0, w.Withhold())
		return tail{keep: n, held: make([]byte, 0, n)}
	}
	return tail{}
}

// write writes the held bytes and the block, except for the last keep bytes. It needs only one
// write, because the block has room for the held bytes before its payload.
func (t *tail) write(w io.Writer, b *tcp.Block) error {
	if len(t.held)+len(b.Payload()) <= t.keep {
		t.held = append(t.held, b.Payload()...)
		return nil
	}
	p := b.Prepend(t.held)
	cut := len(p) - t.keep
	err := writeAll(w, p[:cut])
	t.held = append(t.held[:0], p[cut:]...)
	return err
}

// flush writes the first n held bytes.
func (t *tail) flush(w io.Writer, n int) error {
	err := writeAll(w, t.held[:n])
	t.held = t.held[:copy(t.held, t.held[n:])]
	return err
}

// extend adds n bytes to the held bytes and returns them for the caller to fill.
func (t *tail) extend(n int) []byte {
	have := len(t.held)
	t.held = t.held[:have+n]
	return t.held[have:]
}

func writeAll(w io.Writer, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	n, err := w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}
