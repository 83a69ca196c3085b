package blockdev

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"lukechampine.com/blake3/guts"
)

// CV is a BLAKE3 chaining value: that of a block at its place in a device.
type CV = [32]byte

const simdBytes = guts.MaxSIMD * guts.ChunkSize

// LeafHash returns the chaining value of a block at offset in a device of size
// bytes. Blocks are of one length, a power of two of at least a KiB; only the
// device's last one may be shorter. A device of one block has no other value
// than its digest.
func LeafHash(block []byte, offset, size int64) CV {
	n := subtree(block, uint64(offset)/guts.ChunkSize)
	if offset == 0 && int64(len(block)) == size {
		n.Flags |= guts.FlagRoot
	}
	return cvBytes(guts.ChainingValue(n))
}

func subtree(p []byte, chunk uint64) guts.Node {
	if len(p) <= simdBytes {
		if len(p) == simdBytes {
			return guts.CompressBuffer((*[simdBytes]byte)(p), simdBytes, &guts.IV, chunk, 0)
		}
		var b [simdBytes]byte
		copy(b[:], p)
		return guts.CompressBuffer(&b, len(p), &guts.IV, chunk, 0)
	}
	left := simdBytes
	for left*2 < len(p) {
		left *= 2
	}
	l := guts.ChainingValue(subtree(p[:left], chunk))
	r := guts.ChainingValue(subtree(p[left:], chunk+uint64(left)/guts.ChunkSize))
	return guts.ParentNode(l, r, &guts.IV, 0)
}

func cvBytes(cv [8]uint32) (b CV) {
	for i, w := range cv {
		binary.LittleEndian.PutUint32(b[4*i:], w)
	}
	return b
}

func cvWords(b CV) (cv [8]uint32) {
	for i := range cv {
		cv[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return cv
}

// Tree computes the BLAKE3 of a device, as b3sum prints it, from its blocks'
// chaining values alone.
type Tree struct{ cvs []CV }

// NewTree returns the tree of a device.
func NewTree(size int64, block int) *Tree {
	return &Tree{make([]CV, (size+int64(block)-1)/int64(block))}
}

// Set sets the chaining value of a block.
func (t *Tree) Set(i int64, cv CV) { t.cvs[i] = cv }

// Root is the digest.
func (t *Tree) Root() [32]byte {
	switch len(t.cvs) {
	case 0:
		return LeafHash(nil, 0, 0)
	case 1:
		return t.cvs[0]
	}
	n := reduce(t.cvs)
	n.Flags |= guts.FlagRoot
	return cvBytes(guts.ChainingValue(n))
}

func reduce(cvs []CV) guts.Node {
	left := 1
	for left*2 < len(cvs) {
		left *= 2
	}
	side := func(c []CV) [8]uint32 {
		if len(c) == 1 {
			return cvWords(c[0])
		}
		return guts.ChainingValue(reduce(c))
	}
	return guts.ParentNode(side(cvs[:left]), side(cvs[left:]), &guts.IV, 0)
}

// IsZero tells whether all bytes are zero.
func IsZero(p []byte) bool {
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[:len(p)-1], p[1:])
}

// AlignedBuffer returns n bytes at a page boundary.
func AlignedBuffer(n int) []byte {
	b := make([]byte, n+4096)
	off := 0
	if r := int(uintptr(unsafe.Pointer(&b[0])) % 4096); r != 0 {
		off = 4096 - r
	}
	return b[off : off+n : off+n]
}
