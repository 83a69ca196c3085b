package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"zxfer/pkg/zfs"
)

// zvolLinks is the directory of udev's links to the devices of volumes.
const zvolLinks = "/dev/zvol/"

// volumes finds the devices of volumes in the kernel. udev's links can be missing or outdated.
type volumes struct {
	sys, dev string // /sys/block, /dev
	// volumeOf returns the volume of a device node with this number.
	volumeOf func(node string, number uint64) (volume string, err error)
}

func kernelVolumes() *volumes { return &volumes{"/sys/block", "/dev", volumeOf} }

// nodes returns the device nodes of a volume, given by its link in /dev/zvol. Two volumes can have
// the same link. If the volume has no device, nodes is empty. If that is unknown, it returns an
// error.
func (v *volumes) nodes(link string) (nodes []string, err error) {
	all, err := filepath.Glob(filepath.Join(v.sys, "zd*"))
	if err == nil {
		_, err = os.Stat(v.sys)
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, at := range all {
		node := filepath.Join(v.dev, filepath.Base(at))
		text, err := os.ReadFile(filepath.Join(at, "dev"))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was removed at the same time
		}
		number, err := deviceNumber(string(text), err)
		volume := ""
		if err == nil {
			volume, err = v.volumeOf(node, number)
		}
		switch {
		case errors.Is(err, unix.ENXIO): // it was removed at the same time
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", node, err))
		case zfs.DeviceOf(volume) == link:
			nodes = append(nodes, node)
		}
	}
	if len(nodes) > 0 {
		return nodes, nil
	}
	return nil, errors.Join(errs...)
}

// deviceNumber parses a number such as "230:16".
func deviceNumber(text string, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	major, minor, _ := strings.Cut(strings.TrimSpace(text), ":")
	a, errMajor := strconv.ParseUint(major, 10, 32)
	b, errMinor := strconv.ParseUint(minor, 10, 32)
	return unix.Mkdev(uint32(a), uint32(b)), errors.Join(errMajor, errMinor)
}

// blkZName is BLKZNAME, the ioctl that returns the name of a volume.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/fs/zfs.h (_IOR(0x12, 125, char[256]))
const blkZName = 2<<30 | 256<<16 | 0x12<<8 | 125

// volumeOf queries the kernel.
func volumeOf(node string, number uint64) (string, error) {
	f, err := os.OpenFile(node, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		var cause unix.Errno
		if errors.As(err, &cause) {
			return "", cause
		}
		return "", err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != number {
		return "", errors.New("it is another device")
	}
	var name [256]byte
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), blkZName, uintptr(unsafe.Pointer(&name[0]))); errno != 0 {
		return "", errno
	}
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return string(text), nil
}

// blockNumber returns the number of the block device at a path, or that of the disk for a
// partition. It returns 0 for other files. It does not contact file servers.
func blockNumber(path string) uint64 {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	at, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", st.Rdev_major, st.Rdev_minor))
	if err == nil {
		if _, err := os.Stat(at + "/partition"); err == nil {
			if number, err := deviceNumber(readText(filepath.Dir(at) + "/dev")); err == nil {
				return number
			}
		}
	}
	return unix.Mkdev(st.Rdev_major, st.Rdev_minor)
}

func readText(name string) (string, error) {
	text, err := os.ReadFile(name)
	return string(text), err
}
