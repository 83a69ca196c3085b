package device

import (
	"encoding/hex"
	"fmt"
	"runtime"

	"zxfer/pkg/fault"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// Options shape a copy. Both ends must be given the same Block, a power of two
// from MinBlock to wire.MaxRaw; the other fields of transfer.Options mean what
// they do for a stream.
type Options struct {
	transfer.Options
	// Delta has the target hash what it holds, so that only what differs is
	// sent.
	Delta bool
	// NoVerify does not read back what was written. Nor is there a digest then.
	NoVerify bool
	// Quick hashes blocks with xxh3, which finds every fault of memory, disks
	// and cables, instead of BLAKE3, which b3sum knows. An earlier build has no
	// such field, and refuses it.
	Quick bool `json:"quick,omitempty"`
	// VerifyLater reads back when all is written, not meanwhile: for disks
	// with one head.
	VerifyLater bool
}

// Bounds and defaults of Options.
const (
	MinBlock = 64 << 10
	// defaultBuffer is smaller than a stream's: a device has no bursts
	// as long as those of a pool, and memory that stays in the processor's
	// cache is faster: with 64 MiB a copy over loopback took an eighth more of it.
	defaultBuffer = 16 << 20
	// workersHold bounds what the goroutines that read, or write, hold in bytes,
	// beside the buffer.
	workersHold = 32 << 20
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

// maxBlocks bounds the blocks of a device: either end keeps up to 49 bytes of
// each. It is a PiB in the largest blocks.
const maxBlocks = 1 << 26

// Fits tells why a device of so many bytes, as somebody says, cannot be copied
// in such blocks: memory is allocated for what it says.
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

// workers is how many goroutines read, or write, a device at once: enough to
// keep a drive's queue filled while some of them compute. Large blocks fill it
// by themselves, and each goroutine holds one.
func (o Options) workers() int {
	return min(16, max(4, 2*runtime.NumCPU()), max(2, workersHold/o.Block))
}

// Cut says how both ends cut and hash the device. With Delta a block of the
// target is taken for the source's because its hash is, whoever wrote it: there
// nothing but BLAKE3 will do.
func (o Options) Cut() Cut {
	return Cut{Block: o.Block, Quick: (o.Quick || o.NoVerify) && !o.Delta}
}

// What Options.Digest and Cut.Name name.
const (
	XXH3   = "xxh3"
	BLAKE3 = "blake3"
)

// Digest names what digests are told of a copy or a comparison, "" for none.
func (o Options) Digest() string {
	if o.NoVerify && !o.Quick && !o.Delta {
		return ""
	}
	return o.Cut().Name()
}

// digest is a device's digest in hex, as it is told.
func (o Options) digest(root [32]byte) string {
	switch o.Digest() {
	case BLAKE3:
		return hex.EncodeToString(root[:])
	case XXH3:
		return hex.EncodeToString(root[:tcp.MarkSize])
	}
	return ""
}

// queue is how many blocks wait between two stages beside those that the
// connections and compressors hold.
func (o Options) queue(held int) int { return max(2, int(o.Buffer/int64(o.Block))-held) }

// room is what the largest frame of a block takes. What cannot be compressed
// becomes 3 bytes longer with every block of zstd's own, of 64 KiB or more, and
// that is known when it is done: RFC 8878, section 3.1.1.2.
func (o Options) room() int { return o.Block + o.Block>>14 + 64 + tcp.TrailSize }

// Result is one end's account of a copy.
type Result struct {
	transfer.Result
	Device Account `json:"device"`
}

// Account is what a copy did beyond moving bytes. An end leaves at 0 what only
// the other one knows.
type Account struct {
	Size     int64 `json:"size"`
	Block    int   `json:"block"`
	Data     int64 `json:"data"`              // bytes sent or written as data
	Zeros    int64 `json:"zeros"`             // bytes that were zeros: neither sent nor stored as data
	Present  int64 `json:"present"`           // bytes that the target held already
	Resumed  int64 `json:"resumed,omitempty"` // of those, bytes that a journal vouched for
	Verified int64 `json:"verified"`          // bytes read back and found right
	// SourceDigest and TargetDigest are in hex what Options.Digest names: the
	// BLAKE3 of all Size bytes, as b3sum prints it, or the xxh3-128 of that of all
	// blocks, which only what is cut into as large ones has; "" without
	// verification. That of the target is of the hashes whose blocks were read
	// back with the right marks.
	SourceDigest string  `json:"source_digest,omitempty"`
	TargetDigest string  `json:"target_digest,omitempty"`
	BadRanges    []Range `json:"bad_ranges,omitempty"`
}
