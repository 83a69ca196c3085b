package device

import (
	"fmt"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

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
