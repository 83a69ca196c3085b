package device

import (
	"fmt"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

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
