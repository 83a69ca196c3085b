package device

import (
	"bytes"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests that golang.org/x/sys lacks: of <linux/fs.h>, and of OpenZFS.
// https://github.com/openzfs/zfs/blob/zfs-2.3.0/include/os/linux/spl/sys/types.h
const (
	blkGetDiskSeq = 0x80081280 // _IOR(0x12, 128, __u64), Linux 5.15
	blkZName      = 0x8100127d // _IOR(0x12, 125, char[256])
)

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// diskSeq returns the disk sequence number, or 0 before Linux 5.15.
func diskSeq(fd int) uint64 {
	var n uint64
	if ioctl(fd, blkGetDiskSeq, unsafe.Pointer(&n)) != nil {
		return 0
	}
	return n
}

// zeroOut zeros a range of whole sectors. The kernel uses a device command or
// writes zeros.
func zeroOut(fd int, off, n int64) error {
	r := [2]uint64{uint64(off), uint64(n)}
	return ioctl(fd, unix.BLKZEROOUT, unsafe.Pointer(&r[0]))
}

// zvolName returns the dataset of a zvol, or "" if unknown.
func zvolName(fd int) string {
	var name [256]byte
	if ioctl(fd, blkZName, unsafe.Pointer(&name[0])) != nil {
		return ""
	}
	s, _, _ := bytes.Cut(name[:], []byte{0})
	return string(s)
}

// loopBacking returns the st_dev and the inode of the file behind a loop device.
// https://man7.org/linux/man-pages/man4/loop.4.html
func loopBacking(name string) (dev, inode uint64, ok bool) {
	fd, err := unix.Open("/dev/"+name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, false
	}
	defer unix.Close(fd)
	info, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return 0, 0, false
	}
	return info.Device, info.Inode, true
}
