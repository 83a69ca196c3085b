package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// defect is a known defect of OpenZFS that a plan could trigger.
type defect struct {
	since    zfs.Release
	fixed    []zfs.Release // first releases by branch; none: not fixed yet
	affects  func(u *planUsage) bool
	severity finding.Severity
	summary  string
	link     string
	remedy   string // other than an upgrade
	late     bool   // an upgrade protects only copies that are made afterwards
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
	resumeEmbedded bool // the rest of a plain stream of a filesystem that was started with -e
	noLargeBlocks  bool // increments with -L from a pool without large blocks to copies that may have some
	inheritedKey   bool // raw increments of copies that inherit a key, and not provably the source's
	encryptedVols  bool // encrypted volumes
	encryptedData  bool // encrypted source datasets
	largeDnodes    bool // increments of filesystems that now have large dnodes
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
	copyFiles = "no release has a fix: copy the files to a new filesystem and send that"
)

// knownDefects returns the defects of releases still in use. The releases are the tags that
// contain the commit of the fix. A row needs a condition that listings show. The following have
// none: openzfs#18685 (invalid bonus types), openzfs#14330 (unencrypted blocks of encrypted
// datasets), and openzfs#18235 (a race in any pool that frees data while programs read it; streams
// contain snapshots, of which nothing is freed). Package zfs explains the messages of the first two.
func knownDefects() []defect {
	return []defect{
		{fixed: []zfs.Release{{2, 1, 3}}, affects: func(u *planUsage) bool { return u.target && u.raw && u.largerAshift },
			summary: "a raw receive into a pool with a larger ashift may fail", link: openzfs + "releases/tag/zfs-2.1.3"},
		// commits e01e3a4e12, 56ed389a57
		{fixed: []zfs.Release{{2, 1, 13}, {2, 2, 0}}, affects: func(u *planUsage) bool { return u.target && u.raw },
			summary: "a raw receive of data with another indirect block size may fail", link: openzfs + "issues/15039"},
		{fixed: []zfs.Release{{2, 0, 0}}, affects: func(u *planUsage) bool { return u.target && u.resumeFirstRaw },
			summary: "an interrupted first raw receive cannot be resumed", link: openzfs + "releases/tag/zfs-2.0.0"},
		{fixed: []zfs.Release{{2, 1, 3}}, affects: func(u *planUsage) bool { return u.rawBack },
			summary: "raw incremental streams sent back to their source may make the dataset unmountable", link: openzfs + "issues/10523"},
		{fixed: []zfs.Release{{2, 1, 3}}, affects: func(u *planUsage) bool { return u.rawRestored }, severity: finding.Fail,
			summary: "raw incremental streams sent back to their source dataset may make it unmountable", link: openzfs + "issues/10523",
			remedy: "restore it under a new name, with a full send"},
		{since: zfs.Release{2, 4, 0}, fixed: []zfs.Release{{2, 4, 1}}, affects: func(u *planUsage) bool { return u.source && !u.root && u.rawRange },
			summary: "the permission send:raw does not cover ranges (zfs send -w -I)", link: openzfs + "issues/18193"},
		{fixed: []zfs.Release{{2, 2, 8}, {2, 3, 3}, {2, 4, 0}}, affects: func(u *planUsage) bool { return u.source && u.decrypts },
			summary: "decrypted sends of encrypted data may damage the snapshots that they read", link: openzfs + "issues/12014"},
		{fixed: []zfs.Release{{2, 1, 14}, {2, 2, 2}}, affects: func(u *planUsage) bool { return u.source && !u.patched }, severity: finding.Note,
			summary: "files copied on this host may contain zeros instead of recently written data; streams carry the zeros", link: openzfs + "issues/15526"},
		// The second defect (#18724) came with the first one's fix.
		{since: zfs.Release{2, 2, 0}, fixed: []zfs.Release{{2, 3, 9}, {2, 4, 4}}, affects: func(u *planUsage) bool { return u.source && u.active("block_cloning") },
			summary: "blocks cloned (cp --reflink, copy_file_range) during a truncation may read as zeros or old data", link: openzfs + "issues/18412"},
		{since: zfs.Release{2, 3, 0}, fixed: []zfs.Release{{2, 3, 8}, {2, 4, 3}}, affects: func(u *planUsage) bool { return u.active("block_cloning", "fast_dedup") },
			summary: "blocks both cloned and pruned from the deduplication table (zpool ddtprune) are freed twice", link: openzfs + "issues/18520"},
		{since: zfs.Release{2, 2, 0}, fixed: []zfs.Release{{2, 2, 8}, {2, 3, 2}, {2, 4, 0}}, affects: func(u *planUsage) bool { return u.active("block_cloning", "device_removal") },
			summary: "cloned blocks may be lost after a device removal, and this pool had one", link: openzfs + "issues/17180"},
		{since: zfs.Release{2, 2, 0}, fixed: []zfs.Release{{2, 2, 9}, {2, 3, 5}, {2, 4, 0}}, affects: func(u *planUsage) bool {
			size, known := number(u.pool.Properties["size"])
			return u.active("block_cloning") && known && size > 64<<40
		}, summary: "cloning blocks on devices of more than 64 TiB corrupts the kernel's memory", link: openzfs + "issues/17886"},
		// commit b8cc4c504c and its backports
		{since: zfs.Release{2, 1, 0}, fixed: []zfs.Release{{2, 2, 10}, {2, 3, 7}, {2, 4, 2}}, affects: func(u *planUsage) bool { return u.active("draid") },
			summary: "clearing one of several faulted dRAID disks (zpool clear) may corrupt its spares", link: openzfs + "commit/b8cc4c504c"},
		{since: zfs.Release{2, 0, 0}, fixed: []zfs.Release{{2, 3, 8}, {2, 4, 3}}, affects: func(u *planUsage) bool { return u.source && u.fromBookmark && u.active("redaction_bookmarks") },
			summary: "an incremental stream from a redaction bookmark may replace the last block of a file with zeros", link: openzfs + "issues/18477",
			remedy: "keep a common snapshot, which zxfer prefers as incremental source"},
		{fixed: []zfs.Release{{2, 4, 2}}, affects: func(u *planUsage) bool { return u.target && u.intoMounted }, severity: finding.Note,
			summary: "opening .zfs/snapshot of a mounted copy during a receive may block all mounts of the host", link: openzfs + "issues/18415",
			remedy: "unmount the copy during the receive"},
		{affects: func(u *planUsage) bool { return u.target && u.oldLargeDnodes }, severity: finding.Fail,
			summary: "a plain incremental stream of a filesystem of ZPL version 4 or older with large dnodes destroys file contents in the copy", link: openzfs + "issues/18773",
			remedy: copyFiles},
		{affects: func(u *planUsage) bool { return u.target && u.oldZPL && !u.oldLargeDnodes },
			summary: "a plain incremental stream of a filesystem of ZPL version 4 or older destroys file contents in the copy if its dnodesize ever changed", link: openzfs + "issues/18773",
			remedy: copyFiles},
		{since: zfs.Release{2, 2, 0}, affects: func(u *planUsage) bool { return u.target && u.intoEncrypted }, severity: finding.Note,
			summary: "receiving a plain stream into an encrypted dataset may panic the kernel", link: openzfs + "issues/16623",
			remedy: "no release has a fix: encrypt the source, so that zxfer sends it raw"},
		// Pull request 18910 would keep the local key, except keys of the formats raw and hex. It is not merged.
		{affects: func(u *planUsage) bool { return u.target && u.inheritedKey },
			summary: "a raw increment replaces the key of a copy that inherits its key; after zfs change-key on either host, no key may open the copy", link: openzfs + "issues/12614",
			remedy: "no release has a fix: check that the encryption root of the copy has the source's key, or send in full to a new target"},
		// Commit 5945676bcc and its backport. Pull request 19091 is not merged. zfs.RecordRules refuses such records
		// in the rest, but not those that were received before.
		{since: zfs.Release{2, 3, 0}, affects: func(u *planUsage) bool { return u.source && u.resumeEmbedded },
			summary: "a stream that was started with zfs send -e may lose extended attributes, because ZFS stores them as file data; zxfer refuses them in the rest of the stream", link: openzfs + "issues/18239",
			remedy: "no release has a fix: restart the stream without embedded blocks: {{no-resume}}"},
		// commit 65e13c33d8
		{fixed: []zfs.Release{{2, 4, 1}}, affects: func(u *planUsage) bool { return u.source && u.noLargeBlocks }, late: true,
			summary: "the target may refuse this increment: ZFS ignores zfs send -L for a dataset without large blocks, and the copy may have some", link: openzfs + "issues/18101",
			remedy: "if it does, send in full to a new target"},
		// Commit 459c99ff23.
		{since: zfs.Release{2, 2, 0}, fixed: []zfs.Release{{2, 2, 1}}, affects: func(u *planUsage) bool { return u.source && u.encryptedData && u.active("block_cloning") },
			summary: "blocks cloned (cp --reflink, copy_file_range) between encrypted and plain datasets cannot be read or sent", link: openzfs + "issues/15464"},
		// Commit 90cdd9aef9 helps only plain streams. No release has it.
		{affects: func(u *planUsage) bool { return u.target && u.largeDnodes }, severity: finding.Note,
			summary: "if dnodesize of a source filesystem ever changed, the target receives increments with reused objects at a few KB/s", link: openzfs + "issues/11353",
			remedy: "no release has a fix: if increments are that slow, send in full to a new target"},
		// Commits e2705f63de, 1821ca2db0. OpenZFS itself never calls zvol_clone_range, TrueNAS does.
		{since: zfs.Release{2, 3, 0}, fixed: []zfs.Release{{2, 3, 8}, {2, 4, 3}}, severity: finding.Note,
			affects: func(u *planUsage) bool { return u.source && u.encryptedVols && u.active("block_cloning") },
			summary: "if the system clones blocks between volumes with different keys (TrueNAS does), the clones cannot be read", link: openzfs + "pull/18315"},
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
		v, ok := zfs.ParseRelease(side.host.ZFS)
		if !ok || in.Plan.Steps() == 0 {
			continue
		}
		u.source, u.target, u.root, u.pool = side.source, !side.source, side.host.Root, side.pool
		// Since 2.1.11-1+deb12u1 it has the fix of openzfs#15526 (dnode_is_dirty).
		u.patched = strings.Contains(side.host.ZFS, "+deb12u")
		for _, d := range knownDefects() {
			if !v.Before(d.since) && v.Lacks(d.fixed) && d.affects(&u) {
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
	list := strings.Join(releases, ", ")
	if i := strings.LastIndex(list, ", "); i > 0 {
		list = list[:i] + " and" + list[i+1:]
	}
	if d.late {
		return d.remedy + "; ZFS " + list + " and later prevent it in copies that they receive"
	}
	text := "upgrade ZFS; fixed in " + list
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
			u.resumeEmbedded = u.resumeEmbedded || !raw && st.Kind == plan.Resume && st.Send.Flags.Embedded && d.Type == zfs.Filesystem
			u.noLargeBlocks = u.noLargeBlocks || isIncrement(st) && (raw || st.Send.Flags.LargeBlocks) && t != nil && t.MayHaveLargeBlocks() &&
				in.SourceListing.Pool.Features["large_blocks"] == "enabled" && in.TargetListing.Pool.Features["large_blocks"] == "active"
			u.inheritedKey = u.inheritedKey || raw && isIncrement(st) && s != nil && t != nil && inheritsOtherKey(in, s, t)
			u.encryptedData = u.encryptedData || s != nil && s.Encrypted()
			u.largeDnodes = u.largeDnodes || isIncrement(st) && hasLargeDnodes(in, s)
			u.encryptedVols = u.encryptedVols || d.Type == zfs.Volume && s != nil && s.Encrypted()
			u.intoEncrypted = u.intoEncrypted || !raw && EncryptedOnArrival(targets, d.Target, st.Receive.Set["encryption"])
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

// hasLargeDnodes reports whether new objects of a filesystem have large dnodes, and the pool has
// some. Listings do not show whether all of its objects have the same size.
func hasLargeDnodes(in *Input, s *zfs.Dataset) bool {
	return s != nil && s.Type == zfs.Filesystem && s.Get("dnodesize") != "" && s.Get("dnodesize") != "legacy" &&
		in.SourceListing.Pool.Features["large_dnode"] == "active"
}

// inheritsOtherKey reports whether a copy inherits its key from a dataset of which neither the
// plan nor the properties prove that it will have the source's key.
func inheritsOtherKey(in *Input, s, t *zfs.Dataset) bool {
	to := cmp.Or(t.Get("encryptionroot"), t.Name)
	if !t.Encrypted() || t.Inconsistent() || to == t.Name {
		return false
	}
	if o, _, _ := strings.Cut(t.Get("origin"), "@"); o != "" && o != "-" {
		return false // a clone shares its origin's key
	}
	for _, d := range in.Plan.Datasets {
		if d.Target == to || d.Target == t.Name && d.Joins != "" || slices.Contains(d.NewRoots, t.Name) {
			return false // the plan brings the key, or separates the two
		}
	}
	root, have := in.TargetListing.Find(to), in.SourceListing.Find(cmp.Or(s.Get("encryptionroot"), s.Name))
	return root == nil || have == nil || !zfs.KeyIsProved(have, root)
}

// EncryptedOnArrival reports whether a target dataset is or will be encrypted.
func EncryptedOnArrival(targets map[string]*zfs.Dataset, name, asked string) bool {
	return isOn(onArrival(targets, name, "encryption", asked))
}

// onArrival returns the value of a property that a target dataset has or will have: as it exists,
// as requested, or as its nearest existing ancestor. It returns "" if that is unknown.
func onArrival(targets map[string]*zfs.Dataset, name, property, asked string) string {
	if d := targets[name]; d != nil || asked == "" {
		for ; d == nil && name != ""; d = targets[name] {
			name = zfs.ParentOf(name)
		}
		if d == nil {
			return ""
		}
		return d.Get(property)
	}
	return asked
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
