package transfer

import (
	"fmt"
	"io"
	"runtime"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/wire"
)

// BlockSource is a device or image file that is read block by block. All
// methods may be called from several goroutines.
type BlockSource interface {
	// ReadAt fills p, at most one block, or fails.
	io.ReaderAt
	// Size is the number of bytes to copy.
	Size() int64
	// NextData returns the next range at or after off that may hold anything
	// but zeros; start is Size where there is none.
	NextData(off int64) (start, end int64, err error)
	// Unchanged tells why what was read is not of one piece: the file was
	// truncated or written while it was copied.
	Unchanged() error
	// BadRanges are those that could not be read and were passed over as
	// zeros; only where that was asked for.
	BadRanges() []Range
	Close() error
	// Name says what is read, for messages: "/dev/sda".
	Name() string
}

// BlockTarget is a device or image file that is written block by block. All
// methods may be called from several goroutines.
type BlockTarget interface {
	// ReadAt reads what the device holds, not what a cache remembers; less
	// than len(p) bytes with io.EOF where the target ends there.
	io.ReaderAt
	io.WriterAt
	// Zero makes a range read as zeros.
	Zero(off, n int64) error
	// NextData is that of a BlockSource.
	NextData(off int64) (start, end int64, err error)
	// Sync returns once everything that was written is stored.
	Sync() error
	// DropCache makes later reads come from the device.
	DropCache() error
	// Commit ends a copy that is complete: it checks that the device is
	// still the one that was opened and gives a file its size.
	Commit() error
	Close() error
	Name() string
}

// BlockJournal remembers, on the target's host, which blocks are stored.
type BlockJournal interface {
	// Stored calls f for every block that an earlier copy stored, in no
	// order; a later call for the same block counts.
	Stored(f func(index int64, sum BlockSum)) error
	// Add notes blocks that are stored for good: synced before the call.
	Add(blocks []StoredBlock) error
	// Remove forgets everything.
	Remove() error
	Close() error
}

// BlockSum is the hash of one block: its BLAKE3 chaining value at its place in
// the device, of which the digest of the whole device is computed, or, where
// nobody asks for a digest, something quicker. See device.Cut.
type BlockSum = [wire.SumSize]byte

// BlockMark is the xxh3-128 of what a block holds. It travels with the block
// and is compared with what the target reads back: that is BLAKE3's work at a
// twentieth of the price. Whoever could forge it is kept off by the wire.
type BlockMark = [wire.MarkSize]byte

// StoredBlock is one block of a journal.
type StoredBlock struct {
	Index int64
	Sum   BlockSum
}

// Range is a part of a device in bytes.
type Range struct {
	Start  int64 `json:"start"`
	Length int64 `json:"length"`
}

// DeviceOptions shape a copy of a device. Both ends must be given the same
// Block, a power of two from MinDeviceBlock to wire.MaxRaw; of Options the
// other fields mean what they do for a stream.
type DeviceOptions struct {
	Options
	// Delta has the target hash what it holds, so that only what differs is
	// sent.
	Delta bool
	// NoVerify does not read back what was written. Nor is there a digest then.
	NoVerify bool
	// VerifyLater reads back when all is written, not meanwhile: for disks
	// with one head.
	VerifyLater bool
}

// Bounds and defaults of DeviceOptions.
const (
	MinDeviceBlock = 64 << 10
	// defaultDeviceBuffer is smaller than a stream's: a device has no bursts
	// as long as those of a pool, and memory that stays in the processor's
	// cache is faster.
	defaultDeviceBuffer = 64 << 20
	// workersHold bounds what the goroutines that read, or write, hold in bytes,
	// beside the buffer.
	workersHold = 32 << 20
)

// filled returns the options with defaults applied.
func (o DeviceOptions) filled() DeviceOptions {
	buffer := o.Buffer
	o.Options = o.Options.filled()
	if buffer <= 0 {
		o.Buffer = defaultDeviceBuffer
	}
	return o
}

// maxBlocks bounds the blocks of a device: either end keeps up to 49 bytes of
// each. It is a PiB in the largest blocks.
const maxBlocks = 1 << 26

// Fits tells why a device of so many bytes, as somebody says, cannot be copied
// in such blocks: memory is allocated for what it says.
func (o DeviceOptions) Fits(size int64) error {
	block := int64(o.filled().Block)
	switch {
	case size < 0:
		return fmt.Errorf("a device of %d bytes", size)
	case size/block >= maxBlocks:
		return fault.Refusef("use larger blocks: --bs 16M", "%d bytes in blocks of %d: a copy keeps track of %d blocks at most", size, block, maxBlocks)
	}
	return nil
}

// workers is how many goroutines read, or write, a device at once: enough to
// keep a drive's queue filled while some of them compute. Large blocks fill it
// by themselves, and each goroutine holds one.
func (o DeviceOptions) workers() int {
	return min(16, max(4, 2*runtime.NumCPU()), max(2, workersHold/o.Block))
}

// Cut says how both ends cut and hash the device. With Delta a block of the
// target is taken for the source's because its hash is, whoever wrote it: there
// nothing but BLAKE3 will do.
func (o DeviceOptions) Cut() device.Cut {
	return device.Cut{Block: o.Block, Quick: o.NoVerify && !o.Delta}
}

// queue is how many blocks wait between two stages beside those that the
// connections and compressors hold.
func (o DeviceOptions) queue(held int) int { return max(2, int(o.Buffer/int64(o.Block))-held) }

// room is what the largest frame of a block takes. What cannot be compressed
// becomes 3 bytes longer with every block of zstd's own, of 64 KiB or more, and
// that is known when it is done: RFC 8878, section 3.1.1.2.
func (o DeviceOptions) room() int { return o.Block + o.Block>>14 + 64 + wire.TrailSize }

// Stages of a device beside those of a stream.
const (
	StageHash   = "hash"   // zero test and BLAKE3 of the blocks of the source
	StageVerify = "verify" // what was written, read back and hashed
)

// DeviceResult is what a copy of a device did beyond moving bytes. An end
// leaves at 0 what only the other one knows.
type DeviceResult struct {
	Size     int64 `json:"size"`
	Block    int   `json:"block"`
	Data     int64 `json:"data"`              // bytes sent or written as data
	Zeros    int64 `json:"zeros"`             // bytes that were zeros: neither sent nor stored as data
	Present  int64 `json:"present"`           // bytes that the target held already
	Resumed  int64 `json:"resumed,omitempty"` // of those, bytes that a journal vouched for
	Verified int64 `json:"verified"`          // bytes read back and found right
	// SourceDigest and TargetDigest are the BLAKE3 of all Size bytes in hex,
	// as b3sum prints it, "" without verification. That of the target is of
	// the hashes whose blocks were read back with the right marks.
	SourceDigest string  `json:"source_digest,omitempty"`
	TargetDigest string  `json:"target_digest,omitempty"`
	BadRanges    []Range `json:"bad_ranges,omitempty"`
}
