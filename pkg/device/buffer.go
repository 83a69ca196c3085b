package device

import (
	"bytes"
	"sync"
	"unsafe"

	"zxfer/pkg/transport/tcp"
)

// AlignedBuffer returns n bytes at an address that O_DIRECT accepts.
func AlignedBuffer(n int) []byte { return tcp.NewAlignedBlock(n).Room() }

// aligned reports whether O_DIRECT accepts p as memory.
func aligned(p []byte, to int64) bool {
	return len(p) == 0 || uintptr(unsafe.Pointer(&p[0]))%uintptr(to) == 0
}

// IsZero reports whether all bytes of p are zero. It stops at the first other byte.
func IsZero(p []byte) bool {
	// Comparing the buffer with itself, shifted by one byte, runs at cache speed
	// and needs no page of zeros.
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[:len(p)-1], p[1:])
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
