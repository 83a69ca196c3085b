package device

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// inspectUses finds everything built on a device: its partitions, its holders and
// theirs. Then it finds mounts and swap on any of these.
func (f *Facts) inspectUses(v view, name string) {
	all := reachable(name, func(name string) []string {
		holders := v.list("sys/class/block/" + name + "/holders")
		for _, h := range holders {
			kind, label := v.kind(h)
			f.Holders = append(f.Holders, Holder{Name: h, Kind: kind, Label: label, On: name})
		}
		return append(v.partitionsOf(name), holders...)
	})
	for _, m := range v.mounts() {
		if slices.Contains(all, m.Device) {
			f.Mounts = append(f.Mounts, m)
			if isSystem(m.Point) && !slices.Contains(f.System, m.Point) {
				f.System = append(f.System, m.Point)
			}
		}
	}
	for _, path := range v.swaps() {
		if d := v.nameOf(v.number(path)); d != "" && slices.Contains(all, d) {
			f.Swap = append(f.Swap, d)
			f.System = append(f.System, "swap")
		}
	}
}

// reachable returns name and all names that next returns for it, directly or
// indirectly.
func reachable(name string, next func(name string) []string) []string {
	all := []string{name}
	for i := 0; i < len(all); i++ {
		for _, n := range next(all[i]) {
			if n != "" && !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	return all
}

// isSystem reports whether the running system needs the mount point.
func isSystem(point string) bool {
	return slices.Contains([]string{"/", "/boot", "/usr", "/var", "/etc"}, point) || strings.HasPrefix(point, "/boot/")
}

// underlying returns the kernel names and the backing files of loop devices that a
// device is built on, down to the disks.
func (v view) underlying(name string) (devices, files []string) {
	all := reachable(name, func(name string) []string {
		dir := "sys/class/block/" + name + "/"
		below := v.list(dir + "slaves")
		if v.exists(dir + "partition") {
			below = append(below, v.diskOf(name))
		}
		if file := v.readLine(dir + "loop/backing_file"); file != "" {
			files = append(files, file)
			below = append(below, v.deviceOf(file))
		}
		return below
	})
	return all[1:], files
}

// filesystemDevices returns the devices below a file system, given its st_dev.
func (v view) filesystemDevices(dev uint64) []string {
	name := v.nameOf(number(dev))
	if name == "" {
		return nil // tmpfs, ZFS, network: no block device
	}
	devices, _ := v.underlying(name)
	return append([]string{name}, devices...)
}

// deviceOf returns the device whose file system holds a file, or "". The longest
// matching mount point decides.
func (v view) deviceOf(file string) string {
	var best Mount
	for _, m := range v.mounts() {
		if len(m.Point) >= len(best.Point) && (m.Point == "/" || file == m.Point || strings.HasPrefix(file, m.Point+"/")) {
			best = m
		}
	}
	return best.Device
}

// overlaps returns how two devices or files share bytes, or "". It compares them
// only if their hosts share a kernel.
func overlaps(a, b Facts) string {
	if a.Boot != b.Boot || a.Boot == "" && a.Machine != b.Machine {
		return ""
	}
	fileIn := func(f, in Facts) bool { return f.IsFile() && slices.Contains(in.Files, f.Real) }
	switch {
	case a.IsFile() && b.IsFile():
		if a.Real == b.Real || a.Kind == KindFile && b.Kind == KindFile && a.Inode == b.Inode && a.Device == b.Device {
			return "they are the same file"
		}
		return ""
	case !a.IsFile() && !b.IsFile() && unix.Mkdev(a.Major, a.Minor) == unix.Mkdev(b.Major, b.Minor):
		return "they are the same device"
	case fileIn(a, b):
		return b.Path + " is made of " + a.Path
	case fileIn(b, a):
		return a.Path + " is made of " + b.Path
	case !a.IsFile() && slices.Contains(b.Below, a.Name):
		return b.Path + " lies on " + a.Path
	case !b.IsFile() && slices.Contains(a.Below, b.Name):
		return a.Path + " lies on " + b.Path
	}
	return ""
}

// sharedWWN returns the world-wide name that two overlapping disks or partitions
// share: they are two paths to one disk, or two hosts' views of it. It returns ""
// if they share none, or only an identifier that a vendor or hypervisor made up
// ("t10.").
func sharedWWN(a, b Facts) string {
	name := func(f Facts) string {
		for _, prefix := range []string{"0x", "naa.", "eui."} { // as udev and sysfs write it
			if n, ok := strings.CutPrefix(f.WWN, prefix); ok {
				return strings.ToLower(n)
			}
		}
		return ""
	}
	if a.Start >= b.Start+b.Size || b.Start >= a.Start+a.Size || name(a) != name(b) {
		return ""
	}
	return name(a)
}
