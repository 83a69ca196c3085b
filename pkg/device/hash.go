package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"lukechampine.com/blake3/guts"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// Sum is the hash of one block: its BLAKE3 chaining value at its offset, or its
// xxh3-128. See BlockHash.
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

// BlockHash defines how a device is divided into blocks and hashed.
type BlockHash struct {
	// Block is the length in bytes of all blocks except the last.
	Block int
	// Quick makes the sum of a block its mark, padded with zeros, instead of its
	// LeafHash. Use it only if nobody has an interest in crafting collisions: for
	// copies that do not take target blocks for source blocks by their sums alone,
	// and for plain comparisons.
	Quick bool
}

// Name returns the name of the hash: XXH3 or BLAKE3.
func (c BlockHash) Name() string {
	if c.Quick {
		return XXH3
	}
	return BLAKE3
}

// Sum hashes a block at offset in a device of size bytes.
func (c BlockHash) Sum(block []byte, offset, size int64) Sum {
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
func (c BlockHash) Root(sums []Sum) [32]byte {
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

// DigestQuery requests the digest of a device.
type DigestQuery struct {
	Device Facts `json:"device"`
	// Size limits the digest to the first Size bytes. 0 means the whole device.
	Size    int64   `json:"size,omitempty"`
	Options Options `json:"options"`
}

// Digest is the reply to a DigestQuery.
type Digest struct {
	Result Result `json:"result"`
	// Parts are hashes of consecutive ranges of PartBytes each, at most maxParts.
	// They locate the differences between two devices.
	Parts     [][]byte `json:"parts"`
	PartBytes int64    `json:"part_bytes"`
}

// maxParts limits the size of a Digest.
const maxParts = 4096

// Parts returns the number and the length of the parts of a device hashed in
// blocks.
func Parts(size int64, block int) (count int, bytes int64) {
	blocks := (size + int64(block) - 1) / int64(block)
	per := max(1, (blocks+maxParts-1)/maxParts)
	return int((blocks + per - 1) / per), per * int64(block)
}

// Differences returns the ranges in which two devices differ. Both must have been hashed
// with the same options. Adjacent ranges are joined.
func (d Digest) Differences(other Digest) (out []Range) {
	for i := range max(len(d.Parts), len(other.Parts)) {
		if i < len(d.Parts) && i < len(other.Parts) && bytes.Equal(d.Parts[i], other.Parts[i]) {
			continue
		}
		out = joinRange(out, Range{int64(i) * d.PartBytes, d.PartBytes})
	}
	return out
}

// DigestOf hashes a device. progress may be nil.
func DigestOf(ctx context.Context, q DigestQuery, progress func(transfer.Progress)) (d Digest, err error) {
	if err := q.Options.CheckSize(q.Device.Size); err != nil {
		return d, fmt.Errorf("%s: %w", q.Device.Path, err)
	}
	src, err := OpenSource(ctx, q.Device, false)
	if err != nil {
		return d, err
	}
	if q.Size > 0 {
		src.size = min(src.size, q.Size)
	}
	var sums []Sum
	if d.Result, sums, err = hashAll(ctx, src, q.Options, progress); err != nil {
		return d, err
	}
	d.addParts(sums)
	return d, nil
}

// addParts sets the parts from the sums of all blocks.
func (d *Digest) addParts(sums []Sum) {
	_, d.PartBytes = Parts(d.Result.Device.Size, d.Result.Device.Block)
	for part := range slices.Chunk(sums, max(1, int(d.PartBytes)/d.Result.Device.Block)) {
		fold := foldSums(part)
		d.Parts = append(d.Parts, fold[:])
	}
}

// hashAll hashes a device and returns the sums of its blocks. It always closes the
// source.
func hashAll(ctx context.Context, src blockSource, opt Options, progress func(transfer.Progress)) (_ Result, sums []Sum, err error) {
	opt = opt.filled()
	opt.NoVerify = false // otherwise opt.digest returns ""
	pool := &blockPool{size: opt.Block}
	s := newScan(src, newGrid(src.Size(), opt.BlockHash()), pool, opt.workers())
	s.onBlock = func(_ context.Context, _ int, _, _ int64, b *tcp.Block) error { pool.put(b); return nil }
	res, err := (&transfer.Lifecycle{Engine: hasher{src, s}, Stall: opt.Stall, Report: progress}).Run(ctx)
	if cerr := src.Close(); err == nil {
		err = cerr
	}
	d := Account{Size: s.size, Block: int(s.block)}
	if err != nil {
		return Result{res, d}, nil, err
	}
	d.SourceDigest = opt.digest(s.cut.Root(s.sums))
	return Result{res, d}, s.sums, nil
}

// hasher is the engine of one hashAll.
type hasher struct {
	src  blockSource
	scan *scan
}

func (h hasher) Move(ctx context.Context, _ func(error)) error { return h.scan.run(ctx) }

// Unwind does nothing: Move ends with its context.
func (hasher) Unwind(error) {}

func (h hasher) Commit(context.Context) error { return h.src.Unchanged() }

func (hasher) Abandon() (target string, err error) { return "", nil }

func (h hasher) Account(life time.Duration) transfer.State {
	n := h.scan.hash.bytes.Load()
	return transfer.State{Bytes: n, Moved: n, Stages: h.scan.stages(life)}
}

func (h hasher) Stalled() (what string, network bool) { return h.src.Name() + " sent no data", false }
