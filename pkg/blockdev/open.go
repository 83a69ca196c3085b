package blockdev

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Options shape how a device is opened.
type Options struct {
	Sparse     bool // a file target keeps holes instead of being allocated
	SkipErrors bool // a source's unreadable parts read as zeros, see Source.BadRanges
}

// handle is one device, opened twice: past the page cache, and through it for
// what is not a multiple of a sector.
type handle struct {
	facts    Facts
	direct   *os.File // nil where the file system does not do it
	buffered *os.File
	sector   int64
	why      string // direct is nil
}

// open opens with flags, makes sure that it is still what was inspected, and
// opens it again for O_DIRECT.
func open(f Facts, flags int, perm fs.FileMode) (*handle, error) {
	h := &handle{facts: f, sector: int64(max(512, f.LogicalSector))}
	if f.IsFile() {
		h.sector = 4096 // the least that every filesystem takes
	}
	var err error
	if h.buffered, err = os.OpenFile(f.Real, flags|unix.O_CLOEXEC, perm); err != nil {
		if errors.Is(err, unix.EBUSY) {
			return nil, fault.Refusef("deactivate what uses it (zpool export, vgchange -an, mdadm --stop)", "%s is in use by the kernel: %w", f.Path, err)
		}
		return nil, err
	}
	if err := h.identify(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	again := flags&^(unix.O_EXCL|unix.O_CREAT) | unix.O_DIRECT | unix.O_CLOEXEC
	h.direct, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", h.buffered.Fd()), again, 0)
	if err != nil {
		h.direct, h.why = nil, err.Error()
	}
	return h, nil
}

// Buffered tells why reads and writes go through the page cache; "" if they
// do not.
func (h *handle) Buffered() string { return h.why }

// identify compares what was opened with what was inspected.
func (h *handle) identify() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(h.buffered.Fd()), &st); err != nil {
		return err
	}
	f := h.facts
	changed := func(what string) error {
		return fault.Refusef("look at the devices again: zxfer dev -n", "%s is not what it was a moment ago: %s", f.Path, what)
	}
	switch {
	case f.Kind == Missing && st.Mode&unix.S_IFMT != unix.S_IFREG, f.Kind == File && st.Mode&unix.S_IFMT != unix.S_IFREG:
		return changed("it is no file")
	case f.Kind == File && (st.Ino != f.Inode || deviceNumber(st.Dev) != f.Device):
		return changed("another file has its name")
	case f.IsFile():
		return nil
	case st.Mode&unix.S_IFMT != unix.S_IFBLK:
		return changed("it is no block device")
	case deviceNumber(st.Rdev) != f.Device:
		return changed("it is device " + deviceNumber(st.Rdev) + ", not " + f.Device)
	}
	if size, err := h.buffered.Seek(0, io.SeekEnd); err != nil {
		return err
	} else if size != f.Size {
		return changed(fmt.Sprintf("it has %d bytes, not %d", size, f.Size))
	}
	if f.DiskSeq != 0 {
		root := os.DirFS("/")
		name, err := kernelName(root, f.Device)
		if err != nil {
			return err
		}
		if f.Part > 0 {
			name = parentOf(name)
		}
		if now := uint64(number(root, "sys/class/block/"+name+"/diskseq")); now != f.DiskSeq {
			return changed("another disk was attached in its place")
		}
	}
	return nil
}

// at carries out a read or write: whole sectors past the page cache, the rest
// through it.
func (h *handle) at(p []byte, off int64, do func(f *os.File, p []byte, off int64) (int, error)) (int, error) {
	whole := 0
	if h.direct != nil && off%h.sector == 0 {
		whole = len(p) - len(p)%int(h.sector)
	}
	n := 0
	if whole > 0 {
		var err error
		n, err = do(h.direct, p[:whole], off)
		if errors.Is(err, unix.EINVAL) && n == 0 {
			n, err = do(h.buffered, p[:whole], off) // stricter than it said
		}
		if err != nil {
			return n, err
		}
	}
	if whole < len(p) {
		k, err := do(h.buffered, p[whole:], off+int64(whole))
		return n + k, err
	}
	return n, nil
}

func (h *handle) readAt(p []byte, off int64) (int, error) { return h.at(p, off, (*os.File).ReadAt) }

// NextData finds the next range that may hold data by SEEK_DATA; a device has
// no holes that the kernel knows of.
func (h *handle) nextData(off, size int64) (start, end int64, err error) {
	if !h.facts.IsFile() {
		return min(off, size), size, nil
	}
	fd := int(h.buffered.Fd())
	start, err = unix.Seek(fd, off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // no data after off
		return size, size, nil
	case err != nil:
		return min(off, size), size, nil // a filesystem without holes
	}
	if end, err = unix.Seek(fd, start, unix.SEEK_HOLE); err != nil {
		return start, size, nil
	}
	return start, end, nil
}

// Close closes the device.
func (h *handle) Close() error {
	var errs []error
	for _, f := range []*os.File{h.direct, h.buffered} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// ioctl calls one with a pointer to two 64-bit numbers, or to none.
func ioctl(f *os.File, request uintptr, arg uintptr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, request, arg)
	}); err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}
