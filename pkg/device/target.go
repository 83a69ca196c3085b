package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Target is a device or image file open for writing; a block device is held
// exclusively until Close. Its methods may be called concurrently, but for
// Commit and Close.
type Target struct {
	*handle      // nothing is written beyond its size
	sparse  bool // a file gets holes instead of space
	created bool

	mu     sync.Mutex
	failed error // of a sync
}

// OpenTarget opens what Inspect found for a copy of size bytes, and refuses if
// it is not that any more, or in use. It changes nothing of a device; an image
// file is created, and gets its space, unless it is sparse. checkTarget must
// have found nothing against it.
func OpenTarget(ctx context.Context, f Facts, size int64, sparse bool) (_ *Target, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	flags := unix.O_RDWR
	switch f.Kind {
	case KindFile:
	case KindMissing:
		flags |= unix.O_CREAT | unix.O_EXCL
	default:
		// Without O_CREAT, O_EXCL claims the device: the kernel refuses if it,
		// its disk or a partition is mounted, swap or held. bd_prepare_to_claim
		// in the kernel's block/bdev.c.
		flags |= unix.O_EXCL
	}
	h, err := openHandle(f, flags)
	if err != nil {
		return nil, refusedOpen(f, err)
	}
	h.size = size
	t := &Target{handle: h, sparse: sparse, created: f.Kind == KindMissing}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Discard())
		}
	}()
	if err := h.sameObject(); err != nil {
		return nil, err
	}
	if !f.IsFile() && f.Size < size {
		return nil, fault.Refusef("", "%s has %d bytes, the source %d", f.Path, f.Size, size)
	}
	if h.readOnly() {
		return nil, fault.Refusef("", "%s is read-only", f.Path)
	}
	if f.IsFile() {
		if err := t.lock(); err != nil {
			return nil, err
		}
		if err := t.prepare(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// refusedOpen names what an open of a target failed of; nothing was changed.
func refusedOpen(f Facts, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fault.Refusef("unmount or stop what uses it: lsblk, zpool status and fuser -vm tell", "%s is in use: %w", f.Path, err)
	case errors.Is(err, unix.EROFS):
		return fault.Refusef("", "%s is read-only: %w", f.Path, err)
	case denied(err):
		return fault.Refusef("run as root, or as a user who may write it", "%w", err)
	case errors.Is(err, unix.EEXIST):
		return fault.Refusef("look at it with {{dry-run}}, then run the command anew", "%s is there since the copy was planned: %w", f.Path, err)
	}
	return err
}

// lock does for a file what O_EXCL does for a device, among copies: the journal
// keeps out only those that would resume this one. A file system without locks
// goes without.
func (t *Target) lock() error {
	return t.control(func(fd int) error {
		if errors.Is(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
			return fault.Refusef("wait for it to end", "another copy to %s is running", t.facts.Path)
		}
		return nil
	})
}

// prepare gives a file that is shorter its size, with or without space.
func (t *Target) prepare() error {
	st, err := t.stat()
	if err != nil {
		return err
	}
	if !t.sparse && st.Blocks*512 < t.size { // else it has all of it
		err := t.fallocate(unix.FALLOC_FL_KEEP_SIZE, 0, t.size)
		if errors.Is(err, unix.ENOSPC) {
			return fault.Refusef("make room, or add {{sparse}}", "%s: no space for %d bytes: %w", t.facts.Path, t.size, err)
		}
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("%s: allocate %d bytes: %w", t.facts.Path, t.size, err)
		}
	}
	return t.extend()
}

func (t *Target) fallocate(mode uint32, off, n int64) error {
	return t.control(func(fd int) error { return unix.Fallocate(fd, mode, off, n) })
}

// extend makes a file that has fewer bytes than the copy as long as that.
func (t *Target) extend() error {
	st, err := t.stat()
	if err != nil || st.Size >= t.size {
		return err
	}
	if err := t.f.Truncate(t.size); err != nil {
		return fmt.Errorf("%s: set the size to %d: %w", t.facts.Path, t.size, err)
	}
	return nil
}

// grow makes a copy into a file, whose size is not known beforehand, reach to a
// byte. It must not be called beside other methods.
func (t *Target) grow(to int64) error {
	t.size = max(t.size, to)
	return t.extend()
}

func (t *Target) within(off, n int64) error {
	if off < 0 || n < 0 || off > t.size || n > t.size-off {
		return fmt.Errorf("%s: bytes %d to %d are beyond the copy's %d", t.facts.Path, off, off+n, t.size)
	}
	return nil
}

// ReadAt is that of a handle. It reads what the device holds, not what the page
// cache remembers, if Sync has returned since it was written.
func (t *Target) ReadAt(p []byte, off int64) (int, error) {
	if !t.direct.Load() {
		// Clean pages only: hence the Sync. Where a cache is all there is, as on
		// tmpfs, this does nothing.
		_ = t.control(func(fd int) error { return unix.Fadvise(fd, off, int64(len(p)), unix.FADV_DONTNEED) })
	}
	return t.handle.ReadAt(p, off)
}

// WriteAt writes all of p. Memory and offsets are as for Source.ReadAt; the
// rest of a sector that p ends within is kept.
func (t *Target) WriteAt(p []byte, off int64) (int, error) {
	if err := t.within(off, int64(len(p))); err != nil {
		return 0, err
	}
	n, err := t.writeAt(p, off)
	if err != nil {
		err = t.writeError(off+int64(n), err)
	}
	return n, err
}

func (t *Target) writeError(off int64, err error) error {
	err = fmt.Errorf("%s: write at byte %d: %w", t.facts.Path, off, err)
	if errors.Is(err, unix.ENOSPC) {
		return fault.Failf("make room and run the same command again", "%w", err)
	}
	return err
}

// Sync returns once all that was written is stored. After a failure it fails
// for ever: the kernel reports a lost write once and then forgets it.
// https://lwn.net/Articles/752063/
func (t *Target) Sync() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		if err := t.f.Sync(); err != nil {
			t.failed = fmt.Errorf("%s: sync: %w", t.facts.Path, err)
		}
	}
	return t.failed
}

// DropCache makes later reads come from the device, whoever makes them. What
// is not synced stays in the cache.
func (t *Target) DropCache() error {
	return t.control(func(fd int) error {
		if !t.facts.IsFile() && unix.IoctlSetInt(fd, unix.BLKFLSBUF, 0) == nil {
			return nil
		}
		// BLKFLSBUF is for the superuser only.
		if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("%s: drop the cache: %w", t.facts.Path, err)
		}
		return nil
	})
}

// Identity tells why what is written to is not the target of the plan any
// more: what is open, and what the path now names.
func (t *Target) Identity() error {
	if err := t.sameObject(); err != nil {
		return err
	}
	open, err := t.stat()
	if err != nil {
		return err
	}
	var named unix.Stat_t
	if err := unix.Stat(t.facts.Real, &named); err != nil {
		return fmt.Errorf("%s: %w", t.facts.Path, err)
	}
	same := open.Rdev == named.Rdev
	if t.facts.IsFile() {
		same = open.Ino == named.Ino && open.Dev == named.Dev
	}
	if !same {
		return fault.Failf("", "%s was replaced while it was written: what was copied is not there", t.facts.Path)
	}
	return nil
}

// Commit ends a complete copy: all is synced, the target is still what it was,
// and a file has the size of the copy.
func (t *Target) Commit() error {
	if err := t.Identity(); err != nil {
		return err
	}
	if t.facts.IsFile() {
		if err := t.f.Truncate(t.size); err != nil {
			return fmt.Errorf("%s: %w", t.facts.Path, err)
		}
	}
	if err := t.Sync(); err != nil {
		return err
	}
	if !t.created {
		return nil
	}
	return syncDir(filepath.Dir(t.facts.Real))
}

// syncDir makes the names in a directory last.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // a file system that cannot
	}
	return errors.Join(err, d.Close())
}

// Discard is Close of a copy that nothing is left of: a file that OpenTarget made
// is removed, unless its name is another one's by now.
func (t *Target) Discard() error {
	mine := t.created && t.Identity() == nil
	err := t.Close()
	if mine {
		err = errors.Join(err, os.Remove(t.facts.Real))
	}
	return err
}

// Close releases the target; what was written stays.
func (t *Target) Close() error { return t.f.Close() }
