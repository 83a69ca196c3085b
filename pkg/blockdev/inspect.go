package blockdev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Inspect looks at a device or image file. A file that does not exist, in a
// directory that does, is of kind Missing; a missing file below /dev is an
// error: what is written there would fill memory, not a disk.
func Inspect(ctx context.Context, name string) (Facts, error) {
	f := Facts{Path: name, Real: name, LogicalSector: 512}
	root := os.DirFS("/")
	f.Host = line(root, "proc/sys/kernel/random/boot_id")
	real, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) {
		return inspectMissing(f)
	}
	if err != nil {
		return f, err
	}
	f.Real = real
	var st unix.Stat_t
	if err := unix.Stat(real, &st); err != nil {
		return f, &fs.PathError{Op: "stat", Path: real, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Kind, f.Size, f.Inode, f.Allocated = File, st.Size, st.Ino, st.Blocks*512
		f.Device = deviceNumber(st.Dev)
		f.ModTime = time.Unix(st.Mtim.Unix()).UTC()
		f.FilesystemFree = free(real)
	case unix.S_IFBLK:
		f.Device = deviceNumber(st.Rdev)
		if err := inspectBlock(root, &f); err != nil {
			return f, err
		}
	default:
		return f, fault.Refusef("", "%s is neither a block device nor a file", name)
	}
	f.Signatures, err = probe(ctx, real)
	if err != nil {
		f.Unprobed = err.Error()
	}
	return f, ctx.Err()
}

func inspectMissing(f Facts) (Facts, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(f.Path))
	if err != nil {
		return f, fault.Refusef("", "%s does not exist, and neither does its directory", f.Path)
	}
	f.Real = filepath.Join(dir, filepath.Base(f.Path))
	if f.Real == "/dev" || strings.HasPrefix(f.Real, "/dev/") && !strings.HasPrefix(f.Real, "/dev/shm/") {
		return f, fault.Refusef("lsblk lists the devices", "%s: there is no such device", f.Path)
	}
	f.Kind, f.FilesystemFree = Missing, free(dir)
	return f, nil
}

// free is the bytes that this user may still write to a filesystem.
func free(path string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

func deviceNumber(dev uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
}

// line is the first line of a file, "" where it cannot be read.
func line(root fs.FS, name string) string {
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	return strings.TrimSpace(first)
}

func number(root fs.FS, name string) int64 {
	n, err := strconv.ParseInt(line(root, name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// inspectBlock fills in what sysfs and procfs say of f.Device.
func inspectBlock(root fs.FS, f *Facts) error {
	name, err := kernelName(root, f.Device)
	if err != nil {
		return err
	}
	sys := "sys/class/block/" + name
	disk := sys
	f.Part = int(number(root, sys+"/partition"))
	if f.Part > 0 {
		disk = "sys/class/block/" + parentOf(name)
	}
	f.Size = number(root, sys+"/size") * 512
	f.ReadOnly = number(root, sys+"/ro") != 0
	f.LogicalSector = int(max(512, number(root, disk+"/queue/logical_block_size")))
	f.PhysicalSector = int(number(root, disk+"/queue/physical_block_size"))
	f.Rotational = number(root, disk+"/queue/rotational") != 0
	f.DiskSeq = uint64(number(root, disk+"/diskseq"))
	f.Model = strings.TrimSpace(line(root, disk+"/device/vendor") + " " + line(root, disk+"/device/model"))
	f.Serial = firstOf(line(root, disk+"/device/serial"), line(root, disk+"/serial"))
	f.WWN = firstOf(line(root, disk+"/wwid"), line(root, disk+"/device/wwid"))
	f.UUID = firstOf(line(root, sys+"/dm/uuid"), line(root, sys+"/md/uuid"))
	f.Backing = line(root, sys+"/loop/backing_file")
	f.Kind = kindOf(name, f.UUID, f.Part)
	if f.Kind == Loop || f.Kind == LVM || f.Kind == DM || f.Kind == MD || f.Kind == Zvol || f.Kind == NBD {
		f.Rotational = f.Rotational && f.Kind != Loop && f.Kind != Zvol && f.Kind != NBD // they only say so
	}
	f.stack(root, name, true, map[string]bool{})
	if err := f.findMounts(root); err != nil {
		return err
	}
	return f.findSwaps(root)
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// kernelName is the name of a device number below /sys/class/block.
func kernelName(root fs.FS, device string) (string, error) {
	raw, err := fs.ReadFile(root, "sys/dev/block/"+device+"/uevent")
	if err != nil {
		return "", fmt.Errorf("device %s is unknown to the kernel: %w", device, err)
	}
	for l := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(l), "DEVNAME="); ok {
			return strings.ReplaceAll(name, "/", "!"), nil
		}
	}
	return "", fmt.Errorf("device %s has no name in sysfs", device)
}

// parentOf is the disk of a partition.
func parentOf(name string) string {
	target, err := os.Readlink("/sys/class/block/" + name)
	if err != nil {
		return name
	}
	return path.Base(path.Dir(target))
}

func kindOf(name, uuid string, part int) string {
	for prefix, kind := range map[string]string{"loop": Loop, "md": MD, "zd": Zvol, "nbd": NBD} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && part == 0 && rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			return kind
		}
	}
	switch {
	case part > 0:
		return Partition
	case strings.HasPrefix(uuid, "LVM-"):
		return LVM
	case strings.HasPrefix(name, "dm-"):
		return DM
	}
	return Disk
}

// stack collects what stands on a device: its partitions and holders, and
// theirs.
func (f *Facts) stack(root fs.FS, name string, own bool, seen map[string]bool) {
	if seen[name] {
		return
	}
	seen[name] = true
	sys := "sys/class/block/" + name
	if dev := line(root, sys+"/dev"); dev != "" {
		f.Stack = append(f.Stack, dev)
	}
	entries, _ := fs.ReadDir(root, sys) // gone: there is nothing on it
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name) && line(root, sys+"/"+e.Name()+"/partition") != "" {
			if own {
				f.Partitions = append(f.Partitions, e.Name())
			}
			f.stack(root, e.Name(), own, seen)
		}
	}
	holders, _ := fs.ReadDir(root, sys+"/holders")
	for _, h := range holders {
		label := h.Name()
		if dm := line(root, "sys/class/block/"+h.Name()+"/dm/name"); dm != "" {
			label += " (" + dm + ")"
		}
		if own && !slices.Contains(f.Holders, label) {
			f.Holders = append(f.Holders, label)
		}
		f.stack(root, h.Name(), false, seen)
	}
}

// findMounts finds what is mounted of the stack.
//
// https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
func (f *Facts) findMounts(root fs.FS) error {
	raw, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return err
	}
	f.Mounts, err = parseMounts(raw, func(device, source string) bool {
		if slices.Contains(f.Stack, device) {
			return true
		}
		// btrfs and others have a number of their own; the source tells.
		var st unix.Stat_t
		return strings.HasPrefix(source, "/dev/") && unix.Stat(source, &st) == nil &&
			st.Mode&unix.S_IFMT == unix.S_IFBLK && slices.Contains(f.Stack, deviceNumber(st.Rdev))
	})
	return err
}

// parseMounts parses mountinfo; of picks mounts by device number and source.
func parseMounts(raw []byte, of func(device, source string) bool) (out []Mount, err error) {
	for l := range strings.Lines(string(raw)) {
		before, after, ok := strings.Cut(strings.TrimSpace(l), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 2 {
			return nil, fmt.Errorf("mountinfo: %q is not a line of it", strings.TrimSpace(l))
		}
		source := unescape(right[1])
		if !of(left[2], source) {
			continue
		}
		out = append(out, Mount{Point: unescape(left[4]), Type: right[0], Source: source,
			ReadOnly: slices.Contains(strings.Split(left[5], ","), "ro")})
	}
	return out, nil
}

// unescape decodes the octal escapes of mountinfo and swaps.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// findSwaps finds swap areas on the stack.
func (f *Facts) findSwaps(root fs.FS) error {
	raw, err := fs.ReadFile(root, "proc/swaps")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without swap
	}
	if err != nil {
		return err
	}
	for i, l := range strings.Split(string(raw), "\n") {
		fields := strings.Fields(l)
		if i == 0 || len(fields) == 0 {
			continue
		}
		var st unix.Stat_t
		name := unescape(fields[0])
		if unix.Stat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && slices.Contains(f.Stack, deviceNumber(st.Rdev)) {
			f.Swaps = append(f.Swaps, name)
		}
	}
	return nil
}

// probeWithin bounds the probing of a device that does not answer.
const probeWithin = 30 * time.Second

// probe recognises signatures by wipefs, which changes nothing without -a or
// -o, and with --no-act does not even open for writing.
func probe(ctx context.Context, path string) ([]Signature, error) {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, "wipefs", "--no-act", "--json", "--output", "TYPE,OFFSET,LABEL,UUID", "--", path)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	if cmd.Err != nil { // not in PATH as it is here
		if found, err := exec.LookPath("/usr/sbin/wipefs"); err == nil {
			cmd.Path, cmd.Err = found, nil
		}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("wipefs: %w: %s", err, strings.TrimSpace(tail(stderr.String())))
	}
	return parseSignatures(out)
}

// tail is the end of a program's complaint.
func tail(s string) string { return s[max(0, len(s)-500):] }

// parseSignatures parses the output of wipefs --json.
func parseSignatures(raw []byte) ([]Signature, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil // it found nothing
	}
	var answer struct {
		Signatures []Signature `json:"signatures"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("wipefs: its answer is not as expected: %w", err)
	}
	return answer.Signatures, nil
}
