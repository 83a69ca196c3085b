package transfer

import (
	"context"
	"fmt"
	"sync"

	"zxfer/pkg/wire"
)

// expander decompresses pieces between the connections and the sink. It starts
// with the first compressed frame; most streams have none.
type expander struct {
	ring    *ring
	threads int
	meter   meter
	idle    Watches

	decode  func(packed, room []byte) ([]byte, error)
	starts  sync.Once
	work    chan *piece
	workers sync.WaitGroup
}

func newExpander(o Options, r *ring) *expander {
	x := &expander{ring: r, threads: o.threads(), decode: NewDecoder(o)}
	x.work = make(chan *piece, 2*x.threads)
	x.idle = NewWatches(x.threads)
	for _, w := range x.idle {
		w.Start()
	}
	x.meter.name, x.meter.in = StageExpand, x.idle.mean
	return x
}

// add hands a piece to the workers. busy meters the time that they have no
// room. It is called by several goroutines.
func (x *expander) add(ctx context.Context, p *piece, busy *wire.Stopwatch) error {
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
}

// piece decompresses one piece in place.
func (x *expander) piece(p *piece) {
	x.meter.bytes.Add(int64(p.header.Raw))
	out := x.ring.get()
	raw, err := x.decode(p.block.Payload(), out.Room()[:0])
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
