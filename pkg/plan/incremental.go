package plan

import (
	"fmt"
	"slices"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// increment plans incremental sends to an existing dataset.
func (p *planner) increment(d, t *zfs.Dataset, out *Dataset) {
	base, counterpart, ok := common(d, t, out.Arrive)
	if !ok {
		p.refuseNoCommon(d, t, out)
		return
	}
	if !p.acceptsIncrement(d, t, out, counterpart) || !p.checkSameChain(d, t, out) || !p.checkRoot(d, t, out) || !p.checkFeatures(d, out) {
		return
	}
	if !p.checkMounted(d, t, out) {
		return
	}
	flags := p.continuedFlags(d, t)
	p.follow(d, out, base, p.req.segments(d, base.CreateTXG, out.Arrive, base.Kind == zfs.Bookmark), flags)
	if !p.checkNamesFree(d, t, out, counterpart.CreateTXG) {
		return
	}
	for _, v := range out.newer {
		if arrives(out, v.Name) {
			out.Clears = append(out.Clears, v.In(t.Name))
		}
	}
	p.recordIVBase(d, t, out, base, counterpart)
	first := &out.Steps[0]
	if p.req.Restore && len(out.Loses) > 0 {
		p.note("%s: interrupted in its first stream, the same command begins that one anew", p.onTarget(t.Name))
	}
	p.setChanged(&first.Receive, d)
	if len(out.Loses) > 0 {
		first.Receive.Rollback = true
		out.Loses = append(out.Loses, "snapshots that are taken of "+t.Name+" until the stream has arrived")
	}
	first.Why = fmt.Sprintf("@%s is the newest snapshot on both sides", counterpart.Name)
	if base.Kind == zfs.Bookmark {
		first.Why = fmt.Sprintf("%s remembers @%s, the newest common snapshot of the target", base.Short(), counterpart.Name)
	}
}

// common returns the most recent version of the source older than before that is also a
// snapshot on the target, and its counterpart there. It compares GUIDs, not names. It prefers a
// snapshot to its bookmark, because a bookmark cannot start a stream of several snapshots.
// Bookmarks on the target do not count: a receive needs the snapshot.
func common(d, t *zfs.Dataset, before zfs.Version) (base, counterpart zfs.Version, ok bool) {
	have := make(map[uint64]zfs.Version, len(t.Versions))
	for _, v := range t.Snapshots() {
		have[v.GUID] = v
	}
	for _, v := range d.Versions {
		if tv, both := have[v.GUID]; both && v.CreateTXG < before.CreateTXG &&
			(!ok || v.CreateTXG > base.CreateTXG || v.CreateTXG == base.CreateTXG && v.Kind == zfs.Snapshot) {
			base, counterpart, ok = v, tv, true
		}
	}
	return base, counterpart, ok
}

// checkNamesFree refuses arriving snapshots whose names are taken by other snapshots of the
// target. Snapshots newer than kept, a CreateTXG of the target, are rolled back and do not
// count.
func (p *planner) checkNamesFree(d, t *zfs.Dataset, out *Dataset, kept uint64) bool {
	taken := make(map[string]uint64, len(t.Versions))
	for _, v := range t.Versions {
		if v.Kind == zfs.Snapshot && v.CreateTXG <= kept {
			taken[v.Name] = v.GUID
		}
	}
	free := true
	check := func(name string) {
		if guid, ok := taken[name]; ok {
			free = false
			p.conflict(NameTaken, d.Name, t.Name, "rename the target's: "+command("zfs", "rename", t.Name+"@"+name, "@"+name+"-old"),
				"@%s exists on both sides but is not the same snapshot: that of %s cannot arrive while %s keeps its own (GUID %d)",
				name, p.onSource(d.Name), p.onTarget(t.Name), guid)
		}
	}
	for _, st := range out.Steps {
		for _, name := range st.Send.Through {
			check(name)
		}
		check(st.Send.To)
	}
	return free
}

// arrives reports whether the plan brings a snapshot of that name.
func arrives(out *Dataset, name string) bool {
	return slices.ContainsFunc(out.Steps, func(st Step) bool { return st.Send.To == name || slices.Contains(st.Send.Through, name) })
}

// refuseDiverged adds a conflict for a target that has diverged, or that is merely ahead of the
// requested snapshot.
func (p *planner) refuseDiverged(d, t *zfs.Dataset, out *Dataset, base zfs.Version, newer []zfs.Version) {
	var names []string
	ahead := true
	for i := len(newer) - 1; i >= 0; i-- {
		names = append(names, newer[i].Short())
		_, known := d.SnapshotOf(newer[i].GUID)
		ahead = ahead && known
	}
	list := finding.Some(names, maxEvidence)
	hint := "name another target; {{rollback}} lets " + t.Name + " lose " + list
	if ahead {
		p.conflict(Diverged, d.Name, t.Name, "ask for a newer snapshot, or "+hint,
			"%s already has %s, which is newer than %s, and lacks that one", p.onTarget(t.Name), list, p.onSource(out.Arrive.In(d.Name)))
		return
	}
	p.markDiverged(d, t)
	p.conflict(Diverged, d.Name, t.Name, hint+"\n"+p.rotateHint(t.Name),
		"%s has diverged: behind the common snapshot @%s it has %s, and %s has %s",
		p.onTarget(t.Name), base.Name, list, p.onSource(d.Name), listNames(d))
}

// refuseNoCommon adds a conflict for a target without an older common snapshot.
func (p *planner) refuseNoCommon(d, t *zfs.Dataset, out *Dataset) {
	source, target := p.onSource(d.Name), p.onTarget(t.Name)
	hint := "name another target, such as " + t.Name + "/NAME"
	if zfs.ParentOf(t.Name) != "" {
		hint += ", or move that one away: " + command("zfs", "rename", t.Name, t.Name+"-old")
	}
	latest, ok := t.Latest()
	copied := p.isKnownCopy(t)
	if !ok {
		if copied {
			p.markDiverged(d, t)
			hint += "\n" + p.rotateHint(t.Name)
		}
		p.conflict(NoCommon, d.Name, t.Name, hint, "%s exists and has no snapshot: it is not a copy of %s", target, source)
		return
	}
	if at, ok := p.demoted(d, t); ok {
		if copied {
			p.markDiverged(d, t)
		}
		p.refuseDemoted(d, t, at)
		return
	}
	if newer, ok := newerCommon(d, t); ok {
		p.conflict(Diverged, d.Name, t.Name, "ask for a newer snapshot, or name another target",
			"%s is at @%s, which is newer than %s, and has no older snapshot of it", target, newer.Name, p.onSource(out.Arrive.In(d.Name)))
		return
	}
	if copied {
		p.markDiverged(d, t)
		hint += "\n" + p.rotateHint(t.Name)
	}
	byName := make(map[string]uint64, len(t.Versions))
	for _, v := range t.Snapshots() {
		byName[v.Name] = v.GUID
	}
	for _, v := range slices.Backward(d.Snapshots()) {
		if guid, ok := byName[v.Name]; ok {
			p.conflict(NoCommon, d.Name, t.Name, hint,
				"@%s exists on both sides but is not the same snapshot (GUIDs %d and %d), and %s and %s have no other in common: the source has %s, the target %s",
				v.Name, v.GUID, guid, source, target, listNames(d), listNames(t))
			return
		}
	}
	p.conflict(NoCommon, d.Name, t.Name, hint,
		"%s and %s have no snapshot in common: the source has %s, the target %s (newest @%s)", source, target, listNames(d), listNames(t), latest.Name)
}

// newerCommon returns the most recent target snapshot that the source has too.
func newerCommon(d, t *zfs.Dataset) (zfs.Version, bool) {
	for _, counterpart := range slices.Backward(t.Snapshots()) {
		if slices.ContainsFunc(d.Versions, func(v zfs.Version) bool { return v.GUID == counterpart.GUID }) {
			return counterpart, true
		}
	}
	return zfs.Version{}, false
}
