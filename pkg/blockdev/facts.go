package blockdev

import (
	"fmt"
	"slices"
	"time"
)

// Kinds of devices.
const (
	Disk      = "disk"
	Partition = "partition"
	Loop      = "loop"
	LVM       = "lvm"
	DM        = "dm" // device mapper, but not LVM
	MD        = "md"
	Zvol      = "zvol"
	NBD       = "nbd"
	File      = "file"
	Missing   = "missing" // an image file that is not there yet; its directory is
)

// Facts are what is known of a device or image file. "" and 0 mean unknown,
// or that there is no such thing.
type Facts struct {
	Path string `json:"path"` // as given
	Real string `json:"real"` // with symbolic links resolved
	Kind string `json:"kind"`
	Size int64  `json:"size"` // bytes
	Host string `json:"host"` // of this kernel's boot: two devices of one host can be the same

	LogicalSector  int    `json:"logical_sector,omitempty"`
	PhysicalSector int    `json:"physical_sector,omitempty"`
	ReadOnly       bool   `json:"read_only,omitempty"`
	Rotational     bool   `json:"rotational,omitempty"`
	Model          string `json:"model,omitempty"`
	Serial         string `json:"serial,omitempty"`
	WWN            string `json:"wwn,omitempty"`
	DiskSeq        uint64 `json:"disk_seq,omitempty"` // unique for each attachment since boot, Linux 5.15
	Device         string `json:"device,omitempty"`   // "MAJOR:MINOR"
	UUID           string `json:"uuid,omitempty"`     // of the device mapper or MD
	Backing        string `json:"backing,omitempty"`  // file of a loop device
	Part           int    `json:"part,omitempty"`     // number of a partition

	// Stack is "MAJOR:MINOR" of the device and of everything on it:
	// partitions, and what device mapper, MD or bcache made of them.
	Stack      []string    `json:"stack,omitempty"`
	Partitions []string    `json:"partitions,omitempty"`
	Holders    []string    `json:"holders,omitempty"` // names of what holds it or its partitions
	Mounts     []Mount     `json:"mounts,omitempty"`  // of anything in Stack
	Swaps      []string    `json:"swaps,omitempty"`
	Signatures []Signature `json:"signatures,omitempty"`
	// Unprobed tells why signatures are unknown.
	Unprobed string `json:"unprobed,omitempty"`

	Inode          uint64    `json:"inode,omitempty"` // of a file
	ModTime        time.Time `json:"mod_time,omitzero"`
	Allocated      int64     `json:"allocated,omitempty"`       // bytes that a file takes
	FilesystemFree int64     `json:"filesystem_free,omitempty"` // of the file's filesystem, for this user
}

// Mount is a mounted filesystem.
type Mount struct {
	Point    string `json:"point"`
	Type     string `json:"type"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Source   string `json:"source"`
}

// Signature is a partition table, filesystem or the like that was recognised.
type Signature struct {
	Type   string `json:"type"`
	Offset string `json:"offset"`
	Label  string `json:"label,omitempty"`
	UUID   string `json:"uuid,omitempty"`
}

// IsFile tells image files from devices.
func (f Facts) IsFile() bool { return f.Kind == File || f.Kind == Missing }

// Sparse tells a file that takes clearly less than its size.
func (f Facts) Sparse() bool { return f.Kind == File && f.Allocated < f.Size-f.Size/10 }

// Identity tells the device from others, also after a reboot as far as there
// is anything to tell it by.
func (f Facts) Identity() string {
	id := ""
	switch {
	case f.WWN != "":
		id = "wwn " + f.WWN
	case f.Serial != "":
		id = "serial " + f.Serial
	case f.UUID != "":
		id = "uuid " + f.UUID
	case f.Kind == Loop:
		id = "loop of " + f.Backing
	case f.IsFile():
		return "file " + f.Real // its inode is another once it was replaced, which a journal finds out
	default:
		id = f.Kind + " " + f.Real
	}
	if f.Part > 0 {
		id += fmt.Sprintf(" part %d", f.Part)
	}
	return id
}

// content changes whenever a file is written to. Of a device only its size is
// known.
func (f Facts) content() string {
	if f.Kind == File {
		return fmt.Sprintf("%s, inode %d, %d bytes, %d", f.Identity(), f.Inode, f.Size, f.ModTime.UnixNano())
	}
	return fmt.Sprintf("%s, %d bytes", f.Identity(), f.Size)
}

// ConfirmBy are the values of --confirm that name this device.
func (f Facts) ConfirmBy() []string {
	var ids []string
	for _, id := range []string{f.Serial, f.WWN} {
		if id != "" {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		ids = append(ids, fmt.Sprint(f.Size))
	}
	return ids
}

// system are the mount points without which the host stops.
func system(point string) bool {
	return slices.Contains([]string{"/", "/boot", "/boot/efi", "/efi", "/usr", "/var", "/etc"}, point)
}
