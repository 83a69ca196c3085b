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
	"zxfer/pkg/filelock"
)

// Target is a device or image file opened for writing. A block device is held
// exclusively until Close. Methods except Commit and Close may be called
// concurrently.
type Target struct {
	*handle      // the size of the copy limits writes
	sparse  bool // a file keeps holes instead of allocating space
	created bool

	mu      sync.Mutex
	syncErr error // first failure of Sync
}

// OpenTarget opens the device that Inspect found for a copy of size bytes. It fails
// if the device has changed or is in use. It does not change a device. It creates
// an image file, and allocates its space unless sparse is set. The caller must have
// run checkTarget.
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
		// Without O_CREAT, O_EXCL claims the device: the kernel refuses if the
		// device, its disk or a partition is mounted, used as swap or held. See
		// bd_prepare_to_claim in the kernel's block/bdev.c.
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

// refusedOpen explains why opening a target failed. Nothing was changed.
func refusedOpen(f Facts, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fault.Refusef("unmount or stop its user; lsblk, zpool status and fuser -vm show it", "%s is in use: %w", f.Path, err)
	case errors.Is(err, unix.EROFS):
		return fault.Refusef("", "%s is read-only: %w", f.Path, err)
	case denied(err):
		return fault.Refusef("run zxfer as root, or as a user who may write it", "%w", err)
	case errors.Is(err, unix.EEXIST):
		return fault.Refusef("check it with {{dry-run}}, then run the command again", "%s was created after the copy was planned: %w", f.Path, err)
	}
	return err
}

// lock excludes other copies to the same file, as O_EXCL does for a device. The
// journal lock excludes only copies that use the same journal. File systems without
// locks are accepted.
func (t *Target) lock() error {
	if errors.Is(filelock.Try(t.f), filelock.ErrLocked) {
		return fault.Refusef("wait until it ends", "another copy to %s is running", t.facts.Path)
	}
	return nil
}

// prepare extends a file to its size and allocates space unless it is sparse.
func (t *Target) prepare() error {
	st, err := t.stat()
	if err != nil {
		return err
	}
	if !t.sparse && st.Blocks*512 < t.size { // otherwise it is fully allocated
		err := t.fallocate(unix.FALLOC_FL_KEEP_SIZE, 0, t.size)
		if errors.Is(err, unix.ENOSPC) {
			return fault.Refusef("free space there, or add {{sparse}}", "%s: no space for %d bytes: %w", t.facts.Path, t.size, err)
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

// grow extends a copy of unknown length to a byte offset. It must not run
// concurrently with other methods.
func (t *Target) grow(to int64) error {
	t.size = max(t.size, to)
	return t.extend()
}

func (t *Target) checkRange(off, n int64) error {
	if off < 0 || n < 0 || off > t.size || n > t.size-off {
		return fmt.Errorf("%s: bytes %d to %d are beyond the copy's %d", t.facts.Path, off, off+n, t.size)
	}
	return nil
}

// ReadAt works as in handle. After Sync, it reads from the device, not from the
// page cache.
func (t *Target) ReadAt(p []byte, off int64) (int, error) {
	if !t.direct.Load() {
		// This drops only clean pages, hence Sync. It has no effect on tmpfs.
		_ = t.control(func(fd int) error { return unix.Fadvise(fd, off, int64(len(p)), unix.FADV_DONTNEED) })
	}
	return t.handle.ReadAt(p, off)
}

// WriteAt writes all of p. See handle.ReadAt for alignment. Partially written
// sectors keep their other bytes.
func (t *Target) WriteAt(p []byte, off int64) (int, error) {
	if err := t.checkRange(off, int64(len(p))); err != nil {
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
		return fault.Failf("free space there, then run the same command again", "%w", err)
	}
	return err
}

// Sync returns when all written data is stored. After one failure it always fails,
// because the kernel reports a lost write only once.
// https://lwn.net/Articles/752063/
func (t *Target) Sync() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.syncErr == nil {
		if err := t.f.Sync(); err != nil {
			t.syncErr = fmt.Errorf("%s: sync: %w", t.facts.Path, err)
		}
	}
	return t.syncErr
}

// DropCache makes later reads by any process come from the device. Unsynced data
// stays cached.
func (t *Target) DropCache() error {
	return t.control(func(fd int) error {
		if !t.facts.IsFile() && unix.IoctlSetInt(fd, unix.BLKFLSBUF, 0) == nil {
			return nil
		}
		// BLKFLSBUF requires root.
		if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("%s: drop the cache: %w", t.facts.Path, err)
		}
		return nil
	})
}

// Identity returns an error if the open file is not the planned target, or if the
// path now names another one.
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
		return fault.Failf("", "%s was replaced during the copy: the copied data is lost", t.facts.Path)
	}
	return nil
}

// Commit completes a copy. It checks the identity of the target, sets the size of a
// file, and syncs everything.
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

// syncDir makes directory entries durable.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // not supported by the file system
	}
	return errors.Join(err, d.Close())
}

// Discard closes the target and deletes a file that OpenTarget created, unless the
// path names another file by now.
func (t *Target) Discard() error {
	deleteFile := t.created && t.Identity() == nil
	err := t.Close()
	if deleteFile {
		err = errors.Join(err, os.Remove(t.facts.Real))
	}
	return err
}

// Close closes the target and keeps the written data.
func (t *Target) Close() error { return filelock.Close(t.f) }
