package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// InUse returns the contents that a mount on a directory would hide, and the programs that have a
// device open. If a volume has no link in /dev/zvol, its device is looked up in the kernel. If the
// lookup fails, the volume counts as in use.
func (c *CLI) InUse(ctx context.Context, paths []string) (map[string]string, error) {
	return findInUse(ctx, paths, kernelVolumes())
}

func findInUse(ctx context.Context, paths []string, v *volumes) (map[string]string, error) {
	out, devices := map[string]string{}, map[string]string{}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			return nil, fault.Usagef("", "%q is not an absolute path", path)
		}
		nodes := []string{}
		real, err := filepath.EvalSymlinks(path)
		if info, _ := os.Stat(real); err == nil && info != nil && info.Mode().Type() == os.ModeDevice {
			nodes = append(nodes, real)
		}
		if strings.HasPrefix(path, zvolLinks) {
			switch found, err := v.nodes(path); {
			case err == nil:
				nodes = found
			case len(nodes) == 0: // an unprivileged user relies on an existing link
				out[path] = fmt.Sprintf("may be in use: it has no link in %s, and its device was not found: %s", strings.TrimSuffix(zvolLinks, "/"), strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		} else if len(nodes) == 0 {
			if why := directoryUse(path); why != "" {
				out[path] = why
			}
		}
		for _, node := range nodes {
			devices[node] = path
		}
	}
	if len(devices) == 0 {
		return out, nil
	}
	return out, findUsers(ctx, devices, out)
}

func directoryUse(path string) string {
	dir, err := os.Open(path)
	if err != nil {
		return "" // missing, or not a directory
	}
	defer dir.Close()
	if names, _ := dir.Readdirnames(3); len(names) > 0 {
		return fmt.Sprintf("is not empty (%s)", names[0])
	}
	if device(path) != device(filepath.Dir(path)) {
		return "already has something mounted"
	}
	return ""
}

// device returns the device number of a path's filesystem, or 0 if it is unknown.
func device(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return 0
	}
	return st.Dev
}

// partitionSuffix is the suffix of a partition of a device whose name ends in a digit.
var partitionSuffix = regexp.MustCompile(`p[0-9]+$`)

// findUsers adds to out the programs that have devices or their partitions open, as far as they are
// visible. devices maps device nodes to requested paths. Other nodes of the same device number
// count, too. It scans all processes once for all devices.
func findUsers(ctx context.Context, devices, out map[string]string) error {
	numbers := map[uint64]string{}
	for node := range devices {
		if n := blockNumber(node); n != 0 {
			numbers[n] = node
		}
	}
	users := map[string][]string{}
	processes, _ := filepath.Glob("/proc/[0-9]*") // a valid pattern never fails
	for _, dir := range processes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		open, _ := os.ReadDir(dir + "/fd") // it may have ended or belong to another user
		for _, f := range open {
			real, _ := os.Readlink(dir + "/fd/" + f.Name()) // "" if it was closed
			if _, asked := devices[real]; !asked && len(numbers) > 0 && strings.HasPrefix(real, "/") {
				if node := numbers[blockNumber(dir+"/fd/"+f.Name())]; node != "" {
					real = node
				}
			}
			if _, asked := devices[real]; !asked {
				real = partitionSuffix.ReplaceAllString(real, "")
			}
			if _, asked := devices[real]; !asked {
				continue
			}
			if u := programIn(dir); u != "" && !slices.Contains(users[real], u) {
				users[real] = append(users[real], u)
			}
		}
	}
	for real, path := range devices {
		if len(users[real]) > 0 {
			out[path] = "is in use by " + finding.JoinFirst(users[real], 3)
		} else if heldExclusively(real) {
			out[path] = "is in use"
		}
	}
	return nil
}

// programIn returns the name of a process, given its directory in /proc. It returns "" for this
// process, and for udev, which opens each device for a moment.
func programIn(dir string) string {
	comm, _ := os.ReadFile(dir + "/comm")
	name, pid := strings.TrimSpace(string(comm)), filepath.Base(dir)
	if pid == strconv.Itoa(os.Getpid()) || slices.Contains([]string{"systemd-udevd", "(udev-worker)", "udevd"}, name) {
		return ""
	}
	return fmt.Sprintf("%q (process %s)", name, pid)
}

// heldExclusively reports whether a device is open exclusively, such as by a mount, swap, or a
// device on top of it or its partitions. The test changes nothing.
func heldExclusively(real string) bool {
	fd, err := syscall.Open(real, syscall.O_RDONLY|syscall.O_EXCL|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err == nil {
		_ = syscall.Close(fd)
	}
	return errors.Is(err, syscall.EBUSY)
}

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
