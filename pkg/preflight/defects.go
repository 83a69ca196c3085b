package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// defect is a known defect of OpenZFS that a plan could trigger.
type defect struct {
	since    version
	fixed    []version // first releases by branch; none: not fixed yet
	affects  func(u *planUsage) bool
	severity finding.Severity
	summary  string
	link     string
	remedy   string // other than an upgrade
}

// planUsage holds the properties of a plan that defects depend on.
type planUsage struct {
	source, target bool     // the side with the version
	root           bool     // the side runs as root
	patched        bool     // the side has Debian 12's ZFS, with fixes beyond its version number
	pool           zfs.Pool // of the side
	raw            bool
	rawRange       bool // -w with -I
	rawBack        bool // raw increments of a dataset that was itself received raw
	rawRestored    bool // the same, restored onto the original dataset
	resumeFirstRaw bool
	decrypts       bool
	largerAshift   bool // the target's sectors are or may be larger
	fromBookmark   bool
	intoMounted    bool // increments into a mounted filesystem
	intoEncrypted  bool // plain streams into encrypted datasets
	oldZPL         bool // plain increments of filesystems older than ZPL 5, in a pool with large dnodes
	oldLargeDnodes bool // such filesystems with large dnodes
}

// active reports whether the side's pool uses all of these features.
func (u *planUsage) active(features ...string) bool {
	for _, f := range features {
		if u.pool.Features[f] != "active" {
			return false
		}
	}
	return true
}

const (
	openzfs   = "https://github.com/openzfs/zfs/"
	copyFiles = "no release has the fix: copy the files into a new filesystem and send that"
)

// knownDefects returns the defects of releases still in use. The releases are the tags that
// contain the commit of the fix.
func knownDefects() []defect {
	return []defect{
		{fixed: []version{{2, 1, 3}}, affects: func(u *planUsage) bool { return u.target && u.raw && u.largerAshift },
			summary: "a raw receive into a pool with a larger ashift may fail", link: openzfs + "releases/tag/zfs-2.1.3"},
		// commits e01e3a4e12, 56ed389a57
		{fixed: []version{{2, 1, 13}, {2, 2, 0}}, affects: func(u *planUsage) bool { return u.target && u.raw },
			summary: "a raw receive of data with another indirect block size may fail", link: openzfs + "issues/15039"},
		{fixed: []version{{2, 0, 0}}, affects: func(u *planUsage) bool { return u.target && u.resumeFirstRaw },
			summary: "an interrupted first raw receive cannot be resumed", link: openzfs + "releases/tag/zfs-2.0.0"},
		{fixed: []version{{2, 1, 3}}, affects: func(u *planUsage) bool { return u.rawBack },
			summary: "raw increments sent back to where they came from may make the dataset unmountable", link: openzfs + "issues/10523"},
		{fixed: []version{{2, 1, 3}}, affects: func(u *planUsage) bool { return u.rawRestored }, severity: finding.Fail,
			summary: "raw increments sent back onto the dataset that they came from may make it unmountable", link: openzfs + "issues/10523",
			remedy: "restore it in full, to a new name"},
		{since: version{2, 4, 0}, fixed: []version{{2, 4, 1}}, affects: func(u *planUsage) bool { return u.source && !u.root && u.rawRange },
			summary: "the permission send:raw does not cover ranges (zfs send -w -I)", link: openzfs + "issues/18193"},
		{fixed: []version{{2, 2, 8}, {2, 3, 3}, {2, 4, 0}}, affects: func(u *planUsage) bool { return u.source && u.decrypts },
			summary: "decrypted sends of encrypted data may leave errors in the snapshots that they read", link: openzfs + "issues/12014"},
		{fixed: []version{{2, 1, 14}, {2, 2, 2}}, affects: func(u *planUsage) bool { return u.source && !u.patched }, severity: finding.Note,
			summary: "what programs copied on this host may have zeros in place of data that was just written; streams carry it as it is stored", link: openzfs + "issues/15526"},
		// The second defect (#18724) came with the first one's fix.
		{since: version{2, 2, 0}, fixed: []version{{2, 3, 9}, {2, 4, 4}}, affects: func(u *planUsage) bool { return u.source && u.active("block_cloning") },
			summary: "blocks that are cloned (cp --reflink, copy_file_range) around a truncation may be read as zeros, or as what was there before", link: openzfs + "issues/18412"},
		{since: version{2, 3, 0}, fixed: []version{{2, 3, 8}, {2, 4, 3}}, affects: func(u *planUsage) bool { return u.active("block_cloning", "fast_dedup") },
			summary: "blocks that are both cloned and pruned from the table of deduplication (zpool ddtprune) are freed twice", link: openzfs + "issues/18520"},
		{since: version{2, 2, 0}, fixed: []version{{2, 2, 8}, {2, 3, 2}, {2, 4, 0}}, affects: func(u *planUsage) bool { return u.active("block_cloning", "device_removal") },
			summary: "cloned blocks may be lost when a device is removed from the pool, as was done here", link: openzfs + "issues/17180"},
		{since: version{2, 2, 0}, fixed: []version{{2, 2, 9}, {2, 3, 5}, {2, 4, 0}}, affects: func(u *planUsage) bool {
			size, known := number(u.pool.Properties["size"])
			return u.active("block_cloning") && known && size > 64<<40
		}, summary: "cloning blocks on devices of more than 64 TiB corrupts the kernel's memory", link: openzfs + "issues/17886"},
		// commit b8cc4c504c and its backports
		{since: version{2, 1, 0}, fixed: []version{{2, 2, 10}, {2, 3, 7}, {2, 4, 2}}, affects: func(u *planUsage) bool { return u.active("draid") },
			summary: "clearing one of several faulted disks of a dRAID (zpool clear) may corrupt what is on its spares", link: openzfs + "commit/b8cc4c504c"},
		{since: version{2, 0, 0}, fixed: []version{{2, 3, 8}, {2, 4, 3}}, affects: func(u *planUsage) bool { return u.source && u.fromBookmark && u.active("redaction_bookmarks") },
			summary: "an increment from a redaction bookmark may leave zeros in place of the last block of a file", link: openzfs + "issues/18477",
			remedy: "keep a common snapshot, which is preferred as the base"},
		{fixed: []version{{2, 4, 2}}, affects: func(u *planUsage) bool { return u.target && u.intoMounted }, severity: finding.Note,
			summary: "who opens .zfs/snapshot of a mounted copy while it receives may block the host's mounts", link: openzfs + "issues/18415",
			remedy: "unmount the copy meanwhile"},
		{affects: func(u *planUsage) bool { return u.target && u.oldLargeDnodes }, severity: finding.Fail,
			summary: "a plain increment of a filesystem of ZPL version 4 or older with large dnodes frees contents of files in the copy", link: openzfs + "issues/18773",
			remedy: copyFiles},
		{affects: func(u *planUsage) bool { return u.target && u.oldZPL && !u.oldLargeDnodes },
			summary: "a plain increment of a filesystem of ZPL version 4 or older frees contents of files in the copy, if its dnodesize ever was another", link: openzfs + "issues/18773",
			remedy: copyFiles},
		{since: version{2, 2, 0}, affects: func(u *planUsage) bool { return u.target && u.intoEncrypted }, severity: finding.Note,
			summary: "receiving a plain stream into an encrypted dataset was seen to panic the kernel", link: openzfs + "issues/16623",
			remedy: "no release has a fix; encrypted on the source, the data goes raw"},
	}
}

func defects(in *Input) []finding.Finding {
	u := usageOf(in)
	var out []finding.Finding
	for _, side := range []struct {
		host   Host
		pool   zfs.Pool
		source bool
	}{{in.Source, in.SourceListing.Pool, true}, {in.Target, in.TargetListing.Pool, false}} {
		v, ok := parseVersion(side.host.ZFS)
		if !ok || in.Plan.Steps() == 0 {
			continue
		}
		u.source, u.target, u.root, u.pool = side.source, !side.source, side.host.Root, side.pool
		// Since 2.1.11-1+deb12u1 it has the fix of openzfs#15526 (dnode_is_dirty).
		u.patched = strings.Contains(side.host.ZFS, "+deb12u")
		for _, d := range knownDefects() {
			if !v.before(d.since) && v.lacks(d.fixed) && d.affects(&u) {
				out = append(out, finding.Finding{
					Host: side.host.Name, Severity: cmp.Or(d.severity, finding.Warn), Summary: fmt.Sprintf("ZFS %s: %s", side.host.ZFS, d.summary),
					Evidence: "/sys/module/zfs/version: " + side.host.ZFS + "; " + d.link,
					Remedy:   d.remedyText(),
				})
			}
		}
	}
	return out
}

// remedyText returns what the user can do about a defect.
func (d *defect) remedyText() string {
	if len(d.fixed) == 0 {
		return d.remedy
	}
	var releases []string
	for _, v := range d.fixed {
		releases = append(releases, v.String())
	}
	text := "upgrade ZFS: it is fixed in " + strings.Join(releases, ", ")
	if i := strings.LastIndex(text, ", "); i > 0 {
		text = text[:i] + " and" + text[i+1:]
	}
	if d.remedy != "" {
		text += "; or " + d.remedy
	}
	return text
}

// usageOf returns the properties of a plan that defects depend on.
func usageOf(in *Input) planUsage {
	source, targets := in.SourceListing.ByName(), in.TargetListing.ByName()
	var u planUsage
	for _, d := range in.Plan.Datasets {
		s, t := source[d.Source], targets[d.Target]
		for _, st := range d.Steps {
			raw := st.Send.Flags.Raw
			u.raw = u.raw || raw
			u.rawRange = u.rawRange || raw && len(st.Send.Through) > 0
			u.resumeFirstRaw = u.resumeFirstRaw || raw && st.Kind == plan.Resume && st.BaseGUID == 0
			u.rawBack = u.rawBack || raw && d.Restore == nil && st.Kind == plan.Incremental && s != nil && s.Properties[zfs.FlagsProperty].Local()
			u.rawRestored = u.rawRestored || raw && isIncrement(st) && d.Restore != nil && !d.Restore.Due
			u.decrypts = u.decrypts || !raw && s != nil && s.Encrypted()
			u.fromBookmark = u.fromBookmark || strings.HasPrefix(st.Send.From, "#")
			u.intoMounted = u.intoMounted || isIncrement(st) && t != nil && t.Get("mounted") == "yes"
			u.intoEncrypted = u.intoEncrypted || !raw && encryptedOnArrival(targets, t, d.Target, st.Receive.Set["encryption"])
		}
	}
	for _, name := range NeedZPL(&in.Plan, &in.SourceListing) {
		// Its objects may have the format before ZPL version 5.
		v, known := number(source[name].Get("version"))
		old := known && v < 5
		u.oldZPL = u.oldZPL || old
		u.oldLargeDnodes = u.oldLargeDnodes || old && source[name].Get("dnodesize") != "legacy"
	}
	a, okA := number(in.SourceListing.Pool.Properties["ashift"])
	b, okB := number(in.TargetListing.Pool.Properties["ashift"])
	// 0 means chosen per device, which is unknown.
	u.largerAshift = !okA || !okB || a == 0 || b == 0 || b > a
	return u
}

// encryptedOnArrival reports whether a target dataset is or will be encrypted: as it exists, as
// requested, or as its nearest existing ancestor.
func encryptedOnArrival(all map[string]*zfs.Dataset, targets *zfs.Dataset, name, asked string) bool {
	if targets != nil {
		return targets.Encrypted()
	}
	if asked != "" {
		return asked != "off"
	}
	for above := zfs.ParentOf(name); above != ""; above = zfs.ParentOf(above) {
		if d := all[above]; d != nil {
			return d.Encrypted()
		}
	}
	return false
}

// NeedZPL returns the source filesystems whose property version the checks need. Reading it
// takes additional system calls.
func NeedZPL(p *plan.Plan, source *zfs.Listing) []string {
	var names []string
	datasets := source.ByName()
	for _, d := range p.Datasets {
		s := datasets[d.Source]
		if s != nil && s.Type == zfs.Filesystem && source.Pool.Features["large_dnode"] == "active" &&
			slices.ContainsFunc(d.Steps, func(st plan.Step) bool { return isIncrement(st) && !st.Send.Flags.Raw }) {
			names = append(names, s.Name)
		}
	}
	return names
}

// isIncrement reports whether a step adds to an existing dataset.
func isIncrement(st plan.Step) bool {
	return st.Kind == plan.Incremental || st.Kind == plan.Resume && st.BaseGUID != 0
}

// version is the numeric part of an OpenZFS or kernel version.
type version [3]int

// parseVersion parses "2.3.9-1"; ok is false if it is not a release.
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

func (v version) before(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

// within reports whether v is at least from and less than before.
func (v version) within(from, before version) bool { return !v.before(from) && v.before(before) }

// lacks reports whether v is older than a fix. fixes are its first releases, one per branch, in
// order. A branch not listed has the fix if it is newer than all of them.
func (v version) lacks(fixes []version) bool {
	for _, f := range fixes {
		if f[0] == v[0] && f[1] == v[1] {
			return v.before(f)
		}
	}
	return len(fixes) == 0 || v.before(fixes[len(fixes)-1])
}

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }
