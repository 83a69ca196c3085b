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

	"zxfer/pkg/transport/tcp"
)

// handle is an open device or file whose reads and writes go past the page
// cache where it allows that. Its methods may be called concurrently.
type handle struct {
	facts Facts
	size  int64 // of the copy, at first all of it
	f     *os.File
	conn  syscall.RawConn
	align int64 // of offsets, lengths and memory under O_DIRECT

	direct atomic.Bool
	edge   sync.Mutex
}

// openHandle opens what facts tell of. O_DIRECT is set afterwards, where it is
// taken: an open with it can fail with the file already created.
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
	_ = h.setDirect(true) // else through the cache
	return h, nil
}

// Name is the path that the user gave.
func (h *handle) Name() string { return h.facts.Path }

// control runs f on the descriptor; unlike RawConn.Read, several at a time.
func (h *handle) control(f func(fd int) error) (err error) {
	if cerr := h.conn.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// stat is what is open.
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

// fallBack turns O_DIRECT off where the first use shows that the file system
// took the flag, but not the access: EINVAL. It tells whether to try again an
// access that began with it, as several do at once.
func (h *handle) fallBack(began bool, err error) bool {
	return began && errors.Is(err, unix.EINVAL) && (!h.direct.Load() || h.setDirect(false) == nil)
}

// An operation reads or writes p at off.
type operation func(fd int, p []byte, off int64) (int, error)

// whole does one operation until p is done or the end is reached.
func (h *handle) whole(p []byte, off int64, op operation) (n int, err error) {
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
				return nil // the end of a file: nothing follows
			}
		}
		return nil
	})
	return n, err
}

// access does an operation on all of p: what O_DIRECT accepts as it is, and the
// rest, or all, by edge.
func (h *handle) access(p []byte, off int64, op operation, edge func(p []byte, off int64) (int, error)) (n int, err error) {
	began := h.direct.Load()
	once := func() (n int, err error) {
		if !h.direct.Load() {
			return h.whole(p, off, op)
		}
		if off%h.align == 0 && aligned(p, h.align) {
			body := len(p) &^ int(h.align-1)
			if n, err = h.whole(p[:body], off, op); err != nil || n < body || n == len(p) {
				return n, err
			}
		}
		k, err := edge(p[n:], off+int64(n))
		return n + k, err
	}
	if n, err = once(); err != nil && h.fallBack(began, err) {
		n, err = once()
	}
	return n, err
}

// readAt fills p; it returns io.EOF with less.
func (h *handle) readAt(p []byte, off int64) (int, error) {
	n, err := h.access(p, off, unix.Pread, func(p []byte, off int64) (int, error) {
		room, from, skip := h.around(p, off)
		k, err := h.whole(room, from, unix.Pread)
		return copy(p, room[min(skip, k):k]), err
	})
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// writeAt writes all of p. Sectors that are written in part keep the rest of what
// they hold.
func (h *handle) writeAt(p []byte, off int64) (int, error) {
	n, err := h.access(p, off, unix.Pwrite, func(p []byte, off int64) (int, error) {
		h.edge.Lock()
		defer h.edge.Unlock()
		room, from, skip := h.around(p, off)
		if _, err := h.whole(room, from, unix.Pread); err != nil {
			return 0, err
		}
		copy(room[skip:], p)
		k, err := h.whole(room, from, unix.Pwrite)
		return min(max(0, k-skip), len(p)), err
	})
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// around is aligned memory for all sectors that p reaches into: from is where
// they begin, and p is at skip in them.
func (h *handle) around(p []byte, off int64) (room []byte, from int64, skip int) {
	from = off &^ (h.align - 1)
	skip = int(off - from)
	return AlignedBuffer(int(h.up(int64(skip + len(p))))), from, skip
}

func (h *handle) up(n int64) int64 { return (n + h.align - 1) &^ (h.align - 1) }

// ReadAt fills p from off; io.EOF where the copy ends, or what is open does.
// Memory of AlignedBuffer and offsets that are multiples of wire.Alignment spare a copy;
// anything works. Failing media give a *ReadError.
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

// NextData is the next range at or after off that may hold anything but zeros;
// start is the copy's size where there is none. A block device is one range.
func (h *handle) NextData(off int64) (start, end int64, err error) {
	if off >= h.size || !h.facts.IsFile() {
		return min(off, h.size), h.size, nil
	}
	if start, err = h.seek(off, unix.SEEK_DATA, off); err == nil {
		end, err = h.seek(start, unix.SEEK_HOLE, h.size)
	}
	return start, end, err
}

// seek is where data or a hole of a file begins, at or after off: at the copy's end
// where there is none, and at unknown where the file system does not tell. Where a
// file has no hole, to look for one may take as long as to read it.
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
