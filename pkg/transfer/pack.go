package transfer

import (
	"sync"
	"sync/atomic"

	"zxfer/pkg/wire"
)

// packer compresses pieces between the reader and the ring's takers.
type packer struct {
	*Compressor
	work   chan *piece
	meter  meter
	idle   Watches
	packed atomic.Int64 // pieces done; those not yet taken are the backlog
}

// newPacker returns nil where nothing is compressed.
func newPacker(o Options) (*packer, error) {
	c, err := NewCompressor(o)
	if c == nil {
		return nil, err
	}
	k := &packer{Compressor: c, work: make(chan *piece, 2*c.Threads), idle: NewWatches(c.Threads)}
	k.meter.name, k.meter.in = StageCompress, k.idle.mean
	return k, nil
}

// add hands a piece to the workers.
func (k *packer) add(p *piece) {
	p.ready = make(chan struct{})
	k.work <- p // workers never block: there is room again soon
}

// start starts the workers; they end when work is closed.
func (k *packer) start(g *sync.WaitGroup, r *ring) {
	for i := range k.Threads {
		g.Add(1)
		go func() {
			defer g.Done()
			k.idle[i].Start()
			for p := range k.work {
				k.idle[i].Stop()
				k.pack(p, r)
				close(p.ready)
				k.idle[i].Start()
			}
		}()
	}
}

// pack replaces a piece's block by a compressed one, if that is worth it.
func (k *packer) pack(p *piece, r *ring) {
	defer k.packed.Add(1)
	k.meter.bytes.Add(int64(len(p.block.Payload())))
	packed := k.Encode(p.block, k.packed.Load()-int64(r.taken()), r.get, r.release)
	if packed != nil {
		p.header.Flags |= wire.Compressed
		r.release(p.block)
		p.block = packed
	}
}
