package transfer

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transport/tcp"
)

// blockMemory allocates the blocks of a ring. It maps large ones from the kernel, in huge pages if
// it has some. After unmap, the pages that a pipe still refers to keep their contents (see lender).
// The Go heap would reuse them.
type blockMemory struct {
	size, front int // of each block, see tcp.NewBlock

	maps [][]byte // as mapped
	left []byte   // unused rest of the last one
	heap bool     // a block is on the heap
}

const (
	// mapSize is the least size of a mapping in bytes. The kernel provides its pages on first use.
	mapSize = initialSize
	// hugePage is the size of a huge page in bytes on x86-64, and on arm64 with pages of 4 KiB. Before
	// Linux 6.7, mappings are not aligned to it.
	hugePage = 2 << 20
)

// newBlock returns an empty block.
func (m *blockMemory) newBlock() *tcp.Block {
	page := os.Getpagesize()
	need := (tcp.BlockMemory(m.size, m.front) + page - 1) / page * page
	if m.size <= SmallBlock || len(m.left) < need && !m.mapMore(need) {
		m.heap = true
		return tcp.NewBlock(m.size, m.front)
	}
	b := tcp.NewBlockIn(m.left, m.size, m.front)
	m.left = m.left[need:]
	return b
}

// mapMore maps memory for at least n bytes. It reports false if the kernel refuses.
func (m *blockMemory) mapMore(n int) bool {
	p, err := unix.Mmap(-1, 0, max(n, mapSize)+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false
	}
	m.maps = append(m.maps, p)
	m.left = p[-uintptr(unsafe.Pointer(&p[0]))%hugePage:]
	_ = unix.Madvise(m.left, unix.MADV_HUGEPAGE) // without huge pages it is slower
	return true
}

// mapped reports whether no block is on the heap.
func (m *blockMemory) mapped() bool { return !m.heap }

// unmap releases the mapped blocks.
func (m *blockMemory) unmap() {
	for _, p := range m.maps {
		_ = unix.Munmap(p) // fails only for memory that is not mapped
	}
	m.maps, m.left = nil, nil
}
