package device

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"iter"
	"sync"
)

// errDisk is the error of a broken device.
var errDisk = errors.New("input/output error")

// memoryDevice is a block device in memory: a blockSource and a blockTarget. A power
// failure loses unsynced data.
type memoryDevice struct {
	mu     sync.Mutex
	data   []byte
	stable []byte // contents after a power failure

	// FailRead and FailWrite, if set, report whether an access at an offset fails.
	FailRead, FailWrite func(off int64) bool
	// Flip, if set, modifies written data.
	Flip func(off int64, p []byte)
	// Holes turns runs of at least this many zero bytes into holes. 0 disables it.
	Holes int64
	// Changed is the result of Unchanged.
	Changed error
	// AfterWrite, if set, is called after every write.
	AfterWrite func()
	// Label is the name, by default "disk".
	Label string

	Reads, Written int64 // bytes
	Syncs          int
	Committed      bool
	Closed         bool
}

// newMemoryDevice returns a device that contains data.
func newMemoryDevice(data []byte) *memoryDevice {
	return &memoryDevice{data: bytes.Clone(data), stable: bytes.Clone(data)}
}

func (d *memoryDevice) Name() string { return cmp.Or(d.Label, "disk") }

func (d *memoryDevice) Size() int64 { d.mu.Lock(); defer d.mu.Unlock(); return int64(len(d.data)) }

// Bytes returns a copy of the contents.
func (d *memoryDevice) Bytes() []byte { d.mu.Lock(); defer d.mu.Unlock(); return bytes.Clone(d.data) }

func (d *memoryDevice) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.FailRead != nil && d.FailRead(off) {
		return 0, errDisk
	}
	if off >= int64(len(d.data)) {
		return 0, io.EOF
	}
	n := copy(p, d.data[off:])
	d.Reads += int64(n)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (d *memoryDevice) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	if d.FailWrite != nil && d.FailWrite(off) || off+int64(len(p)) > int64(len(d.data)) {
		d.mu.Unlock()
		return 0, errDisk
	}
	copy(d.data[off:], p)
	if d.Flip != nil {
		d.Flip(off, d.data[off:off+int64(len(p))])
	}
	d.Written += int64(len(p))
	after := d.AfterWrite
	d.mu.Unlock()
	if after != nil {
		after()
	}
	return len(p), nil
}

func (d *memoryDevice) Zero(off, n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.FailWrite != nil && d.FailWrite(off) || off+n > int64(len(d.data)) {
		return errDisk
	}
	clear(d.data[off : off+n])
	return nil
}

// NextData scans the bytes for data.
func (d *memoryDevice) NextData(off int64) (start, end int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	size := int64(len(d.data))
	if d.Holes == 0 {
		return min(off, size), size, nil
	}
	zeros := func(i int64) bool {
		return len(bytes.Trim(d.data[i:min(size, i+d.Holes)], "\x00")) == 0
	}
	off -= off % d.Holes
	for off < size && zeros(off) {
		off += d.Holes
	}
	for end = off; end < size && !zeros(end); end += d.Holes {
	}
	return min(off, size), min(end, size), nil
}

// Sync makes written data survive a power failure.
func (d *memoryDevice) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.stable, d.data)
	d.Syncs++
	return nil
}

// PowerCut discards unsynced data.
func (d *memoryDevice) PowerCut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.data, d.stable)
}

func (d *memoryDevice) DropCache() error { return nil }

func (d *memoryDevice) Unchanged() error { return d.Changed }

func (d *memoryDevice) BadRanges() []Range { return nil }

// Commit records the call.
func (d *memoryDevice) Commit() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Committed = true
	return nil
}

// Close records the call.
func (d *memoryDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Closed = true
	return nil
}

// storedBlock is a stored block and its sum.
type storedBlock struct {
	Index int64
	Sum   Sum
}

// storedBlocks returns blocks as an argument of Add.
func storedBlocks(blocks []storedBlock) iter.Seq2[int64, Sum] {
	return func(yield func(int64, Sum) bool) {
		for _, b := range blocks {
			if !yield(b.Index, b.Sum) {
				return
			}
		}
	}
}

// memoryJournal is a blockJournal in memory.
type memoryJournal struct {
	mu      sync.Mutex
	blocks  []storedBlock
	Removed bool
}

func (j *memoryJournal) Stored() (sums []Sum) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range j.blocks {
		sums = append(sums, make([]Sum, max(0, int(b.Index)+1-len(sums)))...)
		sums[b.Index] = b.Sum
	}
	return sums
}

// Len returns the number of records.
func (j *memoryJournal) Len() int { j.mu.Lock(); defer j.mu.Unlock(); return len(j.blocks) }

func (j *memoryJournal) Add(blocks iter.Seq2[int64, Sum]) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, sum := range blocks {
		j.blocks = append(j.blocks, storedBlock{i, sum})
	}
	return nil
}

func (j *memoryJournal) Remove() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.blocks, j.Removed = nil, true
	return nil
}

func (j *memoryJournal) Close() error { return nil }

var (
	_ blockSource  = (*memoryDevice)(nil)
	_ blockTarget  = (*memoryDevice)(nil)
	_ blockJournal = (*memoryJournal)(nil)
)
