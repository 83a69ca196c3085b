package device

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kinds of what a path can name.
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
	KindMissing   = "missing" // nothing there yet, in a directory that exists
)

// Facts are what is known of a device or image file. Sizes are in bytes.
type Facts struct {
	Path string `json:"path"` // as given
	Real string `json:"real"` // with symbolic links resolved
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"` // of a device, the kernel's: "sda1", "dm-0"
	// Label is the name that its driver gives it: "vg/lv", a dm or zvol name,
	// the backing file of a loop device.
	Label string `json:"label,omitempty"`
	// UUID is that of a device-mapper device, which LVM makes last as long as
	// the volume.
	UUID string `json:"uuid,omitempty"`

	Size           int64  `json:"size"`
	LogicalSector  int    `json:"logical_sector"`
	PhysicalSector int    `json:"physical_sector"`
	ReadOnly       bool   `json:"read_only"`
	Rotational     bool   `json:"rotational"`
	Model          string `json:"model,omitempty"`  // of a partition, its disk's; also Serial and WWN
	Serial         string `json:"serial,omitempty"` //
	WWN            string `json:"wwn,omitempty"`
	// DiskSeq counts the disks that the running kernel has seen: another disk
	// under the same name has another one. 0 before Linux 5.15.
	DiskSeq uint64 `json:"disk_seq,omitempty"`
	Major   uint32 `json:"major,omitempty"`
	Minor   uint32 `json:"minor,omitempty"`
	Start   int64  `json:"start,omitempty"` // of a partition, on its disk

	PartitionTable string      `json:"partition_table,omitempty"` // gpt, dos …
	Partitions     []Partition `json:"partitions,omitempty"`
	Signatures     []Signature `json:"signatures,omitempty"` // of it and of its partitions
	// Unprobed tells why Signatures is not known.
	Unprobed string `json:"unprobed,omitempty"`
	// Denied is that the user may not even read it.
	Denied  bool     `json:"denied,omitempty"`
	Mounts  []Mount  `json:"mounts,omitempty"`  // of it, its partitions and all that is stacked on them
	Swap    []string `json:"swap,omitempty"`    // likewise; kernel names
	Holders []Holder `json:"holders,omitempty"` // what is stacked on it or its partitions
	// Busy is that somebody holds it exclusively, seen or not seen above: ZFS
	// and file systems of other mount namespaces leave no other trace.
	Busy bool `json:"busy,omitempty"`
	// System tells what the running system needs it for: "/", "/boot", "swap".
	System []string `json:"system,omitempty"`
	// Below are kernel names of the devices that it lies on, and Files the
	// image files: its disk, members of its array, a loop's backing file and
	// the disk of that.
	Below []string `json:"below,omitempty"`
	Files []string `json:"files,omitempty"`

	Inode     uint64    `json:"inode,omitempty"`
	Device    uint64    `json:"device,omitempty"` // st_dev of a file
	ModTime   time.Time `json:"mod_time,omitzero"`
	Allocated int64     `json:"allocated,omitempty"` // of a file, bytes it takes up
	HasData   bool      `json:"has_data,omitempty"`  // of a file: not one hole

	FilesystemFree int64  `json:"filesystem_free,omitempty"` // for this user
	FilesystemType string `json:"filesystem_type,omitempty"`

	Boot    string `json:"boot,omitempty"`    // boot id: the same on both ends if they share a kernel
	Machine string `json:"machine,omitempty"` // machine id
}

// Partition is one partition of a disk.
type Partition struct {
	Name  string `json:"name"`
	Start int64  `json:"start"`
	Size  int64  `json:"size"`
}

// Signature is a mark by which a use of a device is known.
type Signature struct {
	Device string `json:"device"` // kernel name, or path of a file
	Type   string `json:"type"`   // ext4, LVM2_member, zfs_member, gpt …
	Offset int64  `json:"offset"` // of the first such mark
	// Last is the offset of the last one, where there are several.
	Last  int64  `json:"last,omitempty"`
	Label string `json:"label,omitempty"`
	UUID  string `json:"uuid,omitempty"`
}

// Mount is a place where a file system of a device is mounted.
type Mount struct {
	Device   string `json:"device"`
	Point    string `json:"point"`
	Type     string `json:"type"`
	ReadOnly bool   `json:"read_only,omitempty"` // the file system, not just this mount
}

// Holder is a device made of another one.
type Holder struct {
	Name  string `json:"name"` // kernel name, "dm-0"
	Kind  string `json:"kind"`
	Label string `json:"label,omitempty"` // "vg/lv"
	On    string `json:"on"`              // what it lies on
}

// IsFile tells whether it is a regular file, or is going to be one.
func (f Facts) IsFile() bool { return f.Kind == KindFile || f.Kind == KindMissing }

// confirmations are the words that identify it to a user, best first.
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

// Same tells whether two looks at one name found the same device, or the same
// place of a file. What cannot be told apart for sure, as after a reboot of a
// host whose devices have no lasting names, is not the same.
func (f Facts) Same(g Facts) bool {
	return f.IsFile() == g.IsFile() && f.identity() == g.identity() && (f.IsFile() || f.Size == g.Size)
}

// identity names the same device or file again after a reboot where it can;
// where a device has no lasting name it lasts as long as the device does.
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
