package transfer

import (
	"context"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/wire"
)

// expander decompresses pieces between the connections and the sink. It starts
// with the first compressed frame; most streams have none.
type expander struct {
	ring    *ring
	threads int
	meter   meter
	idle    []*wire.Stopwatch

	opening sync.Once
	starts  sync.Once
	decoder *zstd.Decoder
	err     error
	work    chan *piece
	workers sync.WaitGroup
}

func newExpander(o Options, r *ring) *expander {
	x := &expander{ring: r, threads: o.threads()}
	x.work = make(chan *piece, 2*x.threads)
	x.idle = stopwatches(x.threads)
	for _, w := range x.idle {
		w.Start()
	}
	x.meter.name, x.meter.in = StageExpand, waits(x.idle...)
	return x
}

func (x *expander) open() error {
	x.opening.Do(func() {
		// No frame stands for more than a block, whatever it claims.
		x.decoder, x.err = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(x.ring.block)), zstd.WithDecoderConcurrency(x.threads))
	})
	return x.err
}

// add hands a piece to the workers. busy meters the time that they have no
// room. It is called by several goroutines.
func (x *expander) add(ctx context.Context, p *piece, busy *wire.Stopwatch) error {
	if err := x.open(); err != nil {
		return err
	}
	x.starts.Do(x.start)
	p.ready = make(chan struct{})
	select {
	case x.work <- p:
		return nil
	default:
	}
	busy.Start()
	defer busy.Stop()
	select {
	case x.work <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// start starts the workers.
func (x *expander) start() {
	for i := range x.threads {
		x.workers.Add(1)
		go func() {
			defer x.workers.Done()
			for p := range x.work {
				x.idle[i].Stop()
				x.piece(p)
				close(p.ready)
				x.idle[i].Start()
			}
		}()
	}
}

// stop ends the workers. Nobody may call add any more.
func (x *expander) stop() {
	close(x.work)
	x.workers.Wait()
	if x.decoder != nil {
		x.decoder.Close()
	}
}

// piece decompresses one piece in place.
func (x *expander) piece(p *piece) {
	if p.err = x.open(); p.err != nil {
		return
	}
	x.meter.bytes.Add(int64(p.header.Raw))
	out := x.ring.get()
	raw, err := x.decoder.DecodeAll(p.block.Payload(), out.Room()[:0])
	if err != nil || len(raw) != int(p.header.Raw) || len(raw) > len(out.Room()) {
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
