package preflight

import (
	"fmt"
	"strconv"
	"strings"

	"zxfer/pkg/plan"
)

// version is the numeric part of an OpenZFS version.
type version [3]int

// parseVersion reads "2.3.9-1"; false where it is no release.
func parseVersion(s string) (v version, ok bool) {
	s, _, _ = strings.Cut(strings.TrimPrefix(s, "zfs-"), "-")
	parts := strings.Split(s, ".")
	if len(parts) < 2 {
		return v, false
	}
	for i, p := range parts[:min(3, len(parts))] {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

func (v version) before(w version) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}

// defect is a known defect of OpenZFS that a plan could meet.
type defect struct {
	applies func(v version, u use) bool
	summary string
	issue   string
	fixed   string
}

// use is what a plan does that defects depend on.
type use struct {
	source, target bool // which side the version is of
	raw            bool
	plainEncrypted bool // encrypted data is sent decrypted
	rangeRaw       bool // -w with -I
	resumeFirstRaw bool
}

var knownDefects = []defect{
	{func(v version, u use) bool { return u.target && u.raw && v.before(version{2, 1, 3}) },
		"raw receives into a pool with a larger ashift may fail", "https://github.com/openzfs/zfs/releases/tag/zfs-2.1.3", "2.1.3"},
	{func(v version, u use) bool { return u.target && u.raw && v.before(version{2, 1, 13}) },
		"raw receives of datasets with another indirect block size may fail", "https://github.com/openzfs/zfs/releases/tag/zfs-2.1.13", "2.1.13"},
	{func(v version, u use) bool { return u.target && u.resumeFirstRaw && v.before(version{2, 0, 0}) },
		"an interrupted first raw receive cannot be resumed", "https://github.com/openzfs/zfs/releases/tag/zfs-2.0.0", "2.0.0"},
	{func(v version, u use) bool {
		return u.source && u.rangeRaw && !v.before(version{2, 4, 0}) && v.before(version{2, 4, 1})
	}, "the delegated permission send:raw does not cover zfs send -w -I", "https://github.com/openzfs/zfs/releases/tag/zfs-2.4.1", "2.4.1"},
	{func(v version, u use) bool {
		return u.source && u.plainEncrypted && (v.before(version{2, 2, 8}) || v.before(version{2, 3, 3}) && !v.before(version{2, 3, 0}))
	}, "sending encrypted data decrypted may corrupt the stream or panic", "https://github.com/openzfs/zfs/issues/12014", "2.2.8, 2.3.3 and 2.4.0"},
}

func defects(in *Input) []Finding {
	u := use{}
	for _, d := range in.Plan.Datasets {
		for _, st := range d.Steps {
			u.raw = u.raw || st.Send.Flags.Raw
			u.rangeRaw = u.rangeRaw || st.Send.Flags.Raw && len(st.Send.Through) > 0
			u.resumeFirstRaw = u.resumeFirstRaw || st.Kind == plan.Resume && st.Send.Flags.Raw && st.BaseGUID == 0
		}
		if src := in.SourceListing.Find(d.Source); src != nil && src.Encrypted() && !d.Encrypted && len(d.Steps) > 0 {
			u.plainEncrypted = true
		}
	}
	var out []Finding
	for _, side := range []struct {
		host Host
		use  use
	}{{in.Source, withSide(u, true)}, {in.Target, withSide(u, false)}} {
		v, ok := parseVersion(side.host.ZFS)
		if !ok {
			continue
		}
		for _, d := range knownDefects {
			if !d.applies(v, side.use) {
				continue
			}
			out = append(out, Finding{
				Host: side.host.Name, Severity: Warn, Summary: fmt.Sprintf("ZFS %s: %s (fixed in %s)", side.host.ZFS, d.summary, d.fixed),
				Evidence: "/sys/module/zfs/version: " + side.host.ZFS + "; " + d.issue,
				Remedy:   "upgrade ZFS to " + d.fixed,
			})
		}
	}
	return out
}

func withSide(u use, source bool) use {
	u.source, u.target = source, !source
	return u
}
