package device

import (
	"sync"

	"zxfer/pkg/transport/tcp"
)

// grid divides a device of size bytes into count blocks of block bytes.
type grid struct {
	cut   Cut
	size  int64
	block int64
	count int64
}

func newGrid(size int64, cut Cut) grid {
	b := int64(cut.Block)
	return grid{cut: cut, size: size, block: b, count: (size + b - 1) / b}
}

// length returns the bytes of block i. Only the last block may be shorter.
func (g grid) length(i int64) int64 { return min(g.block, g.size-i*g.block) }

// bytes returns the length of a run of blocks.
func (g grid) bytes(first, count int64) int64 {
	return min((first+count)*g.block, g.size) - first*g.block
}

// sum hashes block i. BLAKE3 numbers its chunks, so even equal blocks have
// different sums.
func (g grid) sum(i int64, p []byte) Sum { return g.cut.Sum(p, i*g.block, g.size) }

// mark returns the mark of a block with a known sum.
func (g grid) mark(p []byte, sum Sum) Mark {
	if g.cut.Quick {
		return Mark(sum[:tcp.MarkSize])
	}
	return MarkOf(p)
}

// appendTrailer appends sums and a mark to the n bytes of payload in b.
func trail(b *tcp.Block, n int, sums []Sum, mark Mark) {
	room := b.Room()
	for _, s := range sums {
		n += copy(room[n:], s[:])
	}
	b.SetLen(n + copy(room[n:], mark[:]))
}

// parseSums parses a payload of sums.
func cutSums(p []byte) []Sum {
	sums := make([]Sum, len(p)/tcp.SumSize)
	for i := range sums {
		copy(sums[i][:], p[i*tcp.SumSize:])
	}
	return sums
}

// splitTrailer splits a payload. The header's check has ensured that it is long
// enough.
func cutTrail(p []byte) (data []byte, sum Sum, mark Mark) {
	n := len(p) - tcp.TrailSize
	return p[:n], Sum(p[n:]), Mark(p[n+tcp.SumSize:])
}

// blockPool keeps blocks for reuse. It returns the last used first, whose memory is
// most likely cached.
type blockPool struct {
	mu   sync.Mutex
	size int
	free []*tcp.Block
}

func (p *blockPool) get() *tcp.Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return tcp.NewAlignedBlock(p.size)
}

// put returns a block to the pool. b may be nil.
func (p *blockPool) put(b *tcp.Block) {
	if b == nil {
		return
	}
	p.mu.Lock()
	p.free = append(p.free, b)
	p.mu.Unlock()
}
