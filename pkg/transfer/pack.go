package transfer

import (
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
