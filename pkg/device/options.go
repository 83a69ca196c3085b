package device

import (
	"encoding/hex"
	"fmt"
	"runtime"

	"zxfer/pkg/fault"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// Options control a copy. Both ends must use the same Block, a power of two from
// MinBlock to tcp.MaxRaw. The other fields of transfer.Options work as for a
// stream.
type Options struct {
	transfer.Options
	// Delta makes the target hash its blocks, so that only different blocks are
	// sent.
	Delta bool
	// NoVerify disables the read-back. There is no digest then, except with Quick
	// or Delta.
	NoVerify bool
	// Quick hashes blocks with xxh3 instead of BLAKE3. xxh3 detects all faults of
	// memory, disks and cables. Earlier builds reject this field.
	Quick bool `json:"quick,omitempty"`
	// VerifyLater reads back after all writes, which avoids seeks on rotating
	// disks.
	VerifyLater bool
}

// Limits and defaults of Options.
const (
	MinBlock = 64 << 10
	// A device has shorter stalls than a pool, so less buffering is enough. It
	// stays in the processor's cache: with 64 MiB, a copy over loopback used an
	// eighth more CPU.
	defaultBuffer = 16 << 20
	// workerMemory limits the blocks held by the readers or writers, in addition to
	// the buffer, in bytes.
	workerMemory = 32 << 20
)

// filled returns the options with defaults applied.
func (o Options) filled() Options {
	buffer := o.Buffer
	o.Options = o.Options.Filled()
	if buffer <= 0 {
		o.Buffer = defaultBuffer
	}
	return o
}

// maxBlocks limits the blocks of a device, because each end keeps up to 49 bytes
// per block. With the largest blocks, this is 1 PiB.
const maxBlocks = 1 << 26

// Fits returns an error if a device of size bytes is too large for the block size.
// Check sizes from a peer with it before allocating memory.
func (o Options) Fits(size int64) error {
	block := int64(o.filled().Block)
	switch {
	case size < 0:
		return fmt.Errorf("a device of %d bytes", size)
	case size/block >= maxBlocks:
		return fault.Refusef("use larger blocks: {{bs 16M}}", "%d bytes in blocks of %d: a copy keeps track of %d blocks at most", size, block, maxBlocks)
	}
	return nil
}

// workers returns the number of goroutines that read, or write, a device. They keep
// a drive's queue full while some of them compute. Large blocks need fewer, and
// each goroutine holds one block.
func (o Options) workers() int {
	return min(16, max(4, 2*runtime.NumCPU()), max(2, workerMemory/o.Block))
}

// Cut returns how both ends divide and hash the device. Delta requires BLAKE3,
// because it accepts any target block with the same sum, no matter who wrote it.
func (o Options) Cut() Cut {
	return Cut{Block: o.Block, Quick: (o.Quick || o.NoVerify) && !o.Delta}
}

// Hash names that Options.Digest and Cut.Name return.
const (
	XXH3   = "xxh3"
	BLAKE3 = "blake3"
)

// Digest returns the hash used for the digests of a copy or comparison, or "" if
// there is none.
func (o Options) Digest() string {
	if o.NoVerify && !o.Quick && !o.Delta {
		return ""
	}
	return o.Cut().Name()
}

// digest formats a digest in hex, or returns "" if there is none.
func (o Options) digest(root [32]byte) string {
	switch o.Digest() {
	case BLAKE3:
		return hex.EncodeToString(root[:])
	case XXH3:
		return hex.EncodeToString(root[:tcp.MarkSize])
	}
	return ""
}

// queueLen returns the number of blocks queued between two stages, without the held
// blocks of connections and compressors.
func (o Options) queueLen(held int) int { return max(2, int(o.Buffer/int64(o.Block))-held) }

// frameSize returns the maximum payload of a frame. Incompressible data grows by 3
// bytes per zstd block of at least 64 KiB, and the compressor discovers this only
// at the end: RFC 8878, section 3.1.1.2.
func (o Options) frameSize() int { return o.Block + o.Block>>14 + 64 + tcp.TrailSize }

// Result is one end's result of a copy.
type Result struct {
	transfer.Result
	Device Account `json:"device"`
}

// Account holds the statistics of a copy. Fields that only the other end knows are
// 0.
type Account struct {
	Size     int64 `json:"size"`
	Block    int   `json:"block"`
	Data     int64 `json:"data"`              // bytes sent or written as data
	Zeros    int64 `json:"zeros"`             // zero bytes, neither sent nor stored as data
	Present  int64 `json:"present"`           // bytes already on the target
	Resumed  int64 `json:"resumed,omitempty"` // part of Present: bytes in the journal
	Verified int64 `json:"verified"`          // bytes read back and found correct
	// SourceDigest and TargetDigest are in hex, hashed as Options.Digest says:
	// BLAKE3 of all Size bytes, as b3sum prints it, or xxh3-128 of all sums, which
	// depends on the block size. They are empty without a digest. TargetDigest
	// covers only sums of blocks that were read back with the expected marks.
	SourceDigest string  `json:"source_digest,omitempty"`
	TargetDigest string  `json:"target_digest,omitempty"`
	BadRanges    []Range `json:"bad_ranges,omitempty"`
}
