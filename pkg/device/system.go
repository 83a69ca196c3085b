package device

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
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

// mounts returns the mounted file systems on block devices, with kernel names.
func (v view) mounts() []Mount {
	var out []Mount
	for _, m := range parseMountinfo(v.readText("proc/self/mountinfo")) {
		// btrfs has a virtual device number, but its source is a device.
		name := v.nameOf(m.number)
		if name == "" && strings.HasPrefix(m.source, "/") {
			name = v.nameOf(v.number(m.source))
		}
		if name != "" {
			out = append(out, Mount{Device: name, Point: m.point, Type: m.kind, ReadOnly: m.readOnly})
		}
	}
	return out
}

// mountLine holds the parts of a mountinfo line that are used.
type mountLine struct {
	number, point, kind, source string
	readOnly                    bool
}

// parseMountinfo parses /proc/self/mountinfo and skips malformed lines. readOnly is
// the option of the file system, because another mount of it may be writable.
// https://www.kernel.org/doc/html/latest/filesystems/proc.html, section 3.5
func parseMountinfo(s string) []mountLine {
	var out []mountLine
	for line := range strings.Lines(s) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 2 {
			continue
		}
		m := mountLine{number: f[2], point: unescape(f[4]), kind: g[0], source: unescape(g[1])}
		if len(g) > 2 {
			m.readOnly = g[2] == "ro" || strings.HasPrefix(g[2], "ro,")
		}
		out = append(out, m)
	}
	return out
}

// swaps returns the paths in /proc/swaps.
func (v view) swaps() []string { return parseSwaps(v.readText("proc/swaps")) }

// parseSwaps parses /proc/swaps: a heading, then lines that start with a path.
func parseSwaps(s string) []string {
	var out []string
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) > 0 && strings.HasPrefix(f[0], "/") {
			out = append(out, unescape(f[0]))
		}
	}
	return out
}

// unescape decodes the kernel's escapes for white space: seq_escape in
// fs/proc_namespace.c.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(s)
}

// Requests that golang.org/x/sys lacks: of <linux/fs.h>, and of OpenZFS.
// https://github.com/openzfs/zfs/blob/zfs-2.3.0/include/os/linux/spl/sys/types.h
const (
	blkGetDiskSeq = 0x80081280 // _IOR(0x12, 128, __u64), Linux 5.15
	blkZName      = 0x8100127d // _IOR(0x12, 125, char[256])
)

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// diskSeq returns the disk sequence number, or 0 before Linux 5.15.
func diskSeq(fd int) uint64 {
	var n uint64
	if ioctl(fd, blkGetDiskSeq, unsafe.Pointer(&n)) != nil {
		return 0
	}
	return n
}

// zeroOut zeros a range of whole sectors. The kernel uses a device command or
// writes zeros.
func zeroOut(fd int, off, n int64) error {
	r := [2]uint64{uint64(off), uint64(n)}
	return ioctl(fd, unix.BLKZEROOUT, unsafe.Pointer(&r[0]))
}

// zvolName returns the dataset of a zvol, or "" if unknown.
func zvolName(fd int) string {
	var name [256]byte
	if ioctl(fd, blkZName, unsafe.Pointer(&name[0])) != nil {
		return ""
	}
	s, _, _ := bytes.Cut(name[:], []byte{0})
	return string(s)
}

// loopBacking returns the st_dev and the inode of the file behind a loop device.
// https://man7.org/linux/man-pages/man4/loop.4.html
func loopBacking(name string) (dev, inode uint64, ok bool) {
	fd, err := unix.Open("/dev/"+name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, false
	}
	defer unix.Close(fd)
	info, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return 0, 0, false
	}
	return info.Device, info.Inode, true
}

// runWipefs lists the signatures of a path. --no-act prevents any erasure.
func runWipefs(ctx context.Context, path string) ([]byte, error) {
	out, err := runTool(ctx, "wipefs", "--no-act", "--json", "--output", "OFFSET,TYPE,UUID,LABEL", path)
	if errors.Is(err, exec.ErrNotFound) {
		err = fault.Refusef("install util-linux", "%w", err)
	}
	return out, err
}

// partitionTables returns libblkid's names of partition tables. gpt precedes PMBR,
// the protective table that accompanies it.
func partitionTables() []string {
	return []string{"gpt", "dos", "PMBR", "mac", "sun", "sgi", "bsd", "solaris_x86", "unixware", "minix", "ultrix", "atari"}
}

// parseWipefs parses the output of wipefs --json. Signatures of the same type and
// UUID, such as the labels of a ZFS member, become one with the first and the last
// offset.
func parseWipefs(raw []byte, device string) ([]Signature, error) {
	if strings.TrimSpace(string(raw)) == "" {
		return nil, nil // no signatures: util-linux before 2.39 prints nothing
	}
	var got struct {
		Signatures []struct {
			Offset, Type, UUID, Label string // null becomes ""
		} `json:"signatures"`
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		return nil, fmt.Errorf("wipefs of %s: %w", device, err)
	}
	var out []Signature
	for _, g := range got.Signatures {
		off, err := strconv.ParseInt(g.Offset, 0, 64)
		if err != nil || off < 0 || g.Type == "" {
			return nil, fmt.Errorf("wipefs of %s: type %q at offset %q", device, g.Type, g.Offset)
		}
		s := Signature{Device: device, Type: g.Type, Offset: off, Label: g.Label, UUID: g.UUID}
		i := slices.IndexFunc(out, func(o Signature) bool { return o.Type == s.Type && o.UUID == s.UUID })
		if i < 0 {
			out = append(out, s)
			continue
		}
		out[i].Last = max(out[i].Offset, out[i].Last, s.Offset)
		out[i].Offset = min(out[i].Offset, s.Offset)
	}
	return out, nil
}

const (
	// toolTimeout limits the run time of a tool. Failing drives take seconds per
	// read, and a snapshot waits until the file system is frozen.
	toolTimeout = 60 * time.Second
	// maxStderr limits the error output in messages, in bytes.
	maxStderr = 4 << 10
)

// runTool runs a system tool and returns its output. Errors include the command and
// the end of its error output.
func runTool(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	// LVM blocks signals while devices are suspended. SIGKILL would leave them
	// suspended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.Output() // captures a limited part of stderr
	if err == nil {
		return out, nil
	}
	text := ""
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
		tail := exit.Stderr[max(0, len(exit.Stderr)-maxStderr):]
		text = ": " + strings.Join(strings.Fields(string(tail)), " ")
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("%s: %w%s", strings.Join(cmd.Args, " "), err, text)
}
