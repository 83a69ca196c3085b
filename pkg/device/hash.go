package device

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
	"lukechampine.com/blake3/guts"

	"zxfer/pkg/transport/tcp"
)

// Sum is the hash of one block: its BLAKE3 chaining value at its offset, or its
// xxh3-128. See Cut.
type Sum = [tcp.SumSize]byte

// Mark is the xxh3-128 of a block's data. It travels with the block and is compared
// with the data read back from the target, at a twentieth of the cost of BLAKE3. It
// detects faults of memory, disks and cables. It does not resist deliberate
// collisions; the authenticated transport keeps attackers out.
// https://github.com/Cyan4973/xxHash/blob/v0.8.3/README.md
type Mark = [tcp.MarkSize]byte

// simdBytes is the number of bytes that the assembly hashes in one call.
const simdBytes = guts.MaxSIMD * guts.ChunkSize

// LeafHash returns the BLAKE3 chaining value of a block at offset in a device of
// size bytes. The block length must be a power of two of at least 1 KiB, except for
// the last block. offset must be a multiple of the block length. BLAKE3 numbers its
// chunks, so equal blocks at different offsets have different values.
// https://github.com/BLAKE3-team/BLAKE3-specs/blob/master/blake3.pdf, section 2.1
func LeafHash(block []byte, offset, size int64) Sum {
	n := subtree(block, uint64(offset)/guts.ChunkSize)
	if offset == 0 && int64(len(block)) == size {
		n.Flags |= guts.FlagRoot
	}
	return toBytes(guts.ChainingValue(n))
}

// subtree hashes p, which starts at the given chunk number.
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

// leftOf returns the largest power of two below n. n must be at least 2. BLAKE3
// makes the left subtree as large as possible.
func leftOf(n int) int { return 1 << (bits.Len(uint(n-1)) - 1) }

// Root returns the BLAKE3 digest of a device, as b3sum prints it, from the chaining
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

// MarkOf returns the mark of a block.
func MarkOf(block []byte) Mark { return xxh3.Hash128(block).Bytes() }

// Cut defines how a device is divided into blocks and hashed.
type Cut struct {
	// Block is the length in bytes of all blocks except the last.
	Block int
	// Quick makes the sum of a block its mark, padded with zeros, instead of its
	// LeafHash. Use it only if nobody has an interest in crafting collisions: for
	// copies that do not take target blocks for source blocks by their sums alone,
	// and for plain comparisons.
	Quick bool
}

// Name returns the name of the hash: XXH3 or BLAKE3.
func (c Cut) Name() string {
	if c.Quick {
		return XXH3
	}
	return BLAKE3
}

// Sum hashes a block at offset in a device of size bytes.
func (c Cut) Sum(block []byte, offset, size int64) Sum {
	if !c.Quick {
		return LeafHash(block, offset, size)
	}
	var sum Sum
	m := MarkOf(block)
	copy(sum[:], m[:])
	return sum
}

// Root returns the digest of a device from the sums of its blocks. With Quick it
// depends on the block length, so it can only be compared with digests of the same
// cut.
func (c Cut) Root(sums []Sum) [32]byte {
	if !c.Quick {
		return Root(sums)
	}
	var root [32]byte
	m := foldSums(sums)
	copy(root[:], m[:])
	return root
}

// foldSums hashes several sums into one.
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
