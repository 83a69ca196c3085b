package plan

import (
	"math"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// bases determines the incremental source of a stream: a common snapshot, or a clone's origin.
type bases struct {
	*findings
	*arrivals
}

// origin returns a clone's origin on the source and its counterpart that the target has or will
// have.
func (b bases) origin(d *zfs.Dataset, out *Dataset) (source, target string, ok bool) {
	source = d.Get("origin")
	if source == "" {
		return "", "", false
	}
	guid, known := b.sourceSnap[source]
	if known {
		target = b.counterpart(d.Name, out.Target, source, guid)
	}
	if target == "" {
		b.note("%s is a clone of %s, which the target lacks: zxfer sends it in full, so that it shares no blocks there", d.Name, source)
		return "", "", false
	}
	dataset, _, _ := strings.Cut(target, "@")
	if t := b.target[dataset]; t != nil {
		if out.Encrypted != t.Encrypted() {
			b.note("%s is sent in full, not as a clone: the encryption of %s differs from its origin's", d.Name, b.onTarget(target))
			return "", "", false
		}
		if out.Encrypted && b.sent[guid].target != target {
			out.ivBase = &ivBase{source: source, target: target, guid: guid, raw: true}
		}
	}
	return source, target, true
}

// counterpart returns the target snapshot with the origin's GUID, or "". It prefers the name
// that this job would have used.
func (b bases) counterpart(source, target, origin string, guid uint64) string {
	counterpart := b.targetSnap[guid]
	if want, ok := relocate(source, target, origin); ok && slices.Contains(counterpart, want) {
		return want
	}
	if sent, ok := b.sent[guid]; ok {
		return sent.target
	}
	if len(counterpart) == 0 {
		return ""
	}
	return slices.Min(counterpart)
}

// checkPromoted refuses a full send of a promoted dataset whose history the target has under
// the name of the demoted one.
func (b bases) checkPromoted(d *zfs.Dataset, out *Dataset) bool {
	for _, o := range b.clones[d.Name] {
		t := b.target[targetOf(o.Name, b.req.Source, b.targetRoot)]
		if t == nil {
			continue
		}
		if at, ok := b.demoted(o, t); ok {
			b.conflict(NoCommon, d.Name, out.Target, "rename it on the target: "+b.state.TargetAt.Command("zfs", "rename", t.Name, out.Target),
				"%s was promoted over %s: the target has its history up to @%s as %s, and would receive it in full again", b.onSource(d.Name), o.Name, at.Name, b.onTarget(t.Name))
			return false
		}
	}
	return true
}

// refuseNoCommon adds a conflict for a target without an older common snapshot.
func (b bases) refuseNoCommon(d, t *zfs.Dataset, out *Dataset) {
	source, target := b.onSource(d.Name), b.onTarget(t.Name)
	hint := "name another target, such as " + t.Name + "/NAME"
	if zfs.ParentOf(t.Name) != "" {
		hint += ", or rename the existing one: " + b.state.TargetAt.Command("zfs", "rename", t.Name, t.Name+"-old")
	}
	latest, ok := t.Latest()
	if !ok {
		b.conflict(NoCommon, d.Name, t.Name, b.offerRotate(d, t, hint), "%s exists and has no snapshot: it is not a copy of %s", target, source)
		return
	}
	if at, ok := b.demoted(d, t); ok {
		b.offerRotate(d, t, "") // the hint of this conflict is another one
		b.refuseDemoted(d, t, at)
		return
	}
	if newer, ok := newerCommon(d, t); ok {
		b.conflict(Diverged, d.Name, t.Name, "name a newer snapshot, or another target",
			"%s is at @%s, which is newer than %s, and has no older common snapshot", target, newer.Name, b.onSource(out.Final.In(d.Name)))
		return
	}
	hint = b.offerRotate(d, t, hint)
	byName := make(map[string]uint64, len(t.Versions))
	for _, v := range t.Snapshots() {
		byName[v.Name] = v.GUID
	}
	for _, v := range slices.Backward(d.Snapshots()) {
		if guid, ok := byName[v.Name]; ok {
			b.conflict(NoCommon, d.Name, t.Name, hint,
				"@%s exists on both sides but is not the same snapshot (GUIDs %d and %d), and %s and %s have no other snapshot in common: the source has %s, the target %s",
				v.Name, v.GUID, guid, source, target, listNames(d.Versions), listNames(t.Versions))
			return
		}
	}
	b.conflict(NoCommon, d.Name, t.Name, hint,
		"%s and %s have no snapshot in common: the source has %s, the target %s (newest @%s)", source, target, listNames(d.Versions), listNames(t.Versions), latest.Name)
}

// refuseDemoted adds a conflict whose hint is the command that lets both continue.
func (b bases) refuseDemoted(d, t *zfs.Dataset, at zfs.Version) {
	promoted := originDataset(d)
	hint := "rename it on the target: " + b.state.TargetAt.Command("zfs", "rename", t.Name, t.Name+"-old") + "\nzxfer then sends it as a clone, with only the changes since @" + at.Name
	if counterpart, ok := relocate(d.Name, t.Name, promoted); ok && b.target[counterpart] == nil {
		hint = "rename it on the target: " + b.state.TargetAt.Command("zfs", "rename", t.Name, counterpart) + "\nzxfer then updates that copy, and sends " + d.Name + " as a clone of it, with only the changes since @" + at.Name
	}
	b.conflict(NoCommon, d.Name, t.Name, hint,
		"%s was promoted over %s: the history of %s up to @%s now belongs to the former, and there is no newer common snapshot",
		b.onSource(promoted), d.Name, b.onTarget(t.Name), at.Name)
}

// checkBookmark refuses a bookmark that could not be created after the transfer.
func (b bases) checkBookmark(d *zfs.Dataset, out *Dataset) bool {
	if !b.req.Bookmark {
		return true
	}
	pool, feature := &b.state.Source.Pool, "bookmarks"
	if d.Encrypted() {
		feature = "bookmark_v2"
	}
	if pool.Features[feature] == "disabled" {
		b.conflict(FeatureMissing, d.Name, out.Target, pool.FeatureHint(b.state.SourceAt, "on "+b.state.SourceHost, feature),
			"{{bookmark}}: pool %s lacks the feature %s", b.onSource(pool.Name), feature)
		return false
	}
	for _, v := range d.Versions {
		if v.Kind == zfs.Bookmark && v.Name == out.Final.Name && v.GUID != out.Final.GUID {
			b.conflict(NameTaken, d.Name, out.Target, "if no job needs it as incremental source, destroy it: "+b.state.SourceAt.Command("zfs", "destroy", v.In(d.Name)),
				"{{bookmark}}: %s already exists, for another snapshot", b.onSource(v.In(d.Name)))
			return false
		}
	}
	return true
}

// On the source, zfs promote moves the shared history from the origin to the clone, and the
// former origin becomes the clone. If both have a newer common snapshot, they continue from it.
// Otherwise the copy holds the history of another dataset, and the demoted dataset must arrive
// as a new clone.

// demoted reports whether a dataset was demoted since it was sent. It returns the last snapshot
// of the copy that now belongs to the promoted dataset.
func (b bases) demoted(d, t *zfs.Dataset) (zfs.Version, bool) {
	guid, known := b.sourceSnap[d.Get("origin")]
	if !known {
		return zfs.Version{}, false
	}
	at, ok := t.SnapshotOf(guid)
	if _, _, continues := common(d, t, zfs.Version{CreateTXG: math.MaxUint64}); continues {
		return at, false
	}
	return at, ok
}

// nameOf returns the base of a stream in the form of SendSpec.From, or "" if the source has
// no version with that GUID.
func (b bases) nameOf(d *zfs.Dataset, guid uint64) string {
	if guid == 0 {
		return ""
	}
	name := ""
	for _, v := range d.Versions {
		if v.GUID == guid && (name == "" || v.Kind == zfs.Snapshot) {
			name = v.Short()
		}
	}
	if origin := d.Get("origin"); name == "" && b.sourceSnap[origin] == guid {
		return origin
	}
	return name
}

// common returns the most recent version of the source older than before that is also a
// snapshot on the target, and its counterpart there. It compares GUIDs, not names. It prefers a
// snapshot to its bookmark, because a bookmark cannot start a stream of several snapshots.
// Bookmarks on the target do not count: a receive needs the snapshot.
func common(d, t *zfs.Dataset, before zfs.Version) (base, counterpart zfs.Version, ok bool) {
	have := t.SnapshotsByGUID()
	for _, v := range d.Versions {
		if tv, both := have[v.GUID]; both && v.CreateTXG < before.CreateTXG &&
			(!ok || v.CreateTXG > base.CreateTXG || v.CreateTXG == base.CreateTXG && v.Kind == zfs.Snapshot) {
			base, counterpart, ok = v, tv, true
		}
	}
	return base, counterpart, ok
}

// newerCommon returns the most recent target snapshot that the source has too.
func newerCommon(d, t *zfs.Dataset) (zfs.Version, bool) {
	have := make(map[uint64]bool, len(d.Versions))
	for _, v := range d.Versions {
		have[v.GUID] = true
	}
	for _, counterpart := range slices.Backward(t.Snapshots()) {
		if have[counterpart.GUID] {
			return counterpart, true
		}
	}
	return zfs.Version{}, false
}
