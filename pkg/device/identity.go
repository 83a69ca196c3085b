package device

import (
	"fmt"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// sameObject tells why what is open is not what facts were found of; nil if
// it is. Contents are not compared.
func (h *handle) sameObject(facts Facts) error {
	changed := func(what string, was, is any) error {
		return fault.Refusef("look at the device again with {{dry-run}}, then run the command anew",
			"%s is not what it was when the copy was planned: %s was %v, is %v", facts.Path, what, was, is)
	}
	return h.control(func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("%s: %w", facts.Path, err)
		}
		if facts.IsFile() {
			if st.Mode&unix.S_IFMT != unix.S_IFREG {
				return changed("its kind", facts.Kind, "no regular file")
			}
			if facts.Kind == KindFile && (st.Ino != facts.Inode || uint64(st.Dev) != facts.Device) {
				return changed("its inode", facts.Inode, st.Ino)
			}
			return nil
		}
		if st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return changed("its kind", facts.Kind, "no block device")
		}
		if is := uint64(st.Rdev); is != unix.Mkdev(facts.Major, facts.Minor) {
			return changed("its number", number(unix.Mkdev(facts.Major, facts.Minor)), number(is))
		}
		if is := diskSeq(fd); facts.DiskSeq != 0 && is != facts.DiskSeq {
			return changed("its disk sequence", facts.DiskSeq, is)
		}
		size, err := deviceSize(fd)
		if err != nil {
			return fmt.Errorf("%s: size: %w", facts.Path, err)
		}
		if size != facts.Size {
			return changed("its size", facts.Size, size)
		}
		return nil
	})
}

// readOnly asks the device: some can be opened for writing although they are.
func (h *handle) readOnly(facts Facts) bool {
	var flag int
	err := h.control(func(fd int) (err error) {
		if !facts.IsFile() {
			flag, err = unix.IoctlGetInt(fd, unix.BLKROGET)
		}
		return err
	})
	return err == nil && flag != 0
}

// number is a device number as sysfs writes it.
func number(dev uint64) string { return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)) }
