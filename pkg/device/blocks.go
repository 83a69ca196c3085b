package device

import (
	"io"
	"iter"
)

// blockSource is a device or image file that is read block by block. All
// methods may be called from several goroutines.
type blockSource interface {
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

// blockTarget is a device or image file that is written block by block. All
// methods may be called from several goroutines.
type blockTarget interface {
	// ReadAt reads what the device holds, not what a cache remembers; less
	// than len(p) bytes with io.EOF where the target ends there.
	io.ReaderAt
	io.WriterAt
	// Zero makes a range read as zeros.
	Zero(off, n int64) error
	// NextData is that of a blockSource.
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

// blockJournal remembers, on the target's host, which blocks are stored.
type blockJournal interface {
	// Stored hands over, once, the hash of every block that an earlier copy
	// stored, in their order and zero for all others.
	Stored() []Sum
	// Add notes blocks that are stored for good: synced before the call.
	Add(blocks iter.Seq2[int64, Sum]) error
	// Remove forgets everything.
	Remove() error
	Close() error
}
