package zfstest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// blkZName is the ioctl that returns the volume's name (256 bytes) of a device.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/fs/zfs.h (BLKZNAME)
const blkZName = 0x8100127d

// Device opens the block device of a volume. It searches /dev/zd*, because only udev creates
// the links under /dev/zvol.
func Device(t testing.TB, volume string) *os.File {
	t.Helper()
	var found *os.File
	require.Eventually(t, func() bool {
		all, err := filepath.Glob("/dev/zd*")
		require.NoError(t, err)
		for _, path := range all {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil { // it is read-only
				f, err = os.Open(path)
			}
			if err != nil {
				continue // deleted
			}
			if deviceName(f) == volume {
				found = f
				return true
			}
			_ = f.Close()
		}
		return false
	}, testenv.Timeout(), 20*time.Millisecond, "no device of %s", volume)
	return found
}

func deviceName(f *os.File) string {
	name, err := ioctlName(int(f.Fd()))
	if err != nil {
		return ""
	}
	s, _, _ := bytes.Cut(name[:], []byte{0})
	return string(s)
}

func ioctlName(fd int) (name [256]byte, err error) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), blkZName, uintptr(unsafe.Pointer(&name)))
	if errno != 0 {
		err = errno
	}
	return name, err
}
