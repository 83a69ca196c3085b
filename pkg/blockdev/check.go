package blockdev

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
)

// Severity of a Problem.
type Severity string

// The severities: a copy with a problem at Fail level is not begun.
const (
	Fail Severity = "fail"
	Warn Severity = "warn"
)

// Problem is what speaks against a copy.
type Problem struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Summary  string   `json:"summary"`
	Evidence string   `json:"evidence,omitempty"`
	Remedy   string   `json:"remedy,omitempty"`
	// Contents tells a problem that is about what the target holds: it does
	// not count where that is an interrupted copy of the same source.
	Contents bool `json:"contents,omitempty"`
}

// Allow is what the user consented to. The zero value allows nothing.
type Allow struct {
	Overwrite bool   `json:"overwrite,omitempty"` // what the target holds may go
	Confirm   string `json:"confirm,omitempty"`   // names the target: see Facts.ConfirmBy
}

// CheckTarget returns what speaks against writing src onto dst. Contents of the
// target need consent; nothing overrides the other rules.
func CheckTarget(src, dst Facts, allow Allow) []Problem {
	var out []Problem
	refuse := func(id, remedy, format string, args ...any) {
		out = append(out, Problem{ID: id, Severity: Fail, Summary: dst.Path + " " + fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if same(src, dst) {
		refuse("itself", "name another target", "is the source itself, or a part of it, or holds it")
	}
	for _, m := range dst.Mounts {
		if system(m.Point) {
			refuse("system", "", "is of the running system: it holds %s (%s)", m.Point, m.Source)
		} else {
			refuse("mounted", "umount "+m.Point, "is mounted: %s at %s", m.Source, m.Point)
		}
	}
	for _, s := range dst.Swaps {
		refuse("swap", "swapoff "+s, "is swap of the running system (%s)", s)
	}
	if len(dst.Holders) > 0 {
		refuse("held", "deactivate what uses it (vgchange -an, mdadm --stop, dmsetup remove, zpool export)",
			"is in use by %s", strings.Join(dst.Holders, ", "))
	}
	if dst.ReadOnly {
		refuse("read-only", "blockdev --setrw "+dst.Path+", if that is meant", "is read-only")
	}
	switch {
	case dst.IsFile() && dst.FilesystemFree > 0 && src.Size-dst.Allocated > dst.FilesystemFree:
		refuse("no-space", "free space, or choose another filesystem", "needs %s, its filesystem has %s free",
			humanize.IBytes(uint64(src.Size-dst.Allocated)), humanize.IBytes(uint64(dst.FilesystemFree)))
	case !dst.IsFile() && dst.Size < src.Size:
		refuse("too-small", "", "has %d bytes, the source has %d", dst.Size, src.Size)
	case !dst.IsFile() && dst.Size > src.Size:
		out = append(out, Problem{ID: "larger", Severity: Warn, Summary: fmt.Sprintf("%s is larger than the source: its last %s stay as they are", dst.Path, humanize.IBytes(uint64(dst.Size-src.Size)))})
	}
	return append(out, checkContents(dst, allow)...)
}

// checkContents refuses a target that holds something, unless that was
// consented to.
func checkContents(dst Facts, allow Allow) []Problem {
	holds := ""
	switch {
	case dst.Kind == Missing:
	case dst.Unprobed != "":
		holds = "could not be probed for what it holds: " + dst.Unprobed
	case len(dst.Signatures) > 0:
		var texts []string
		for _, s := range dst.Signatures {
			text := s.Type
			if s.Label != "" {
				text += fmt.Sprintf(" %q", s.Label)
			}
			texts = append(texts, text)
		}
		holds = "holds " + strings.Join(slices.Compact(texts), ", ")
	case dst.Kind == File && dst.Allocated > 0:
		holds = fmt.Sprintf("exists and holds %s", humanize.IBytes(uint64(dst.Allocated)))
	}
	if holds == "" {
		return nil
	}
	ids := dst.ConfirmBy()
	switch {
	case !allow.Overwrite:
		return []Problem{{ID: "contents", Severity: Fail, Contents: true, Summary: dst.Path + " " + holds,
			Remedy: "to overwrite it: --overwrite --confirm " + ids[0]}}
	case !slices.Contains(ids, allow.Confirm):
		return []Problem{{ID: "unconfirmed", Severity: Fail, Contents: true,
			Summary: fmt.Sprintf("%s %s, and --confirm does not name it", dst.Path, holds),
			Remedy:  "--overwrite --confirm " + ids[0]}}
	}
	return nil
}

// same tells whether one of two devices of one host is, or is a part of, the
// other.
func same(a, b Facts) bool {
	switch {
	case a.Host != b.Host:
		return false
	case a.IsFile() || b.IsFile():
		return a.Real == b.Real || a.Inode != 0 && a.Inode == b.Inode && a.Device == b.Device ||
			a.Backing != "" && a.Backing == b.Real || b.Backing != "" && b.Backing == a.Real
	}
	return slices.Contains(a.Stack, b.Device) || slices.Contains(b.Stack, a.Device)
}

// CheckSource returns what a copy of src may suffer from.
func CheckSource(src Facts) []Problem {
	for _, m := range src.Mounts {
		if !m.ReadOnly {
			remedy := "unmount it, remount it read-only, or copy a snapshot"
			if src.Kind == LVM {
				remedy = "copy an LVM snapshot: lvcreate -s -n NAME -L SIZE " + src.Path
			}
			return []Problem{{ID: "mounted-source", Severity: Warn, Remedy: remedy,
				Summary: fmt.Sprintf("%s is mounted read-write at %s: the copy will not be of one moment", src.Path, m.Point)}}
		}
	}
	return nil
}
