package transfer

import (
	"context"
	"fmt"
	"sync"

	"zxfer/pkg/transport/tcp"
)

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
