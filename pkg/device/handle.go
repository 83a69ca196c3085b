package device

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport/tcp"
)

// handle is an open device or file. If the file system allows it, reads and writes
// bypass the page cache. Its methods may be called concurrently.
type handle struct {
	facts Facts
	size  int64 // of the copy, initially the size in facts
	f     *os.File
	conn  syscall.RawConn
	align int64 // of offsets, lengths and memory for O_DIRECT

	direct atomic.Bool
	edge   sync.Mutex
}

// openHandle opens the device or file that facts describe. It sets O_DIRECT
// afterwards, because open with O_DIRECT may fail after it created the file.
func openHandle(facts Facts, flags int) (*handle, error) {
	f, err := os.OpenFile(facts.Real, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if err != nil {
		return nil, err
	}
	h := &handle{facts: facts, size: facts.Size, f: f, align: int64(tcp.Alignment())}
	if !facts.IsFile() && facts.LogicalSector > 0 {
		h.align = int64(facts.LogicalSector)
	}
	if h.conn, err = f.SyscallConn(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	_ = h.setDirect(true) // if this fails, the page cache is used
	return h, nil
}

func (h *handle) Name() string { return h.facts.Path }

// control runs f on the descriptor. Unlike RawConn.Read, it allows concurrent
// calls.
func (h *handle) control(f func(fd int) error) (err error) {
	if cerr := h.conn.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// stat returns the status of the open file.
func (h *handle) stat() (st unix.Stat_t, err error) {
	if err = h.control(func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		err = fmt.Errorf("%s: %w", h.facts.Path, err)
	}
	return st, err
}

func (h *handle) setDirect(on bool) error {
	return h.control(func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return err
		}
		flags &^= unix.O_DIRECT
		if on {
			flags |= unix.O_DIRECT
		}
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags); err == nil {
			h.direct.Store(on)
		}
		return err
	})
}

// disableDirect turns O_DIRECT off if the first access fails with EINVAL: the file
// system accepted the flag but not the access. It reports whether to retry an
// access that started with O_DIRECT. Concurrent accesses may fail together.
func (h *handle) disableDirect(wasDirect bool, err error) bool {
	return wasDirect && errors.Is(err, unix.EINVAL) && (!h.direct.Load() || h.setDirect(false) == nil)
}

// An operation reads or writes p at off.
type operation func(fd int, p []byte, off int64) (int, error)

// fullIO repeats op until p is complete or the file ends.
func (h *handle) fullIO(p []byte, off int64, op operation) (n int, err error) {
	err = h.control(func(fd int) error {
		for n < len(p) {
			k, err := op(fd, p[n:], off+int64(n))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			if k == 0 {
				return nil
			}
			n += k
			if h.direct.Load() && int64(k)%h.align != 0 {
				return nil // a short read: end of file
			}
		}
		return nil
	})
	return n, err
}

// doIO applies op to all of p. Parts that O_DIRECT does not accept go through edge.
func (h *handle) doIO(p []byte, off int64, op operation, edge func(p []byte, off int64) (int, error)) (n int, err error) {
	wasDirect := h.direct.Load()
	once := func() (n int, err error) {
		if !h.direct.Load() {
			return h.fullIO(p, off, op)
		}
		if off%h.align == 0 && aligned(p, h.align) {
			body := len(p) &^ int(h.align-1)
			if n, err = h.fullIO(p[:body], off, op); err != nil || n < body || n == len(p) {
				return n, err
			}
		}
		k, err := edge(p[n:], off+int64(n))
		return n + k, err
	}
	if n, err = once(); err != nil && h.disableDirect(wasDirect, err) {
		n, err = once()
	}
	return n, err
}

// readAt fills p, or returns fewer bytes and io.EOF.
func (h *handle) readAt(p []byte, off int64) (int, error) {
	n, err := h.doIO(p, off, unix.Pread, func(p []byte, off int64) (int, error) {
		room, from, skip := h.alignedRange(p, off)
		k, err := h.fullIO(room, from, unix.Pread)
		return copy(p, room[min(skip, k):k]), err
	})
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// writeAt writes all of p. It preserves the rest of partially written sectors.
func (h *handle) writeAt(p []byte, off int64) (int, error) {
	n, err := h.doIO(p, off, unix.Pwrite, func(p []byte, off int64) (int, error) {
		h.edge.Lock()
		defer h.edge.Unlock()
		room, from, skip := h.alignedRange(p, off)
		if _, err := h.fullIO(room, from, unix.Pread); err != nil {
			return 0, err
		}
		copy(room[skip:], p)
		k, err := h.fullIO(room, from, unix.Pwrite)
		return min(max(0, k-skip), len(p)), err
	})
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// alignedRange returns aligned memory for all sectors that p touches. The sectors
// start at from, and p starts at skip within them.
func (h *handle) alignedRange(p []byte, off int64) (room []byte, from int64, skip int) {
	from = off &^ (h.align - 1)
	skip = int(off - from)
	return AlignedBuffer(int(h.roundUp(int64(skip + len(p))))), from, skip
}

func (h *handle) roundUp(n int64) int64 { return (n + h.align - 1) &^ (h.align - 1) }

// ReadAt fills p from off. It returns io.EOF at the end of the copy or of the file.
// Any memory and offset work, but only memory from AlignedBuffer at multiples of
// tcp.Alignment avoids a copy. If the medium fails, it returns a *ReadError.
func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	want := int(max(0, min(int64(len(p)), h.size-off)))
	n, err := h.readAt(p[:want], off)
	switch {
	case err == nil && want < len(p):
		err = io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		err = &ReadError{Path: h.facts.Path, Off: off + int64(n), Len: int64(want - n), Err: err}
	}
	return n, err
}

// NextData returns the next range at or after off that may hold data other than
// zeros. If there is none, start is the size of the copy. A block device is one
// range.
func (h *handle) NextData(off int64) (start, end int64, err error) {
	if off >= h.size || !h.facts.IsFile() {
		return min(off, h.size), h.size, nil
	}
	if start, err = h.seek(off, unix.SEEK_DATA, off); err == nil {
		end, err = h.seek(start, unix.SEEK_HOLE, h.size)
	}
	return start, end, err
}

// seek returns the offset of the next data or hole of a file at or after off. It
// returns the size of the copy if there is none, and unknown if the file system
// cannot tell. In a file without holes, seeking a hole may take as long as reading
// the file.
func (h *handle) seek(off int64, whence int, unknown int64) (at int64, err error) {
	err = h.control(func(fd int) error {
		at, err = unix.Seek(fd, off, whence)
		return err
	})
	switch {
	case errors.Is(err, unix.ENXIO):
		return h.size, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return unknown, nil
	case err != nil:
		return 0, fmt.Errorf("%s: holes: %w", h.facts.Path, err)
	}
	return min(at, h.size), nil
}

// Same reports whether f and g describe the same device, or the same path of a
// file. If this is uncertain, it returns false: for example after a reboot, for a
// device without a persistent name.
func (f Facts) Same(g Facts) bool {
	return f.IsFile() == g.IsFile() && f.identity() == g.identity() && (f.IsFile() || f.Size == g.Size)
}

// identity returns a name that outlives a reboot if the device has a persistent
// name. Otherwise it lasts as long as the device.
func (f Facts) identity() string {
	switch {
	case f.IsFile():
		return fmt.Sprintf("file %s %s", f.Machine, f.Real)
	case f.UUID != "":
		return fmt.Sprintf("dm %s", f.UUID)
	case f.WWN != "" || f.Serial != "":
		return fmt.Sprintf("disk %s %s start %d", f.WWN, f.Serial, f.Start)
	case f.Kind == KindZvol && f.Label != "":
		return fmt.Sprintf("zvol %s %s start %d", f.Machine, f.Label, f.Start)
	case f.Kind == KindLoop && f.Label != "":
		return fmt.Sprintf("loop %s %s", f.Machine, f.Label)
	}
	return fmt.Sprintf("%s %s %s sequence %d start %d", f.Kind, f.Boot, f.Real, f.DiskSeq, f.Start)
}

// sameObject returns an error if the open device or file is not the one that facts
// describe. It does not compare contents.
func (h *handle) sameObject() error {
	facts := h.facts
	changed := func(what string, was, is any) error {
		return fault.Refusef("look at the device again with {{dry-run}}, then run the command anew",
			"%s is not what it was when the copy was planned: %s was %v, is %v", facts.Path, what, was, is)
	}
	st, err := h.stat()
	kind := st.Mode & unix.S_IFMT
	switch planned := unix.Mkdev(facts.Major, facts.Minor); {
	case err != nil:
		return err
	case facts.IsFile() && kind != unix.S_IFREG:
		return changed("its kind", facts.Kind, "no regular file")
	case facts.Kind == KindFile && (st.Ino != facts.Inode || uint64(st.Dev) != facts.Device):
		return changed("its inode", facts.Inode, st.Ino)
	case facts.IsFile():
		return nil
	case kind != unix.S_IFBLK:
		return changed("its kind", facts.Kind, "no block device")
	case uint64(st.Rdev) != planned:
		return changed("its number", number(planned), number(uint64(st.Rdev)))
	}
	return h.control(func(fd int) error {
		if is := diskSeq(fd); facts.DiskSeq != 0 && is != facts.DiskSeq {
			return changed("its disk sequence", facts.DiskSeq, is)
		}
		size, err := unix.Seek(fd, 0, unix.SEEK_END)
		if err != nil {
			return fmt.Errorf("%s: size: %w", facts.Path, err)
		}
		if size != facts.Size {
			return changed("its size", facts.Size, size)
		}
		return nil
	})
}

// readOnly queries the device, because a read-only device may open for writing.
func (h *handle) readOnly() bool {
	var flag int
	err := h.control(func(fd int) (err error) {
		if !h.facts.IsFile() {
			flag, err = unix.IoctlGetInt(fd, unix.BLKROGET)
		}
		return err
	})
	return err == nil && flag != 0
}

// number formats a device number as sysfs does: "8:1".
func number(dev uint64) string { return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)) }
