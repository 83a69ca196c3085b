package transfer

import (
	"encoding/hex"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"zxfer/pkg/device"
	"zxfer/pkg/wire"
)

// grid divides a device into blocks.
type grid struct {
	cut   device.Cut
	size  int64
	block int64
	count int64
}

func newGrid(size int64, cut device.Cut) grid {
	b := int64(cut.Block)
	return grid{cut: cut, size: size, block: b, count: (size + b - 1) / b}
}

// length is the bytes of a block: the last one may be shorter.
func (g grid) length(i int64) int64 { return min(g.block, g.size-i*g.block) }

// bytes is the length of a run of blocks.
func (g grid) bytes(first, count int64) int64 {
	return min((first+count)*g.block, g.size) - first*g.block
}

// sum hashes a block at its place. BLAKE3 numbers its chunks, so the hash of a
// block of zeros, too, depends on where it is.
func (g grid) sum(i int64, p []byte) BlockSum { return g.cut.Sum(p, i*g.block, g.size) }

// mark is that of a block whose hash is known.
func (g grid) mark(p []byte, sum BlockSum) BlockMark {
	if g.cut.Quick {
		return BlockMark(sum[:wire.MarkSize])
	}
	return device.Mark(p)
}

// trail appends hashes and a mark to a payload in b.
func trail(b *wire.Block, n int, sums []BlockSum, mark BlockMark) {
	room := b.Room()
	for _, s := range sums {
		n += copy(room[n:], s[:])
	}
	b.SetLen(n + copy(room[n:], mark[:]))
}

// cutTrail takes a payload apart; the header said that it is long enough.
func cutTrail(p []byte) (data []byte, sum BlockSum, mark BlockMark) {
	n := len(p) - wire.TrailSize
	return p[:n], BlockSum(p[n:]), BlockMark(p[n+wire.SumSize:])
}

// digest is the BLAKE3 of the whole device in hex, "" if its blocks have other
// hashes.
func (g grid) digest(root [32]byte) string {
	if g.cut.Quick {
		return ""
	}
	return hex.EncodeToString(root[:])
}

// FoldSums makes one hash of those of several blocks.
func FoldSums(sums []BlockSum) BlockMark {
	h := xxh3.New128()
	for _, s := range sums {
		_, _ = h.Write(s[:]) // never fails
	}
	return h.Sum128().Bytes()
}

// blockPool keeps blocks for reuse, the last used on top: it is the warmest.
type blockPool struct {
	mu   sync.Mutex
	size int
	free []*wire.Block
}

func (p *blockPool) get() *wire.Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return wire.NewAlignedBlock(p.size)
}

func (p *blockPool) put(b *wire.Block) {
	p.mu.Lock()
	p.free = append(p.free, b)
	p.mu.Unlock()
}

// effort meters a stage of several goroutines by the time that they work, not
// by the time that they wait: one goroutine serves several stages here, each
// in its turn.
type effort struct {
	name  string
	bytes atomic.Int64
	watch []*wire.Stopwatch // one for each goroutine
}

func newEffort(name string, n int) *effort { return &effort{name: name, watch: stopwatches(n)} }

// running tells whether any of its goroutines works.
func (e *effort) running() bool {
	return slices.ContainsFunc(e.watch, (*wire.Stopwatch).Running)
}

// stage is what the stage did. What it did not spend on work counts as waiting
// for its output if it produces, and for its input if it consumes.
func (e *effort) stage(life time.Duration, produces bool) Stage {
	busy := min(life, waits(e.watch...)(life))
	s := Stage{Name: e.name, Bytes: e.bytes.Load(), Busy: busy}
	if produces {
		s.WaitOut = life - busy
	} else {
		s.WaitIn = life - busy
	}
	return s
}
