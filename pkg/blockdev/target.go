package blockdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Target is a device or file that is written.
type Target struct {
	*handle
	size   int64 // that is to be written
	sparse bool
}

// OpenTarget opens a device for writing size bytes. A block device is held
// exclusively until Close: while it is, the kernel lets nobody mount it. A
// file is created, readable by its owner only, and allocated unless it is to be
// sparse. Refusals are of class fault.Refused.
func OpenTarget(_ context.Context, f Facts, size int64, o Options) (*Target, error) {
	flags, perm := os.O_RDWR|unix.O_EXCL, os.FileMode(0)
	switch {
	case f.Kind == Missing:
		flags, perm = os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600
	case f.Kind == File:
		flags = os.O_RDWR // O_EXCL means something else for files
	case f.Size < size:
		return nil, fault.Refusef("", "%s has %d bytes, the source has %d", f.Path, f.Size, size)
	}
	h, err := open(f, flags, perm)
	if err != nil {
		return nil, err
	}
	t := &Target{handle: h, size: size, sparse: o.Sparse}
	if err := t.prepare(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return t, nil
}

// prepare gives a file at least its size.
func (t *Target) prepare() error {
	if !t.facts.IsFile() {
		return nil
	}
	st, err := t.buffered.Stat()
	if err != nil {
		return err
	}
	if !t.sparse && t.size > 0 {
		err := unix.Fallocate(int(t.buffered.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, t.size)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("%s: cannot allocate %d bytes: %w", t.facts.Path, t.size, err)
		}
	}
	if st.Size() < t.size {
		return t.buffered.Truncate(t.size)
	}
	return nil
}

// ReadAt reads what the device holds.
func (t *Target) ReadAt(p []byte, off int64) (int, error) { return t.readAt(p, off) }

// WriteAt writes all of p.
func (t *Target) WriteAt(p []byte, off int64) (int, error) {
	n, err := t.at(p, off, (*os.File).WriteAt)
	if err != nil {
		return n, fmt.Errorf("%s: write at byte %d: %w", t.facts.Path, off, err)
	}
	return n, nil
}

// NextData is the next range at or after off that may hold data.
func (t *Target) NextData(off int64) (start, end int64, err error) { return t.nextData(off, t.size) }

// Zero makes a range read as zeros: the device is asked to do it by itself
// (BLKZEROOUT, which the kernel carries out by writing where it cannot), a
// file gets a hole, or unwritten blocks if it is to be allocated.
//
// A discard would not do: what it leaves is not always zeros.
func (t *Target) Zero(off, n int64) error {
	var err error
	switch whole := n - n%t.sector; {
	case t.facts.IsFile():
		err = t.zeroFile(off, n)
	case off%t.sector == 0 && whole > 0:
		span := [2]uint64{uint64(off), uint64(whole)}
		if err = ioctl(t.buffered, unix.BLKZEROOUT, uintptr(unsafe.Pointer(&span))); err == nil && whole < n {
			err = t.writeZeros(off+whole, n-whole)
		}
	default:
		err = t.writeZeros(off, n)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		err = t.writeZeros(off, n)
	}
	if err != nil {
		return fmt.Errorf("%s: zeros at byte %d: %w", t.facts.Path, off, err)
	}
	return nil
}

func (t *Target) zeroFile(off, n int64) error {
	fd := int(t.buffered.Fd())
	if !t.sparse {
		err := unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (t *Target) writeZeros(off, n int64) error {
	zeros := AlignedBuffer(int(min(n, 1<<20)))
	for n > 0 {
		k, err := t.at(zeros[:min(n, int64(len(zeros)))], off, (*os.File).WriteAt)
		if err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}

// Sync returns once all that was written is stored, the drive's own cache
// included.
func (t *Target) Sync() error {
	if err := t.buffered.Sync(); err != nil {
		return fmt.Errorf("%s: %w", t.facts.Path, err)
	}
	return nil
}

// DropCache makes later reads come from the device. Sync must come first.
func (t *Target) DropCache() error {
	if t.facts.IsFile() {
		return unix.Fadvise(int(t.buffered.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	if err := ioctl(t.buffered, unix.BLKFLSBUF, 0); err != nil && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s: %w", t.facts.Path, err)
	}
	// Without the permission only these pages of the cache can be dropped.
	return unix.Fadvise(int(t.buffered.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// Commit ends a complete copy: it makes sure that the device is still the one
// that was opened, and cuts a file that was longer.
func (t *Target) Commit() error {
	if !t.facts.IsFile() {
		return t.identify()
	}
	if err := t.buffered.Truncate(t.size); err != nil {
		return err
	}
	return t.Sync()
}
