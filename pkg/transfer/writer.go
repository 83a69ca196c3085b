package transfer

import (
	"context"

	"zxfer/pkg/transport/tcp"
)

// writer writes the pieces of a ring to a Sink and withholds the tail of the stream.
type writer struct {
	sink  Sink
	ring  *ring
	tail  tail
	write meter
	empty tcp.WaitTimer // counts the time with an empty ring
	// beforeWrite is called for each piece before it is written.
	beforeWrite func(context.Context, *piece) error

	frames  uint64
	sinkErr error // returned by the sink's Abort
}

func newWriter(sink Sink, opt Options) *writer {
	w := &writer{sink: sink, tail: newTail(sink)}
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
		if err := w.tail.write(w.sink, p.block); err != nil {
			return &TargetError{err}
		}
		w.frames++
		w.write.bytes.Add(int64(n))
		w.ring.release(p.block)
	}
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
