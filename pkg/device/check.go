package device

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kballard/go-shellquote"
	"golang.org/x/sys/unix"

	"zxfer/pkg/finding"
	"zxfer/pkg/size"
)

// Allow holds the user's consent.
type Allow struct {
	// Overwrite permits overwriting recognized data on the target, if Confirm
	// identifies the target: by serial number or WWN, or by its size in bytes if it
	// has neither.
	Overwrite bool   `json:"overwrite,omitempty"`
	Confirm   string `json:"confirm,omitempty"`
	// Sparse permits a target file with holes. It may need less space than the
	// source's size.
	Sparse bool `json:"sparse,omitempty"`
}

// findings collects objections to a copy.
type findings []finding.Finding

func (j *findings) add(severity finding.Severity, id, evidence, remedy, format string, args ...any) {
	*j = append(*j, finding.Finding{ID: id, Severity: severity, Evidence: evidence, Remedy: remedy, Summary: fmt.Sprintf(format, args...)})
}

// checkTarget returns the objections to copying src to dst. Consent lifts
// objections to the target's contents, but never objections to its use or its size.
func checkTarget(src, dst Facts, allow Allow) []finding.Finding {
	var j findings
	how := overlaps(src, dst)
	if how != "" {
		j.add(finding.Fail, "target-is-source", how, "name another target", "%s is the source, or overlaps it", dst.Path)
	}
	if wwn := sharedWWN(src, dst); wwn != "" && how == "" {
		// Two disks in one dock may both report the dock's WWN. If nothing uses the
		// source, the worst case is that it is overwritten with its own data.
		severity := finding.Warn
		if src.Busy || len(src.Mounts)+len(src.Swap) > 0 {
			severity = finding.Fail
		}
		j.add(severity, "target-same-disk", "WWN "+wwn, "compare both in lsblk -o NAME,SIZE,SERIAL,WWN,HCTL; if they differ, stop the users of the source",
			"%s has the WWN of the source: it may be another path to the same disk", dst.Path)
	}
	if len(dst.System) > 0 {
		j.add(finding.Fail, "target-system", strings.Join(dst.System, ", "), "boot another system to write to the device",
			"the running system uses %s", dst.Path)
	}
	for _, m := range dst.Mounts {
		j.add(finding.Fail, "target-mounted", fmt.Sprintf("%s on %s type %s", m.Device, m.Point, m.Type), paste("umount", m.Point),
			"%s is mounted: %s on %s", dst.Path, m.Device, m.Point)
	}
	for _, s := range dst.Swap {
		j.add(finding.Fail, "target-swap", s, "disable it: swapoff DEVICE", "%s is swap: %s", dst.Path, s)
	}
	for _, h := range dst.Holders {
		j.add(finding.Fail, "target-held", fmt.Sprintf("%s %s (%s) on %s", h.Kind, h.Name, h.Label, h.On), h.releaseHint(),
			"%s is used by %s %s", dst.Path, h.Kind, cmp.Or(h.Label, h.Name))
	}
	if dst.Busy && len(dst.Mounts)+len(dst.Swap)+len(dst.Holders) == 0 {
		j.add(finding.Fail, "target-held", dst.signatureList(), "export, unmount or stop its user; fuser -vm shows it",
			"%s is in use: the kernel refuses exclusive access", dst.Path)
	}
	if dst.Denied {
		j.add(finding.Fail, "target-denied", dst.Unprobed, "run zxfer as root, or as a user who may read and write it", "cannot open %s: permission denied", dst.Path)
	}
	if dst.ReadOnly {
		j.add(finding.Fail, "target-read-only", "", "for a device run blockdev --setrw, for an image mount -o remount,rw",
			"%s is read-only", dst.Path)
	}
	if !dst.IsFile() && dst.Size < src.Size {
		j.add(finding.Fail, "target-too-small", fmt.Sprintf("%d bytes, the source has %d", dst.Size, src.Size), "name a larger target, or shrink the source first",
			"%s is %s too small", dst.Path, size.Text(uint64(src.Size-dst.Size)))
	}
	j.checkSpace(src, dst, allow)
	if len(finding.Failed(j)) > 0 {
		return j
	}
	j.checkContents(dst, allow)
	j.checkGeometry(src, dst)
	return j
}

// paste returns a shell command. Words come from a host, so they are quoted and
// never parsed as options.
func paste(command string, words ...string) string {
	if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") }) {
		command += " --"
	}
	return command + " " + shellquote.Join(words...)
}

// releaseHint returns the command that releases a holder.
func (h Holder) releaseHint() string {
	switch h.Kind {
	case KindLVM:
		group, _, _ := strings.Cut(h.Label, "/")
		return paste("vgchange -an", group)
	case KindDM:
		return paste("dmsetup remove", h.Label) + ", or cryptsetup close"
	case KindMD:
		return paste("mdadm --stop", "/dev/"+h.Name)
	case KindLoop:
		return paste("losetup -d", "/dev/"+h.Name)
	}
	return paste("fuser -vm", "/dev/"+h.Name) + " shows the user to stop"
}

// signatureList returns the signatures of a device, which hint at its user.
func (f Facts) signatureList() string {
	var out []string
	for _, s := range f.Signatures {
		out = append(out, s.text())
	}
	return strings.Join(out, ", ")
}

func (s Signature) text() string {
	t := s.Type
	if s.Label != "" {
		t += fmt.Sprintf(" %q", s.Label)
	}
	return t + " on " + s.Device
}

// checkSpace checks the location of an image file and the space there.
func (j *findings) checkSpace(src, dst Facts, allow Allow) {
	if dst.Kind == KindMissing && strings.HasPrefix(dst.Real, "/dev/") && !strings.HasPrefix(dst.Real, "/dev/shm/") {
		j.add(finding.Fail, "target-no-device", "", "check the name, or name an image file outside of /dev",
			"there is no device %s, and a file there would not survive a reboot", dst.Path)
	}
	if !dst.IsFile() {
		return
	}
	need := src.Size
	if src.Kind == KindFile && allow.Sparse {
		need = min(need, src.Allocated)
	}
	short := need - dst.Allocated - dst.FilesystemFree
	if short <= 0 {
		return
	}
	evidence := fmt.Sprintf("%d bytes free, %d of the file itself, %d needed", dst.FilesystemFree, dst.Allocated, need)
	if allow.Sparse && src.Kind != KindFile {
		j.add(finding.Warn, "target-no-space", evidence, "free space there", "%s fits only if enough of the source is zeros", dst.Path)
		return
	}
	remedy := "free space there"
	if !allow.Sparse {
		remedy += ", or add {{sparse}} if enough of the source is zeros"
	}
	j.add(finding.Fail, "target-no-space", evidence, remedy, "the file system of %s is %s too small", dst.Path, size.Text(uint64(short)))
}

// checkContents objects to data on the target.
func (j *findings) checkContents(dst Facts, allow Allow) {
	summary, found := "%s has contents", dst.signatureList()
	switch {
	case allow.Overwrite && dst.confirmedBy(allow.Confirm):
		return
	case found != "":
	case dst.Unprobed != "":
		summary, found = "cannot find out the contents of %s", dst.Unprobed
	case dst.Volume != nil:
		summary, found = "%s has a record of a copy of a volume", dst.Volume.String()
	case dst.Kind == KindFile && dst.HasData:
		summary, found = "%s is a file with data", fmt.Sprintf("%d bytes", dst.Size)
	default:
		return
	}
	identifier := "its serial number or WWN"
	if dst.Serial == "" && dst.WWN == "" {
		identifier = "its size in bytes"
	}
	remedy := fmt.Sprintf("to destroy its contents, add {{overwrite}} {{confirm}} %s (%s)", shellquote.Join(dst.Confirmation()), identifier)
	id := "target-contents"
	if allow.Overwrite {
		id = "target-confirm"
		summary = "%s: {{confirm}} is missing"
	}
	if allow.Overwrite && allow.Confirm != "" {
		summary = "%s: {{confirm}} does not match " + identifier
	}
	j.add(finding.Fail, id, found, remedy, summary, dst.Path)
	last := &(*j)[len(*j)-1]
	last.Consent = true
	if !allow.Overwrite {
		last.Summary += ": " + found
	}
}

// checkGeometry warns if sizes or sectors make the copy unusable or truncate a
// file.
func (j *findings) checkGeometry(src, dst Facts) {
	if dst.Kind == KindFile && dst.Size > src.Size && src.Size > 0 {
		j.add(finding.Warn, "target-longer", fmt.Sprintf("%d bytes, the source has %d", dst.Size, src.Size),
			"to keep the rest, name another file", "%s is longer than the source, and will be truncated to its size", dst.Path)
	}
	if dst.IsFile() {
		return
	}
	j.checkLeftovers(src, dst)
	if src.PartitionTable == "" {
		return
	}
	// Partition tables of image files are read in sectors of 512 bytes.
	if src.LogicalSector != dst.LogicalSector && src.LogicalSector != 0 {
		j.add(finding.Warn, "sector-size", fmt.Sprintf("%d and %d bytes", src.LogicalSector, dst.LogicalSector), "copy the partitions one by one into a new table",
			"%s has another sector size than the source: its partition table will be unreadable", dst.Path)
	}
	if src.PartitionTable == "gpt" && dst.Size > src.Size {
		j.add(finding.Warn, "gpt-end", "", paste("sgdisk --move-second-header", dst.Path), "%s is larger: the backup partition table will not be at its end", dst.Path)
	}
}

// checkLeftovers warns of old signatures beyond the end of the copy. ZFS, MD and
// others look for their labels at the end of a device.
func (j *findings) checkLeftovers(src, dst Facts) {
	var stay []string
	for _, s := range dst.Signatures {
		if s.Device != dst.Name || max(s.Offset, s.Last) < src.Size || s.Type == "gpt" && src.PartitionTable == "gpt" {
			continue // gpt-end covers the second GPT
		}
		stay = append(stay, fmt.Sprintf("%s at %d", s.text(), max(s.Offset, s.Last)))
	}
	if src.Size == 0 || len(stay) == 0 {
		return
	}
	sector := int64(max(dst.LogicalSector, 1))
	j.add(finding.Warn, "target-end", strings.Join(stay, ", "),
		paste(fmt.Sprintf("afterwards: blkdiscard --zeroout --offset %d", (src.Size+sector-1)/sector*sector), dst.Path),
		"%s is larger, and keeps old signatures after the copy, which may be detected as its contents", dst.Path)
}

// checkComplete objects to reading an incomplete copy of a volume.
func (j *findings) checkComplete(src Facts) {
	if c := src.Volume; c != nil && c.Applying.GUID != 0 {
		j.add(finding.Fail, "source-incomplete", "", "complete it first: "+paste("zxfer send", c.Applying.String())+" TARGET", "%s holds %s", src.Path, c)
	}
}

// checkSource returns reasons why the source cannot be read, and warnings if the
// copy may be inconsistent.
func checkSource(src Facts) []finding.Finding {
	var j findings
	j.checkComplete(src)
	remedy := func(point string) string {
		if src.Kind == KindLVM {
			return "copy a snapshot: {{lvm-snapshot 5G}} (size: data written during the copy)"
		}
		return paste("umount", point) + ", or " + paste("mount -o remount,ro", point) + ", or copy a snapshot"
	}
	if src.Denied {
		j.add(finding.Fail, "source-denied", src.Unprobed, "run zxfer as root, or as a user who may read it", "cannot read %s: permission denied", src.Path)
	}
	if src.Name != "" && src.Size == 0 && !src.Denied {
		j.add(finding.Fail, "source-empty", "0 bytes", "insert a medium, or attach the image of the device", "%s has no medium: its size is 0 bytes", src.Path)
	}
	for _, m := range src.Mounts {
		if !m.ReadOnly {
			j.add(finding.Warn, "source-mounted", fmt.Sprintf("%s on %s type %s", m.Device, m.Point, m.Type), remedy(m.Point),
				"%s is mounted read-write on %s: the copy will be inconsistent", src.Path, m.Point)
		}
	}
	for _, s := range src.Swap {
		j.add(finding.Warn, "source-swap", s, "disable it: swapoff DEVICE", "%s is active swap", src.Path)
	}
	if src.Busy && len(src.Mounts)+len(src.Swap) == 0 {
		j.add(finding.Warn, "source-in-use", src.signatureList(), "stop its user during the copy", "%s is in use: the copy may be inconsistent", src.Path)
	}
	return j
}

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
		return b.Path + " contains " + a.Path
	case fileIn(b, a):
		return a.Path + " contains " + b.Path
	case !a.IsFile() && slices.Contains(b.Underlying, a.Name):
		return b.Path + " is stored on " + a.Path
	case !b.IsFile() && slices.Contains(a.Underlying, b.Name):
		return a.Path + " is stored on " + b.Path
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
