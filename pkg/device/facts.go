package device

import (
	"slices"
	"strconv"
	"strings"
	"time"
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
	// Below lists the kernel names of the underlying devices: disk, array members,
	// disks of backing files. Files lists the backing files.
	Below []string `json:"below,omitempty"`
	Files []string `json:"files,omitempty"`

	Inode     uint64    `json:"inode,omitempty"`
	Device    uint64    `json:"device,omitempty"` // st_dev of a file
	ModTime   time.Time `json:"mod_time,omitzero"`
	Allocated int64     `json:"allocated,omitempty"` // disk space used by a file
	HasData   bool      `json:"has_data,omitempty"`  // the file is not one single hole

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
