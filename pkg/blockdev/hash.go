package blockdev

import (
	"encoding/binary"
	"math/bits"

	"lukechampine.com/blake3/guts"
)

// CV is a BLAKE3 chaining value: the hash of one block at its place in a
// device. The digest of the device follows from those of its blocks.
type CV = [32]byte

// simdBytes is what the assembly hashes at once.
const simdBytes = guts.MaxSIMD * guts.ChunkSize

// LeafHash returns the chaining value of a block that lies at offset in a
// device of size bytes. Blocks must be of a power of two of at least 1 KiB, the
// last one may be shorter, and lie at a multiple of that. BLAKE3 numbers its
// chunks, so equal blocks at different offsets, zeros too, differ.
// https://github.com/BLAKE3-team/BLAKE3-specs/blob/master/blake3.pdf, section 2.1
func LeafHash(block []byte, offset, size int64) CV {
	n := subtree(block, uint64(offset)/guts.ChunkSize)
	if offset == 0 && int64(len(block)) == size {
		n.Flags |= guts.FlagRoot
	}
	return toBytes(guts.ChainingValue(n))
}

// subtree hashes p, which begins with the chunk of that number.
func subtree(p []byte, chunk uint64) guts.Node {
	switch {
	case len(p) == simdBytes:
		return guts.CompressBuffer((*[simdBytes]byte)(p), simdBytes, &guts.IV, chunk, 0)
	case len(p) < simdBytes:
		var b [simdBytes]byte
		copy(b[:], p)
		return guts.CompressBuffer(&b, len(p), &guts.IV, chunk, 0)
	}
	left := leftOf(len(p))
	l := guts.ChainingValue(subtree(p[:left], chunk))
	r := guts.ChainingValue(subtree(p[left:], chunk+uint64(left)/guts.ChunkSize))
	return guts.ParentNode(l, r, &guts.IV, 0)
}

// leftOf is the largest power of two below n > 1: BLAKE3 gives the left side
// as much as it can.
func leftOf(n int) int { return 1 << (bits.Len(uint(n-1)) - 1) }

// Tree computes the BLAKE3 of a device from the chaining values of its blocks,
// which may come in any order. It takes 32 bytes a block. Set may be called
// from several goroutines for different blocks.
type Tree struct{ cvs []CV }

// NewTree returns the tree of a device of size bytes in blocks of that many.
func NewTree(size int64, block int) *Tree {
	return &Tree{make([]CV, (size+int64(block)-1)/int64(block))}
}

// Set sets the chaining value of a block.
func (t *Tree) Set(block int64, cv CV) { t.cvs[block] = cv }

// Root returns the digest, as b3sum prints it. Every block must have been set.
func (t *Tree) Root() [32]byte {
	switch len(t.cvs) {
	case 0:
		return LeafHash(nil, 0, 0)
	case 1:
		return t.cvs[0]
	}
	n := parent(t.cvs)
	n.Flags |= guts.FlagRoot
	return toBytes(guts.ChainingValue(n))
}

func parent(cvs []CV) guts.Node {
	left := leftOf(len(cvs))
	side := func(c []CV) [8]uint32 {
		if len(c) == 1 {
			return toWords(c[0])
		}
		return guts.ChainingValue(parent(c))
	}
	return guts.ParentNode(side(cvs[:left]), side(cvs[left:]), &guts.IV, 0)
}

func toBytes(words [8]uint32) (b CV) {
	for i, w := range words {
		binary.LittleEndian.PutUint32(b[4*i:], w)
	}
	return b
}

func toWords(b CV) (words [8]uint32) {
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words
}
