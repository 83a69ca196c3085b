package device

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

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
	cut   BlockHash
	size  int64
	block int64
	count int64
}

func newGrid(size int64, cut BlockHash) grid {
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

// AlignedBuffer returns n bytes at an address that O_DIRECT accepts.
func AlignedBuffer(n int) []byte { return tcp.NewAlignedBlock(n).Buffer() }

// aligned reports whether O_DIRECT accepts p as memory.
func aligned(p []byte, to int64) bool {
	return len(p) == 0 || uintptr(unsafe.Pointer(&p[0]))%uintptr(to) == 0
}

// IsZero reports whether all bytes of p are zero. It stops at the first other byte.
func IsZero(p []byte) bool {
	// Comparing the buffer with itself, shifted by one byte, runs at cache speed
	// and needs no page of zeros.
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[:len(p)-1], p[1:])
}

// blockPool keeps blocks for reuse. It returns the last used first, whose memory is
// most likely cached.
type blockPool struct {
	mu   sync.Mutex
	size int
	free []*tcp.Block
}

func (p *blockPool) get() *tcp.Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return tcp.NewAlignedBlock(p.size)
}

// put returns a block to the pool. b may be nil.
func (p *blockPool) put(b *tcp.Block) {
	if b == nil {
		return
	}
	p.mu.Lock()
	p.free = append(p.free, b)
	p.mu.Unlock()
}

// zeroStep limits one kernel request, in bytes. If a device has no command for
// zeros, the kernel writes them and cannot be interrupted.
const zeroStep = 64 << 20

// Zero makes a range read as zeros. It unmaps the range, uses a device command, or
// as a last resort writes zeros. It does not use plain discards, which do not
// guarantee zeros.
func (t *Target) Zero(off, n int64) error {
	if err := t.checkRange(off, n); err != nil {
		return err
	}
	end := off + n
	// Requests need whole sectors of a device, or whole pages of a file.
	from, to := t.roundUp(off), end&^(t.align-1)
	if t.facts.IsFile() && end == t.size {
		to = end // the end of the file
	}
	if from >= to {
		return t.writeZeros(off, end)
	}
	if err := t.writeZeros(off, from); err != nil {
		return err
	}
	for from < to {
		step := min(to-from, zeroStep)
		if err := t.zeroRange(from, step); err != nil {
			return err
		}
		from += step
	}
	return t.writeZeros(to, end)
}

// zeroRange tries the cheapest method first.
func (t *Target) zeroRange(off, n int64) error {
	const keep = unix.FALLOC_FL_KEEP_SIZE
	// For block devices too, the kernel guarantees that holes read as zeros. It
	// returns EOPNOTSUPP if the device cannot unmap to zeros: blkdev_fallocate in
	// block/fops.c. A file that is not sparse keeps its space.
	modes := []uint32{unix.FALLOC_FL_PUNCH_HOLE | keep}
	if t.facts.IsFile() && !t.sparse {
		modes = []uint32{unix.FALLOC_FL_ZERO_RANGE | keep, unix.FALLOC_FL_PUNCH_HOLE | keep}
	}
	var ways []func() error
	for _, mode := range modes {
		ways = append(ways, func() error { return t.fallocate(mode, off, n) })
	}
	if !t.facts.IsFile() {
		ways = append(ways, func() error { return t.control(func(fd int) error { return zeroOut(fd, off, n) }) })
	}
	for _, try := range ways {
		err := try()
		for errors.Is(err, unix.EINTR) {
			err = try()
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY):
			return t.writeError(off, err)
		}
	}
	return t.writeZeros(off, off+n)
}

func (t *Target) writeZeros(from, to int64) error {
	if from >= to {
		return nil
	}
	zeros := AlignedBuffer(int(min(to-from, 1<<20)))
	for from < to {
		n := min(to-from, int64(len(zeros)))
		if _, err := t.WriteAt(zeros[:n], from); err != nil {
			return err
		}
		from += n
	}
	return nil
}
