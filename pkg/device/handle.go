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
)

// handle is an open device or file whose reads and writes go past the page
// cache where it allows that. Its methods may be called concurrently.
type handle struct {
	name  string
	f     *os.File
	conn  syscall.RawConn
	align int64 // of offsets, lengths and memory under O_DIRECT

	direct atomic.Bool
	mu     sync.Mutex
	reason string // why not direct
	edge   sync.Mutex
}

// openHandle opens what facts tell of. O_DIRECT is set afterwards: an open
// with it can fail with the file already created.
func openHandle(facts Facts, flags int, buffered bool) (*handle, error) {
	fd, err := unix.Open(facts.Real, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0o600)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(facts.Real, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0o600)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: facts.Real, Err: err}
	}
	h := &handle{name: facts.Path, f: os.NewFile(uintptr(fd), facts.Real), align: pageSize}
	if !facts.IsFile() && facts.LogicalSector > 0 {
		h.align = int64(facts.LogicalSector)
	}
	if h.conn, err = h.f.SyscallConn(); err != nil {
		return nil, errors.Join(err, h.f.Close())
	}
	h.reason = "as asked for"
	if !buffered {
		if err := h.setDirect(true); err != nil {
			h.reason = fmt.Sprintf("no O_DIRECT here: %v", err)
		}
	}
	return h, nil
}

// control runs f on the descriptor; unlike RawConn.Read, several at a time.
func (h *handle) control(f func(fd int) error) (err error) {
	if cerr := h.conn.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
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
	if !errors.Is(err, unix.EINVAL) || !began {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.direct.Load() {
		return true // another one has
	}
	if h.setDirect(false) != nil {
		return false
	}
	h.reason = "the file system refused direct access"
	return true
}

// Direct tells whether accesses go past the page cache, and if not, why.
func (h *handle) Direct() (bool, string) {
	if h.direct.Load() {
		return true, ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return false, h.reason
}

// whole does one operation until p is done or the end is reached.
func (h *handle) whole(p []byte, off int64, op func(fd int, p []byte, off int64) (int, error)) (n int, err error) {
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

// readAt fills p; it returns io.EOF with less.
func (h *handle) readAt(p []byte, off int64) (int, error) {
	began := h.direct.Load()
	n, err := h.readOnce(p, off)
	if err != nil && h.fallBack(began, err) {
		n, err = h.readOnce(p, off)
	}
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

func (h *handle) readOnce(p []byte, off int64) (int, error) {
	if !h.direct.Load() {
		return h.whole(p, off, unix.Pread)
	}
	n := 0
	if off%h.align == 0 && aligned(p, h.align) {
		body := int64(len(p)) &^ (h.align - 1)
		k, err := h.whole(p[:body], off, unix.Pread)
		if err != nil || int64(k) < body || body == int64(len(p)) {
			return k, err
		}
		n = k
	}
	// What is not aligned goes through memory that is.
	from := (off + int64(n)) &^ (h.align - 1)
	skip := off + int64(n) - from
	room := AlignedBuffer(int(h.up(skip + int64(len(p)-n))))
	k, err := h.whole(room, from, unix.Pread)
	if int64(k) > skip {
		n += copy(p[n:], room[skip:k])
	}
	return n, err
}

func (h *handle) up(n int64) int64 { return (n + h.align - 1) &^ (h.align - 1) }

// writeAt writes all of p.
func (h *handle) writeAt(p []byte, off int64) (int, error) {
	began := h.direct.Load()
	n, err := h.writeOnce(p, off)
	if err != nil && h.fallBack(began, err) {
		n, err = h.writeOnce(p, off)
	}
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

func (h *handle) writeOnce(p []byte, off int64) (int, error) {
	if !h.direct.Load() {
		return h.whole(p, off, unix.Pwrite)
	}
	n := 0
	if off%h.align == 0 && aligned(p, h.align) {
		body := int64(len(p)) &^ (h.align - 1)
		k, err := h.whole(p[:body], off, unix.Pwrite)
		if err != nil || int64(k) < body || body == int64(len(p)) {
			return k, err
		}
		n = k
	}
	// Sectors that are written in part keep the rest of what they hold.
	h.edge.Lock()
	defer h.edge.Unlock()
	from := (off + int64(n)) &^ (h.align - 1)
	skip := off + int64(n) - from
	room := AlignedBuffer(int(h.up(skip + int64(len(p)-n))))
	if _, err := h.whole(room, from, unix.Pread); err != nil {
		return n, err
	}
	copy(room[skip:], p[n:])
	k, err := h.whole(room, from, unix.Pwrite)
	n += int(min(max(0, int64(k)-skip), int64(len(p)-n)))
	return n, err
}

// nextData is the next range at or after off that may hold data; start is
// size where there is none.
func (h *handle) nextData(off, size int64) (start, end int64, err error) {
	if off >= size {
		return size, size, nil
	}
	err = h.control(func(fd int) error {
		start, err = unix.Seek(fd, off, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO):
			start, end = size, size
			return nil
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
			start, end = off, size // all of it may be data
			return nil
		case err != nil:
			return err
		}
		end, err = unix.Seek(fd, start, unix.SEEK_HOLE)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("%s: holes: %w", h.name, err)
	}
	return min(start, size), min(end, size), nil
}
