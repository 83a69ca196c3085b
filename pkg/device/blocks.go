package device

import (
	"io"
	"iter"

	"zxfer/pkg/transport/tcp"
)

// blockSource is a device or image file that is read in blocks. All methods may be
// called concurrently.
type blockSource interface {
	// ReadAt fills p, which is at most one block, or fails.
	io.ReaderAt
	// Size returns the number of bytes to copy.
	Size() int64
	// NextData returns the next range at or after off that may hold data other than
	// zeros. If there is none, start is Size.
	NextData(off int64) (start, end int64, err error)
	// Unchanged returns an error if the data read may be inconsistent, because the
	// file was truncated or written during the copy.
	Unchanged() error
	// BadRanges returns the unreadable ranges that were replaced by zeros. It is
	// empty unless the task skips errors.
	BadRanges() []Range
	Close() error
	// Name returns the path for messages, such as "/dev/sda".
	Name() string
}

// blockTarget is a device or image file that is written in blocks. All methods may
// be called concurrently.
type blockTarget interface {
	// ReadAt reads from the device, not from the page cache. At the end of the
	// target it returns fewer bytes and io.EOF.
	io.ReaderAt
	io.WriterAt
	// Zero makes a range read as zeros.
	Zero(off, n int64) error
	// NextData works as in blockSource.
	NextData(off int64) (start, end int64, err error)
	// Sync returns when all written data is stored.
	Sync() error
	// DropCache makes later reads come from the device.
	DropCache() error
	// Commit completes a copy. It checks that the path still names the opened
	// device, and sets the size of a file.
	Commit() error
	Close() error
	Name() string
}

// blockJournal records, on the target's host, which blocks are stored.
type blockJournal interface {
	// Stored returns the sums of the blocks that an earlier copy stored, in block
	// order and zero for all others. It returns them only once.
	Stored() []Sum
	// Add records blocks. The caller has synced them.
	Add(blocks iter.Seq2[int64, Sum]) error
	// Remove deletes the journal and closes it.
	Remove() error
	Close() error
}

// grid divides a device of size bytes into count blocks of block bytes.
type grid struct {
	cut   Cut
	size  int64
	block int64
	count int64
}

func newGrid(size int64, cut Cut) grid {
	b := int64(cut.Block)
	return grid{cut: cut, size: size, block: b, count: (size + b - 1) / b}
}

// length returns the bytes of block i. Only the last block may be shorter.
func (g grid) length(i int64) int64 { return min(g.block, g.size-i*g.block) }

// bytes returns the length of a run of blocks.
func (g grid) bytes(first, count int64) int64 {
	return min((first+count)*g.block, g.size) - first*g.block
}

// sum hashes block i. BLAKE3 numbers its chunks, so even equal blocks have
// different sums.
func (g grid) sum(i int64, p []byte) Sum { return g.cut.Sum(p, i*g.block, g.size) }

func (g grid) mark(p []byte, sum Sum) Mark {
	if g.cut.Quick {
		return Mark(sum[:tcp.MarkSize])
	}
	return MarkOf(p)
}
