package preflight

import (
	"fmt"
	"strconv"
	"strings"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// version is the numeric part of an OpenZFS version.
type version [3]int

// parseVersion reads "2.3.9-1"; false where it is no release.
func parseVersion(s string) (v version, ok bool) {
	number, _, _ := strings.Cut(strings.TrimPrefix(s, "zfs-"), "-")
	parts := strings.Split(number, ".")
	if len(parts) < 2 {
		return v, false
	}
	for i, p := range parts[:min(3, len(parts))] {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return version{}, false
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

// within tells whether a version is from one on and before another.
func (v version) within(from, before version) bool { return !v.before(from) && v.before(before) }

// defect is a known defect of OpenZFS that a plan could meet.
type defect struct {
	meets   func(v version, u use) bool
	summary string
	link    string
	fixed   string
}

// use is what a plan does that defects depend on.
type use struct {
	source, target bool // which side the version is of
	root           bool // whether that side runs as root
	raw            bool
	rawRange       bool // -w with -I
	rawBack        bool // raw increments of what was itself received raw
	resumeFirstRaw bool
	decrypts       bool
	largerAshift   bool // the target's sectors are larger, as far as both are known
}

// knownDefects are those of the releases that are still in use.
func knownDefects() []defect {
	return []defect{
		{func(v version, u use) bool { return u.target && u.raw && u.largerAshift && v.before(version{2, 1, 3}) },
			"a raw receive into a pool with a larger ashift may fail", "https://github.com/openzfs/zfs/releases/tag/zfs-2.1.3", "2.1.3"},
		{func(v version, u use) bool { return u.target && u.raw && v.before(version{2, 1, 13}) },
			"a raw receive of data with another indirect block size may fail", "https://github.com/openzfs/zfs/releases/tag/zfs-2.1.13", "2.1.13"},
		{func(v version, u use) bool { return u.target && u.resumeFirstRaw && v.before(version{2, 0, 0}) },
			"an interrupted first raw receive cannot be resumed", "https://github.com/openzfs/zfs/releases/tag/zfs-2.0.0", "2.0.0"},
		{func(v version, u use) bool { return u.rawBack && v.before(version{2, 1, 3}) },
			"raw increments sent back to where they came from may make the dataset unmountable", "https://github.com/openzfs/zfs/issues/10523", "2.1.3"},
		{func(v version, u use) bool {
			return u.source && !u.root && u.rawRange && v.within(version{2, 4, 0}, version{2, 4, 1})
		}, "the permission send:raw does not cover ranges (zfs send -w -I)", "https://github.com/openzfs/zfs/issues/18193", "2.4.1"},
		{func(v version, u use) bool {
			return u.source && u.decrypts && (v.before(version{2, 2, 8}) || v.within(version{2, 3, 0}, version{2, 3, 3}))
		}, "decrypted sends of encrypted data may leave errors in the snapshots that they read", "https://github.com/openzfs/zfs/issues/12014", "2.2.8, 2.3.3 and 2.4.0"},
	}
}

func defects(in *Input) []Finding {
	u := usage(in)
	var out []Finding
	for _, side := range []struct {
		host   Host
		source bool
	}{{in.Source, true}, {in.Target, false}} {
		v, ok := parseVersion(side.host.ZFS)
		if !ok {
			continue
		}
		u.source, u.target, u.root = side.source, !side.source, side.host.Root
		for _, d := range knownDefects() {
			if d.meets(v, u) {
				out = append(out, Finding{
					Host: side.host.Name, Severity: Warn, Summary: fmt.Sprintf("ZFS %s: %s", side.host.ZFS, d.summary),
					Evidence: "/sys/module/zfs/version: " + side.host.ZFS + "; " + d.link,
					Remedy:   "upgrade ZFS: it is fixed in " + d.fixed,
				})
			}
		}
	}
	return out
}

// usage says what of a plan defects depend on.
func usage(in *Input) use {
	source := make(map[string]*zfs.Dataset, len(in.SourceListing.Datasets))
	for _, d := range in.SourceListing.Datasets {
		source[d.Name] = d
	}
	var u use
	for _, d := range in.Plan.Datasets {
		s := source[d.Source]
		for _, st := range d.Steps {
			raw := st.Send.Flags.Raw
			u.raw = u.raw || raw
			u.rawRange = u.rawRange || raw && len(st.Send.Through) > 0
			u.resumeFirstRaw = u.resumeFirstRaw || raw && st.Kind == plan.Resume && st.BaseGUID == 0
			u.rawBack = u.rawBack || raw && st.Kind == plan.Incremental && s != nil && s.Properties[zfs.FlagsProperty].Local()
			u.decrypts = u.decrypts || !raw && s != nil && s.Encrypted()
		}
	}
	a, okA := number(in.SourceListing.Pool.Properties["ashift"])
	b, okB := number(in.TargetListing.Pool.Properties["ashift"])
	// 0 stands for a choice by device, which is not known.
	u.largerAshift = !okA || !okB || a == 0 || b == 0 || b > a
	return u
}
