package device

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
	"lukechampine.com/blake3/guts"

	"zxfer/pkg/transport/tcp"
)

// Sum is the hash of one block at its place in a device: its BLAKE3 chaining
// value, of which the digest of the whole device follows, or, where nobody asks
// for a digest, something quicker: see Cut.
type Sum = [tcp.SumSize]byte

// Mark is the xxh3-128 of what a block holds. It travels with the block and is
// compared with what the target reads back: that is BLAKE3's work at a twentieth
// of the price. It tells whether memory, a disk or a cable changed a block; but
// whoever wants two blocks to have the same one can make such blocks, and is
// kept off by the wire.
// https://github.com/Cyan4973/xxHash/blob/v0.8.3/README.md
type Mark = [tcp.MarkSize]byte

// simdBytes is what the assembly hashes at once.
const simdBytes = guts.MaxSIMD * guts.ChunkSize

// LeafHash returns the chaining value of a block that lies at offset in a
// device of size bytes. Blocks must be of a power of two of at least 1 KiB, the
// last one may be shorter, and lie at a multiple of that. BLAKE3 numbers its
// chunks, so equal blocks at different offsets, zeros too, differ.
// https://github.com/BLAKE3-team/BLAKE3-specs/blob/master/blake3.pdf, section 2.1
func LeafHash(block []byte, offset, size int64) Sum {
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

// Root returns the BLAKE3 of a device, as b3sum prints it, from the chaining
// values of all its blocks.
func Root(cvs []Sum) [32]byte {
	switch len(cvs) {
	case 0:
		return LeafHash(nil, 0, 0)
	case 1:
		return cvs[0]
	}
	n := parent(cvs)
	n.Flags |= guts.FlagRoot
	return toBytes(guts.ChainingValue(n))
}

// MarkOf returns the Mark of a block.
func MarkOf(block []byte) Mark { return xxh3.Hash128(block).Bytes() }

// Cut says how a copy cuts a device into blocks and hashes each.
type Cut struct {
	// Block is the length of all blocks but the last in bytes.
	Block int
	// Quick has a block's hash be its Mark, followed by zeros, not its LeafHash:
	// for copies that compare nothing but one source with its own past, and for
	// comparisons of what nobody made to be taken for another.
	Quick bool
}

// Name is that of the hash.
func (c Cut) Name() string {
	if c.Quick {
		return XXH3
	}
	return BLAKE3
}

// Sum hashes a block that lies at offset in a device of size bytes.
func (c Cut) Sum(block []byte, offset, size int64) Sum {
	if !c.Quick {
		return LeafHash(block, offset, size)
	}
	var sum Sum
	m := MarkOf(block)
	copy(sum[:], m[:])
	return sum
}

// Root is the digest of all blocks: Root of their LeafHashes; of the quick ones
// a hash that is good for nothing but to compare both ends.
func (c Cut) Root(sums []Sum) [32]byte {
	if !c.Quick {
		return Root(sums)
	}
	var root [32]byte
	m := foldSums(sums)
	copy(root[:], m[:])
	return root
}

// foldSums makes one hash of those of several blocks.
func foldSums(sums []Sum) Mark {
	h := xxh3.New128()
	for _, s := range sums {
		_, _ = h.Write(s[:]) // never fails
	}
	return h.Sum128().Bytes()
}

func parent(cvs []Sum) guts.Node {
	left := leftOf(len(cvs))
	side := func(c []Sum) [8]uint32 {
		if len(c) == 1 {
			return toWords(c[0])
		}
		return guts.ChainingValue(parent(c))
	}
	return guts.ParentNode(side(cvs[:left]), side(cvs[left:]), &guts.IV, 0)
}

func toBytes(words [8]uint32) (b Sum) {
	for i, w := range words {
		binary.LittleEndian.PutUint32(b[4*i:], w)
	}
	return b
}

func toWords(b Sum) (words [8]uint32) {
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words
}
