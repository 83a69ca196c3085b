package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Kinds of devices and files.
const (
	KindDisk      = "disk"
	KindPartition = "partition"
	KindLoop      = "loop"
	KindLVM       = "lvm"
	KindDM        = "dm" // device-mapper other than LVM
	KindMD        = "md"
	KindZvol      = "zvol"
	KindNBD       = "nbd"
	KindFile      = "file"    // regular file
	KindMissing   = "missing" // does not exist, but its directory does
)

// Facts describe a device or image file. Sizes and offsets are in bytes.
type Facts struct {
	Path string `json:"path"` // as given
	Real string `json:"real"` // with symbolic links resolved
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"` // kernel name of a device: "sda1", "dm-0"
	// Label is the driver's name for the device: "vg/lv", a device-mapper or zvol
	// name, or the backing file of a loop device.
	Label string `json:"label,omitempty"`
	// UUID identifies a device-mapper device. LVM keeps it as long as the volume
	// exists.
	UUID string `json:"uuid,omitempty"`

	Size           int64  `json:"size"`
	LogicalSector  int    `json:"logical_sector"`
	PhysicalSector int    `json:"physical_sector"`
	ReadOnly       bool   `json:"read_only"`
	Rotational     bool   `json:"rotational"`
	Model          string `json:"model,omitempty"`  // of the disk if this is a partition; also Serial and WWN
	Serial         string `json:"serial,omitempty"` //
	WWN            string `json:"wwn,omitempty"`
	// DiskSeq is the kernel's sequence number of the disk. A replaced disk with the
	// same name has another one. It is 0 before Linux 5.15.
	DiskSeq uint64 `json:"disk_seq,omitempty"`
	Major   uint32 `json:"major,omitempty"`
	Minor   uint32 `json:"minor,omitempty"`
	Start   int64  `json:"start,omitempty"` // of a partition on its disk

	PartitionTable string      `json:"partition_table,omitempty"` // gpt, dos, ...
	Partitions     []Partition `json:"partitions,omitempty"`
	Signatures     []Signature `json:"signatures,omitempty"` // including those of partitions
	// Unprobed is the reason why Signatures is unknown.
	Unprobed string `json:"unprobed,omitempty"`
	// Denied reports that the user may not read the device.
	Denied  bool     `json:"denied,omitempty"`
	Mounts  []Mount  `json:"mounts,omitempty"`  // including partitions and devices stacked on them
	Swap    []string `json:"swap,omitempty"`    // as Mounts; kernel names
	Holders []Holder `json:"holders,omitempty"` // devices stacked on it or on its partitions
	// Busy reports that something holds the device exclusively. It is the only
	// trace of ZFS and of file systems mounted in other namespaces.
	Busy bool `json:"busy,omitempty"`
	// System lists the uses by the running system: "/", "/boot", "swap".
	System []string `json:"system,omitempty"`
	// Underlying lists the kernel names of the underlying devices: disk, array members,
	// disks of backing files. Files lists the backing files.
	Underlying []string `json:"below,omitempty"`
	Files      []string `json:"files,omitempty"`

	Inode     uint64    `json:"inode,omitempty"`
	Device    uint64    `json:"device,omitempty"` // st_dev of a file
	ModTime   time.Time `json:"mod_time,omitzero"`
	Allocated int64     `json:"allocated,omitempty"` // disk space used by a file
	HasData   bool      `json:"has_data,omitempty"`  // the file is not one single hole

	// Volume describes a copy of a ZFS volume's snapshot, nil for none.
	Volume *VolumeCopy `json:"volume,omitempty"`

	FilesystemFree int64  `json:"filesystem_free,omitempty"` // bytes available to this user
	FilesystemType string `json:"filesystem_type,omitempty"`

	Boot    string `json:"boot,omitempty"`    // boot ID: equal if both ends share a kernel
	Machine string `json:"machine,omitempty"` // machine ID
}

// Partition is a partition of a disk.
type Partition struct {
	Name  string `json:"name"`
	Start int64  `json:"start"`
	Size  int64  `json:"size"`
}

// Signature is a header that identifies the contents of a device.
type Signature struct {
	Device string `json:"device"` // kernel name, or path of a file
	Type   string `json:"type"`   // ext4, LVM2_member, zfs_member, gpt, ...
	Offset int64  `json:"offset"` // of the first copy
	// Last is the offset of the last copy, or 0 if there is only one.
	Last  int64  `json:"last,omitempty"`
	Label string `json:"label,omitempty"`
	UUID  string `json:"uuid,omitempty"`
}

// Mount is a mounted file system of a device.
type Mount struct {
	Device   string `json:"device"`
	Point    string `json:"point"`
	Type     string `json:"type"`
	ReadOnly bool   `json:"read_only,omitempty"` // the file system, not only this mount
}

// Holder is a device that uses another device.
type Holder struct {
	Name  string `json:"name"` // kernel name: "dm-0"
	Kind  string `json:"kind"`
	Label string `json:"label,omitempty"` // "vg/lv"
	On    string `json:"on"`              // the device that it uses
}

// IsFile reports whether the path names a regular file, or a file to be created.
func (f Facts) IsFile() bool { return f.Kind == KindFile || f.Kind == KindMissing }

// Confirmation returns the word that identifies the device to the user, for
// [Allow].Confirm.
func (f Facts) Confirmation() string { return f.confirmations()[0] }

// confirmations returns the words that identify the device to the user, best first.
func (f Facts) confirmations() []string {
	out := slices.DeleteFunc([]string{f.Serial, f.WWN}, func(s string) bool { return s == "" })
	if len(out) == 0 {
		out = append(out, strconv.FormatInt(f.Size, 10))
	}
	return out
}

func (f Facts) confirmedBy(word string) bool {
	return slices.ContainsFunc(f.confirmations(), func(c string) bool { return strings.EqualFold(strings.TrimSpace(word), c) })
}

// Inspect returns the facts of a device or image file. It changes nothing. If the
// path does not exist but its directory does, Kind is KindMissing and the error is
// nil. If wipefs is missing or reading is not permitted, Facts.Unprobed holds the
// reason.
func Inspect(ctx context.Context, path string) (Facts, error) {
	f, err := inspect(ctx, host(), path)
	return f, hintReadable(err)
}

// hintReadable adds a hint to a permission error of a read.
func hintReadable(err error) error {
	if denied(err) {
		return fault.Refusef("run zxfer as root, or as a user who may read it", "%w", err)
	}
	return err
}

// denied reports whether err is a permission error.
func denied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// view gives access to the system files and queries of a host. Tests replace it
// with captured data.
type view struct {
	root fs.FS
	// wipefs returns the JSON output of wipefs for a path.
	wipefs func(ctx context.Context, path string) ([]byte, error)
	// number returns the device number of a block device, such as "8:1", or "".
	number func(path string) string
	// backing returns the st_dev and the inode of the file behind a loop device. ok
	// is false if name is not a loop device or cannot be queried.
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
	f := Facts{Path: path, Boot: v.readLine("proc/sys/kernel/random/boot_id"), Machine: v.readLine("etc/machine-id")}
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
		return f, fault.Refusef("name a file in it or a device; to copy a dataset, use zxfer send", "%s is a directory", path)
	default:
		return f, fault.Refusef("name a block device or a regular file", "%s is neither a block device nor a regular file", path)
	}
	if err != nil {
		return f, err
	}
	f.probe(ctx, v)
	f.inspectVolume(v)
	return f, nil
}

// resolve returns the absolute path without symbolic links, and its status.
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

// fileSector is the physical sector size reported for files, in bytes.
const fileSector = 4096

// inspectMissing inspects the directory of a file to be created.
func inspectMissing(v view, f Facts) (Facts, error) {
	if _, err := os.Lstat(f.Path); err == nil {
		return f, fault.Refusef("delete the link, or name its intended destination", "%s is a dangling symbolic link", f.Path)
	}
	dir, st, err := resolve(filepath.Dir(f.Path))
	if errors.Is(err, os.ErrNotExist) {
		return f, fault.Refusef("check the name, or create the directory first", "%s: there is no directory %s", f.Path, filepath.Dir(f.Path))
	}
	if err != nil {
		return f, fmt.Errorf("%s: its directory: %w", f.Path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return f, fault.Refusef("", "%s is not a directory", dir)
	}
	f.Real, f.Kind, f.LogicalSector, f.PhysicalSector = filepath.Join(dir, filepath.Base(f.Path)), KindMissing, 512, fileSector
	f.Underlying = v.filesystemDevices(uint64(st.Dev))
	return f, f.filesystem(dir)
}

// inspectFile inspects a regular file and its file system.
func (f *Facts) inspectFile(v view, st unix.Stat_t) error {
	f.Kind, f.Size, f.LogicalSector, f.PhysicalSector = KindFile, st.Size, 512, fileSector
	f.Inode, f.Device, f.Allocated = st.Ino, uint64(st.Dev), st.Blocks*512
	f.ModTime = time.Unix(st.Mtim.Unix())
	f.Underlying = v.filesystemDevices(uint64(st.Dev))
	for _, name := range v.list("sys/class/block") {
		file := v.readLine("sys/class/block/" + name + "/loop/backing_file")
		if file == "" {
			continue
		}
		// backing_file is the path at attach time, which may be outdated: compare
		// inodes too.
		dev, inode, ok := v.backing(name)
		if file == f.Real || ok && dev == f.Device && inode == f.Inode {
			f.Holders = append(f.Holders, Holder{Name: name, Kind: KindLoop, Label: f.Real, On: f.Real})
			f.inspectUses(v, name)
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

func (f *Facts) filesystem(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	unit := st.Frsize // on FUSE, Bsize is the transfer size
	if unit == 0 {
		unit = st.Bsize
	}
	f.FilesystemFree = int64(st.Bavail) * unit
	f.FilesystemType = filesystemName(st.Type)
	f.ReadOnly = st.Flags&unix.ST_RDONLY != 0
	return nil
}

// filesystemName returns the name of a file system that matters here, otherwise its
// number.
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

// inspectDevice reads sysfs, and queries the device for facts that sysfs lacks.
func (f *Facts) inspectDevice(v view, dev uint64) error {
	f.Major, f.Minor = unix.Major(dev), unix.Minor(dev)
	f.Name = v.nameOf(number(dev))
	if f.Name == "" {
		return fmt.Errorf("%s: block device %s is not in /sys", f.Path, number(dev))
	}
	f.describe(v)
	f.inspectUses(v, f.Name)
	f.Underlying, f.Files = v.underlying(f.Name)
	fd, err := unix.Open(f.Real, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		f.Unprobed, f.Denied = fmt.Sprintf("open %s: %v", f.Real, err), denied(err)
		return nil
	}
	defer unix.Close(fd)
	if n, err := unix.Seek(fd, 0, unix.SEEK_END); err == nil {
		f.Size = n // sysfs may be outdated
	}
	if n := diskSeq(fd); n != 0 {
		f.DiskSeq = n
	}
	if f.Kind == KindZvol {
		f.Label = zvolName(fd)
	}
	// An exclusive open for reading triggers no udev event and changes nothing.
	excl, err := unix.Open(f.Real, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		return unix.Close(excl)
	}
	f.Busy = errors.Is(err, unix.EBUSY)
	return nil
}

// probe finds signatures on the device and its partitions.
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

// tableOf returns the type of a disk's partition table, or "".
func tableOf(found []Signature, disk string) string {
	for _, table := range partitionTables() {
		if slices.ContainsFunc(found, func(s Signature) bool { return s.Device == disk && s.Type == table }) {
			return table
		}
	}
	return ""
}
