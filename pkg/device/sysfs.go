package device

import (
	"cmp"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// readText returns the contents of a file, or "".
func (v view) readText(name string) string {
	raw, err := fs.ReadFile(v.root, name)
	if err != nil {
		return ""
	}
	return string(raw)
}

// readLine returns the first line of a file, or "".
func (v view) readLine(name string) string {
	first, _, _ := strings.Cut(v.readText(name), "\n")
	return strings.TrimSpace(first)
}

func (v view) readInt(name string) int64 {
	n, err := strconv.ParseInt(v.readLine(name), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func (v view) exists(name string) bool {
	_, err := fs.Stat(v.root, name)
	return err == nil
}

// list returns the names in a directory, or none on error.
func (v view) list(dir string) []string {
	entries, _ := fs.ReadDir(v.root, dir)
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// nameOf returns the kernel name of a device number, or "". sysfs replaces "/" in
// names such as cciss/c0d0 with "!".
func (v view) nameOf(number string) string {
	return strings.ReplaceAll(parseUevent(v.readText("sys/dev/block/" + number + "/uevent"))["DEVNAME"], "/", "!")
}

// parseUevent parses KEY=VALUE lines.
func parseUevent(s string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(s) {
		if k, val, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			out[k] = val
		}
	}
	return out
}

// describe fills in the facts of sysfs and udev for the device f.Name. Sizes in
// sysfs are always in units of 512 bytes.
// https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-block
func (f *Facts) describe(v view) {
	dir := "sys/class/block/" + f.Name + "/"
	f.Kind, f.Label = v.kind(f.Name)
	f.UUID = v.readLine(dir + "dm/uuid")
	f.Size = v.readInt(dir+"size") * 512
	f.ReadOnly = v.readInt(dir+"ro") != 0
	f.Start = v.readInt(dir+"start") * 512
	f.DiskSeq = uint64(v.readInt(dir + "diskseq"))
	disk := f.Name
	if f.Kind == KindPartition {
		disk = v.diskOf(f.Name)
		f.ReadOnly = f.ReadOnly || v.readInt("sys/class/block/"+disk+"/ro") != 0
	}
	top := "sys/class/block/" + disk + "/"
	f.LogicalSector = int(v.readInt(top + "queue/logical_block_size"))
	f.PhysicalSector = int(v.readInt(top + "queue/physical_block_size"))
	f.Rotational = v.readInt(top+"queue/rotational") != 0
	f.Model = strings.TrimSpace(v.readLine(top+"device/vendor") + " " + v.readLine(top+"device/model"))
	f.WWN = cmp.Or(v.readLine(top+"wwid"), v.readLine(top+"device/wwid"))
	f.Serial = cmp.Or(v.readLine(top+"device/serial"), v.readLine(top+"serial"), v.scsiSerial(top))
	// udev queries the drive itself, which the kernel does not do for SATA.
	env := parseUevent(strings.ReplaceAll(v.readText("run/udev/data/b"+v.readLine(top+"dev")), "E:", ""))
	f.Serial = cmp.Or(f.Serial, env["ID_SERIAL_SHORT"])
	f.WWN = cmp.Or(env["ID_WWN_WITH_EXTENSION"], env["ID_WWN"], f.WWN)
	for _, name := range v.partitionsOf(f.Name) {
		p := "sys/class/block/" + name + "/"
		f.Partitions = append(f.Partitions, Partition{Name: name, Start: v.readInt(p+"start") * 512, Size: v.readInt(p+"size") * 512})
	}
	slices.SortStableFunc(f.Partitions, func(a, b Partition) int { return cmp.Compare(a.Start, b.Start) })
}

// scsiSerial reads VPD page 0x80 of a SCSI drive: four header bytes, then text.
func (v view) scsiSerial(top string) string {
	page := v.readText(top + "device/vpd_pg80")
	return strings.TrimSpace(strings.Trim(page[min(4, len(page)):], "\x00"))
}

// kind returns the kind of a device, and the driver's name for it.
func (v view) kind(name string) (kind, label string) {
	dir := "sys/class/block/" + name + "/"
	switch {
	case v.exists(dir + "partition"):
		return KindPartition, ""
	case v.exists(dir + "dm"):
		label = v.readLine(dir + "dm/name")
		if strings.HasPrefix(v.readLine(dir+"dm/uuid"), "LVM-") {
			return KindLVM, lvmName(label)
		}
		return KindDM, label
	case v.exists(dir + "md"):
		return KindMD, name
	case strings.HasPrefix(name, "loop"):
		return KindLoop, v.readLine(dir + "loop/backing_file")
	case strings.HasPrefix(name, "nbd"):
		return KindNBD, ""
	case strings.HasPrefix(name, "zd"):
		return KindZvol, ""
	}
	return KindDisk, ""
}

// lvmName converts a device-mapper name to "vg/lv". Device-mapper joins group and
// volume with "-", and doubles other hyphens.
func lvmName(dm string) string {
	for i := 0; i < len(dm); i++ {
		if dm[i] != '-' {
			continue
		}
		if i+1 < len(dm) && dm[i+1] == '-' {
			i++
			continue
		}
		return strings.ReplaceAll(dm[:i], "--", "-") + "/" + strings.ReplaceAll(dm[i+1:], "--", "-")
	}
	return strings.ReplaceAll(dm, "--", "-")
}

// partitionsOf returns the partitions of a disk, which are subdirectories of it in
// sysfs.
func (v view) partitionsOf(disk string) []string {
	var out []string
	for _, name := range v.list("sys/class/block") {
		if name != disk && strings.HasPrefix(name, disk) && v.exists("sys/class/block/"+disk+"/"+name+"/partition") {
			out = append(out, name)
		}
	}
	return out
}

// diskOf returns the disk of a partition, or "".
func (v view) diskOf(partition string) string {
	for _, disk := range v.list("sys/class/block") {
		if disk != partition && strings.HasPrefix(partition, disk) && v.exists("sys/class/block/"+disk+"/"+partition+"/partition") {
			return disk
		}
	}
	return ""
}
