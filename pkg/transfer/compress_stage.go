package transfer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"zxfer/pkg/transport/tcp"
)

// compressStage compresses pieces between the reader and the ring's takers.
type compressStage struct {
	*Compressor
	*workers
	ring   *ring
	packed atomic.Int64 // number of finished pieces; those not yet taken are the backlog
}

// newCompressStage returns nil if compression is off.
func newCompressStage(o Options) (*compressStage, error) {
	c, err := NewCompressor(o)
	if c == nil {
		return nil, err
	}
	k := &compressStage{Compressor: c}
	k.workers = newWorkers(StageCompress, c.Threads, k.compress)
	return k, nil
}

// add queues a piece for the workers.
func (k *compressStage) add(p *piece) {
	p.ready = make(chan struct{})
	k.queue <- p // workers never block, so there soon is room
}

// compress replaces a piece's block by a compressed one if that saves enough.
func (k *compressStage) compress(p *piece) {
	defer k.packed.Add(1)
	k.meter.bytes.Add(int64(len(p.block.Payload())))
	packed := k.Encode(p.block, k.packed.Load()-int64(k.ring.taken()), k.ring.get, k.ring.release)
	if packed != nil {
		p.header.Flags |= tcp.Compressed
		k.ring.release(p.block)
		p.block = packed
	}
}

// decompressStage decompresses pieces between the connections and the ring. It starts with the
// first compressed frame, because most streams have none.
type decompressStage struct {
	*workers
	ring      *ring
	decode    func(packed, room []byte) ([]byte, error)
	startOnce sync.Once
}

func newDecompressStage(o Options, r *ring) *decompressStage {
	x := &decompressStage{ring: r, decode: NewDecoder(o)}
	x.workers = newWorkers(StageExpand, o.threads(), x.decompress)
	return x
}

// add queues a piece for the workers. busy counts the time that the queue is full. It may be
// called concurrently.
func (x *decompressStage) add(ctx context.Context, p *piece, busy *tcp.WaitTimer) error {
	x.startOnce.Do(x.start)
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

// decompress decompresses one piece in place. If a frame holds more bytes than its header says,
// the piece gets an error. This costs at most one block of memory.
func (x *decompressStage) decompress(p *piece) {
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
	out.SetLen(copy(out.Room(), raw)) // a copy onto itself unless the decoder reallocated
	x.ring.release(p.block)
	p.block = out
}

// workers process pieces on several cores. The taker of a piece waits until it is ready.
type workers struct {
	process func(*piece)
	queue   chan *piece
	meter   meter
	idle    WaitTimers
	running sync.WaitGroup
}

func newWorkers(stage string, n int, do func(*piece)) *workers {
	w := &workers{process: do, queue: make(chan *piece, 2*n), idle: NewWaitTimers(n)}
	for _, watch := range w.idle {
		watch.Start()
	}
	w.meter.name, w.meter.waitIn = stage, w.idle.mean
	return w
}

func (w *workers) start() {
	for _, idle := range w.idle {
		w.running.Go(func() {
			for p := range w.queue {
				idle.Stop()
				w.process(p)
				close(p.ready)
				idle.Start()
			}
		})
	}
}

// stop waits for the workers to finish. The caller must not queue anything afterwards.
func (w *workers) stop() {
	close(w.queue)
	w.running.Wait()
}
