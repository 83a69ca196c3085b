package zfs

import (
	"fmt"
	"strings"
)

// CanMountProperty is a user property of restored filesystems that are not mounted yet. It holds "on", the
// canmount that the filesystem gets when zxfer has mounted it.
const CanMountProperty = "zxfer:canmount"

// MountRequest asks a host to mount a filesystem at its mountpoint. The zero value of each field but Dataset
// is the most careful one.
type MountRequest struct {
	Dataset string `json:"dataset"`
	// At is the mountpoint that the caller judged; "" = any.
	At string `json:"at,omitempty"`
	// Over also mounts over a directory that is not empty, because the filesystem was mounted before.
	Over bool `json:"over,omitempty"`
	// Trusted reports that the files belong to this host. Otherwise zxfer applies Distrust.
	Trusted bool `json:"trusted,omitempty"`
	// Boot sets canmount=on after the mount, so that ZFS mounts the filesystem at boot, unless another user could
	// redirect that mount.
	Boot bool `json:"boot,omitempty"`
}

// MountProperties returns the properties that decide how a filesystem is mounted.
func MountProperties() []string {
	return []string{"type", "mountpoint", "mounted", "canmount", "keystatus", "readonly", "setuid", "devices", "exec", "atime", "relatime",
		"context", "fscontext", "defcontext", "rootcontext", "sharenfs", "sharesmb", CanMountProperty}
}

// Distrust returns the properties to set on a filesystem with files of another host, so that setuid programs and devices
// among them have no effect. It omits those that an administrator of this host set, on the filesystem or an ancestor.
// inherits reports that the parent gets the same properties first.
func Distrust(p map[string]Property, inherits bool) map[string]string {
	set := map[string]string{}
	for _, name := range []string{"setuid", "devices"} {
		switch v := p[name]; {
		case v.Source == "received" && v.Value == "on",
			v.Source == "temporary", // the value of the current mount
			v.Source == "default" && v.Value == "on" && !inherits:
			set[name] = "off"
		}
	}
	return set
}

// Mountpoint is the directory of a filesystem that ZFS would mount and that is not mounted now, for example because
// its key is not loaded.
type Mountpoint struct {
	Dataset string `json:"dataset"`
	At      string `json:"at"`
}

// MountpointArgs returns the arguments of zfs(8) that print the filesystems of pools, nil = all, for
// ParseMountpoints.
func MountpointArgs(pools []string) []string {
	return append([]string{"list", "-H", "-r", "-t", "filesystem", "-o", "name,canmount,mounted,mountpoint"}, pools...)
}

// ParseMountpoints parses the output for MountpointArgs.
func ParseMountpoints(out string) (all []Mountpoint, err error) {
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 4)
		if len(f) != 4 {
			return nil, fmt.Errorf("output of zfs list: got %q, expected name, canmount, mounted and mountpoint", line)
		}
		if f[1] == "on" && f[2] == "no" && strings.HasPrefix(f[3], "/") {
			all = append(all, Mountpoint{f[0], f[3]})
		}
	}
	return all, nil
}
