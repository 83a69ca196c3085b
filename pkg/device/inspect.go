package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Inspect looks at a device or image file; it changes nothing. That nothing
// is there is no error if the directory is: Kind is KindMissing then. Device
// contents are probed with wipefs; without it, or without the right to read,
// Facts.Unprobed says so.
func Inspect(ctx context.Context, path string) (Facts, error) {
	f, err := inspect(ctx, host(), path)
	return f, readable(err)
}

// readable gives the error of a read that is not allowed its remedy.
func readable(err error) error {
	if denied(err) {
		return fault.Refusef("run as root, or as a user who may read it", "%w", err)
	}
	return err
}

// denied tells that the user may not do what was tried.
func denied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// view is a host as seen by an inspection: its /proc, /sys and /run below
// root, and what has to be asked by other means. Tests replace them with what
// was captured.
type view struct {
	root fs.FS
	// wipefs is its JSON output for a path.
	wipefs func(ctx context.Context, path string) ([]byte, error)
	// number is the device number of a block device's path, "8:1", or "".
	number func(path string) string
	// backing is the st_dev and the inode of what a loop device is made of; ok
	// is false where it is none, or may not be asked.
	backing func(name string) (dev, inode uint64, ok bool)
}

func host() view {
	return view{root: os.DirFS("/"), wipefs: runWipefs, backing: loopBacking, number: func(path string) string {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return ""
		}
		return number(uint64(st.Rdev))
	}}
}

func inspect(ctx context.Context, v view, path string) (Facts, error) {
	f := Facts{Path: path, Boot: v.line("proc/sys/kernel/random/boot_id"), Machine: v.line("etc/machine-id")}
	real, st, err := resolve(path)
	if errors.Is(err, os.ErrNotExist) {
		return inspectMissing(v, f)
	}
	if err != nil {
		return f, err
	}
	f.Real = real
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		err = f.inspectDevice(v, uint64(st.Rdev))
	case unix.S_IFREG:
		err = f.inspectFile(v, st)
	case unix.S_IFDIR:
		return f, fault.Refusef("name a file in it, or a device; a dataset is copied by zxfer send", "%s is a directory", path)
	default:
		return f, fault.Refusef("name a block device or a regular file", "%s is neither a block device nor a regular file", path)
	}
	if err != nil {
		return f, err
	}
	f.probe(ctx, v)
	return f, nil
}

// resolve follows symbolic links to what a path names.
func resolve(path string) (real string, st unix.Stat_t, err error) {
	if real, err = filepath.EvalSymlinks(path); err == nil {
		real, err = filepath.Abs(real)
	}
	if err == nil {
		if err = unix.Stat(real, &st); err != nil {
			err = &os.PathError{Op: "stat", Path: real, Err: err}
		}
	}
	return real, st, err
}

// fileSector is what is told as the physical sector of a file.
const fileSector = 4096

// inspectMissing looks at the directory of what is to be created.
func inspectMissing(v view, f Facts) (Facts, error) {
	if _, err := os.Lstat(f.Path); err == nil {
		return f, fault.Refusef("remove it, or name where it is to lead", "%s is a symbolic link to nothing", f.Path)
	}
	dir, st, err := resolve(filepath.Dir(f.Path))
	if errors.Is(err, os.ErrNotExist) {
		return f, fault.Refusef("check the name, or make the directory first", "%s: there is no directory %s", f.Path, filepath.Dir(f.Path))
	}
	if err != nil {
		return f, fmt.Errorf("%s: its directory: %w", f.Path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return f, fault.Refusef("", "%s is not a directory", dir)
	}
	f.Real, f.Kind, f.LogicalSector, f.PhysicalSector = filepath.Join(dir, filepath.Base(f.Path)), KindMissing, 512, fileSector
	f.Below = v.below(uint64(st.Dev))
	return f, f.filesystem(dir)
}

// inspectFile looks at a regular file and the file system that it is in.
func (f *Facts) inspectFile(v view, st unix.Stat_t) error {
	f.Kind, f.Size, f.LogicalSector, f.PhysicalSector = KindFile, st.Size, 512, fileSector
	f.Inode, f.Device, f.Allocated = st.Ino, uint64(st.Dev), st.Blocks*512
	f.ModTime = time.Unix(st.Mtim.Unix())
	f.Below = v.below(uint64(st.Dev))
	for _, name := range v.names("sys/class/block") {
		file := v.line("sys/class/block/" + name + "/loop/backing_file")
		if file == "" {
			continue
		}
		// The path is the one by which it was attached, and may be gone.
		dev, inode, ok := v.backing(name)
		if file == f.Real || ok && dev == f.Device && inode == f.Inode {
			f.Holders = append(f.Holders, Holder{Name: name, Kind: KindLoop, Label: f.Real, On: f.Real})
			f.stacked(v, name)
		}
	}
	for _, s := range v.swaps() {
		if s == f.Real {
			f.Swap = append(f.Swap, s)
		}
	}
	if err := f.filesystem(f.Real); err != nil {
		return err
	}
	h, err := openHandle(*f, unix.O_RDONLY)
	if err != nil {
		return err
	}
	start, err := h.seek(0, unix.SEEK_DATA, 0)
	f.HasData = start < f.Size
	return errors.Join(err, h.f.Close())
}

// filesystem looks at the file system of a path.
func (f *Facts) filesystem(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	unit := st.Frsize // FUSE tells another one for transfers
	if unit == 0 {
		unit = st.Bsize
	}
	f.FilesystemFree = int64(st.Bavail) * unit
	f.FilesystemType = filesystemName(st.Type)
	f.ReadOnly = st.Flags&unix.ST_RDONLY != 0
	return nil
}

// filesystemName names file systems that matter here, others by number.
func filesystemName(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.MSDOS_SUPER_MAGIC:
		return "vfat"
	case 0x2fc12fc1: // ZFS_SUPER_MAGIC of OpenZFS
		return "zfs"
	}
	return fmt.Sprintf("0x%x", magic)
}

// inspectDevice asks sysfs, and the device itself for what sysfs does not know.
func (f *Facts) inspectDevice(v view, dev uint64) error {
	f.Major, f.Minor = unix.Major(dev), unix.Minor(dev)
	f.Name = v.nameOf(number(dev))
	if f.Name == "" {
		return fmt.Errorf("%s: block device %s is not in /sys", f.Path, number(dev))
	}
	f.describe(v)
	f.stacked(v, f.Name)
	f.Below, f.Files = v.under(f.Name)
	fd, err := unix.Open(f.Real, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		f.Unprobed, f.Denied = fmt.Sprintf("open %s: %v", f.Real, err), denied(err)
		return nil
	}
	defer unix.Close(fd)
	if n, err := unix.Seek(fd, 0, unix.SEEK_END); err == nil {
		f.Size = n // sysfs counts sectors of 512 bytes: the same, but maybe older
	}
	if n := diskSeq(fd); n != 0 {
		f.DiskSeq = n
	}
	if f.Kind == KindZvol {
		f.Label = zvolName(fd)
	}
	// Claiming for reading triggers no udev event and changes nothing.
	excl, err := unix.Open(f.Real, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		return unix.Close(excl)
	}
	f.Busy = errors.Is(err, unix.EBUSY)
	return nil
}

// probe finds what lies on the device, and on its partitions.
func (f *Facts) probe(ctx context.Context, v view) {
	if f.Unprobed != "" || f.Size == 0 {
		return
	}
	type part struct{ name, path string }
	parts := []part{{f.Name, f.Real}}
	if f.IsFile() {
		parts[0].name = f.Real
	}
	for _, p := range f.Partitions {
		parts = append(parts, part{p.Name, "/dev/" + strings.ReplaceAll(p.Name, "!", "/")})
	}
	for _, p := range parts {
		raw, err := v.wipefs(ctx, p.path)
		if err == nil {
			var found []Signature
			if found, err = parseWipefs(raw, p.name); err == nil {
				f.Signatures = append(f.Signatures, found...)
			}
		}
		if err != nil {
			f.Unprobed = err.Error()
			return
		}
	}
	f.PartitionTable = tableOf(f.Signatures, parts[0].name)
}

// tableOf is the partition table among the signatures of a disk.
func tableOf(found []Signature, disk string) string {
	for _, table := range partitionTables() {
		if slices.ContainsFunc(found, func(s Signature) bool { return s.Device == disk && s.Type == table }) {
			return table
		}
	}
	return ""
}
