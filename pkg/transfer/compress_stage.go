package transfer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"zxfer/pkg/transport/tcp"
)

// packer compresses pieces between the reader and the ring's takers.
type packer struct {
	*Compressor
	*workers
	ring   *ring
	packed atomic.Int64 // pieces done; those not yet taken are the backlog
}

// newPacker returns nil where nothing is compressed.
func newPacker(o Options) (*packer, error) {
	c, err := NewCompressor(o)
	if c == nil {
		return nil, err
	}
	k := &packer{Compressor: c}
	k.workers = newWorkers(StageCompress, c.Threads, k.pack)
	return k, nil
}

// add hands a piece to the workers.
func (k *packer) add(p *piece) {
	p.ready = make(chan struct{})
	k.queue <- p // workers never block: there is room again soon
}

// pack replaces a piece's block by a compressed one, if that is worth it.
func (k *packer) pack(p *piece) {
	defer k.packed.Add(1)
	k.meter.bytes.Add(int64(len(p.block.Payload())))
	packed := k.Encode(p.block, k.packed.Load()-int64(k.ring.taken()), k.ring.get, k.ring.release)
	if packed != nil {
		p.header.Flags |= tcp.Compressed
		k.ring.release(p.block)
		p.block = packed
	}
}

// expander decompresses pieces between the connections and the sink. It starts
// with the first compressed frame; most streams have none.
type expander struct {
	*workers
	ring   *ring
	decode func(packed, room []byte) ([]byte, error)
	starts sync.Once
}

func newExpander(o Options, r *ring) *expander {
	x := &expander{ring: r, decode: NewDecoder(o)}
	x.workers = newWorkers(StageExpand, o.threads(), x.piece)
	return x
}

// add hands a piece to the workers. busy meters the time that they have no
// room. It is called by several goroutines.
func (x *expander) add(ctx context.Context, p *piece, busy *tcp.WaitTimer) error {
	x.starts.Do(x.start)
	p.ready = make(chan struct{})
	select {
	case x.queue <- p:
		return nil
	default:
	}
	busy.Start()
	defer busy.Stop()
	select {
	case x.queue <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// piece decompresses one piece in place. A frame that holds more bytes than its header says
// is an error, and costs no memory beyond one block.
func (x *expander) piece(p *piece) {
	x.meter.bytes.Add(int64(p.header.Raw))
	out := x.ring.get()
	size := min(int(p.header.Raw), len(out.Room()))
	raw, err := x.decode(p.block.Payload(), out.Room()[:0:size])
	if err != nil || len(raw) != int(p.header.Raw) {
		p.err = fmt.Errorf("%w: frame %d does not decompress to %d bytes", ErrMiscounted, p.header.Position, p.header.Raw)
		if err != nil {
			p.err = fmt.Errorf("%w: %w", p.err, err)
		}
		return
	}
	out.SetLen(copy(out.Room(), raw)) // onto itself, unless the decoder moved it
	x.ring.release(p.block)
	p.block = out
}

// workers compress or decompress pieces on several cores; whoever takes a piece out
// of its ring waits until it is ready.
type workers struct {
	do    func(*piece)
	queue chan *piece
	meter meter
	idle  WaitTimers
	run   sync.WaitGroup
}

func newWorkers(stage string, n int, do func(*piece)) *workers {
	w := &workers{do: do, queue: make(chan *piece, 2*n), idle: NewWaitTimers(n)}
	for _, watch := range w.idle {
		watch.Start()
	}
	w.meter.name, w.meter.in = stage, w.idle.mean
	return w
}

func (w *workers) start() {
	for _, idle := range w.idle {
		w.run.Go(func() {
			for p := range w.queue {
				idle.Stop()
				w.do(p)
				close(p.ready)
				idle.Start()
			}
		})
	}
}

// stop ends the workers. Nothing may be queued any more.
func (w *workers) stop() {
	close(w.queue)
	w.run.Wait()
}
