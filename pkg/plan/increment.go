package plan

import (
	"fmt"
	"slices"
	"strconv"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// common returns the newest version of the source before a snapshot that is a
// snapshot on the target too, and that one. GUIDs decide, never names; of a
// bookmark and the snapshot that it was made of, the snapshot is taken, as
// only that can begin a stream of several. What is bookmarked on the target
// only is no base: a receive needs the snapshot.
func common(d, t *zfs.Dataset, before zfs.Version) (base, there zfs.Version, ok bool) {
	have := make(map[uint64]zfs.Version, len(t.Versions))
	for _, v := range t.Snapshots() {
		have[v.GUID] = v
	}
	for _, v := range d.Versions {
		if tv, both := have[v.GUID]; both && v.CreateTXG < before.CreateTXG &&
			(!ok || v.CreateTXG > base.CreateTXG || v.CreateTXG == base.CreateTXG && v.Kind == zfs.Snapshot) {
			base, there, ok = v, tv, true
		}
	}
	return base, there, ok
}

// increment plans what the target lacks of a dataset that it has.
func (p *planner) increment(d, t *zfs.Dataset, out *Dataset) {
	base, there, ok := common(d, t, out.Arrive)
	if !ok {
		p.noCommon(d, t, out)
		return
	}
	if !p.mayFollow(d, t, out, there) || !p.sameChain(d, t, out) || !p.checkRoot(d, t, out) || !p.checkFeatures(d, out) {
		return
	}
	if !p.mayUnmount(d, t, out) {
		return
	}
	flags := p.goOn(d, t)
	p.follow(d, out, base, p.req.runs(d, base.CreateTXG, out.Arrive, base.Kind == zfs.Bookmark), flags)
	if !p.checkNamesFree(d, t, out, there.CreateTXG) {
		return
	}
	for _, v := range out.newer {
		if arrives(out, v.Name) {
			out.Clears = append(out.Clears, v.In(t.Name))
		}
	}
	p.watchChain(d, t, out, base, there)
	first := &out.Steps[0]
	if p.req.Restore && len(out.Loses) > 0 {
		p.note("%s: interrupted in its first stream, the same command begins that one anew", p.onTarget(t.Name))
	}
	p.setChanged(&first.Receive, d)
	if len(out.Loses) > 0 {
		first.Receive.Rollback = true
		out.Loses = append(out.Loses, "snapshots that are taken of "+t.Name+" until the stream has arrived")
	}
	first.Why = fmt.Sprintf("@%s is the newest snapshot on both sides", there.Name)
	if base.Kind == zfs.Bookmark {
		first.Why = fmt.Sprintf("%s remembers @%s, the newest common snapshot of the target", base.Short(), there.Name)
	}
}

// mayFollow tells whether the target takes an increment from its base:
// nothing may have come behind it, or Rollback allows to lose that.
func (p *planner) mayFollow(d, t *zfs.Dataset, out *Dataset, base zfs.Version) bool {
	var newer []zfs.Version
	for _, v := range t.Versions {
		if v.Kind == zfs.Snapshot && v.CreateTXG > base.CreateTXG {
			newer = append(newer, v)
		}
	}
	latest, _ := t.Latest()
	written := written(t)
	switch {
	case len(newer) == 0 && written == 0:
		return true
	case p.req.Rollback:
		for _, v := range newer {
			out.Loses = append(out.Loses, v.In(t.Name))
		}
		out.newer, out.kept = newer, base
		if written > 0 {
			out.Loses = append(out.Loses, fmt.Sprintf("the %d bytes written to %s since @%s", written, t.Name, latest.Name))
		}
		return true
	case len(newer) > 0:
		p.diverged(d, t, out, base, newer)
		return false
	}
	hint := LoseChanges(t)
	if p.req.Restore { // it is no copy, and will be written to again
		hint = "restore beside it: name another target\n{{rollback}} lets " + t.Name + " lose what was written"
	}
	p.conflict(Modified, d.Name, t.Name, hint,
		"%s has been modified since its newest snapshot @%s (%d bytes written): %s cannot be received on top",
		p.onTarget(t.Name), latest.Name, written, p.onSource(out.Arrive.In(d.Name)))
	return false
}

// LoseChanges is the remedy for a copy that was modified since its newest snapshot.
func LoseChanges(t *zfs.Dataset) string {
	latest, _ := t.Latest()
	return fmt.Sprintf("lose the changes: %s (or {{rollback}})\nkeep it from happening again: %s",
		command("zfs", "rollback", latest.In(t.Name)), command("zfs", "set", "readonly=on", t.Name))
}

// written is what changed in a dataset since its newest snapshot, in bytes; 0
// where it is unknown.
func written(d *zfs.Dataset) uint64 {
	n, err := strconv.ParseUint(d.Get("written"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// diverged tells a target that went its own way from one that is merely
// ahead of what is asked for.
func (p *planner) diverged(d, t *zfs.Dataset, out *Dataset, base zfs.Version, newer []zfs.Version) {
	var names []string
	ahead := true
	for i := len(newer) - 1; i >= 0; i-- {
		names = append(names, newer[i].Short())
		_, known := d.SnapshotOf(newer[i].GUID)
		ahead = ahead && known
	}
	list := finding.Some(names, evidence)
	hint := "name another target; {{rollback}} lets " + t.Name + " lose " + list
	if ahead {
		p.conflict(Diverged, d.Name, t.Name, "ask for a newer snapshot, or "+hint,
			"%s already has %s, which is newer than %s, and lacks that one", p.onTarget(t.Name), list, p.onSource(out.Arrive.In(d.Name)))
		return
	}
	p.stray(d, t)
	p.conflict(Diverged, d.Name, t.Name, hint+"\n"+p.rotateHint(t.Name),
		"%s has diverged: behind the common snapshot @%s it has %s, and %s has %s",
		p.onTarget(t.Name), base.Name, list, p.onSource(d.Name), quoteNames(d))
}

// checkNamesFree refuses snapshots whose name another one of the target has.
// Those behind kept, a CreateTXG of the target, are rolled back.
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

// arrives tells whether a plan brings a snapshot of a name.
func arrives(out *Dataset, name string) bool {
	return slices.ContainsFunc(out.Steps, func(st Step) bool { return st.Send.To == name || slices.Contains(st.Send.Through, name) })
}

// noCommon says why a target with a history of its own cannot be sent to.
func (p *planner) noCommon(d, t *zfs.Dataset, out *Dataset) {
	source, target := p.onSource(d.Name), p.onTarget(t.Name)
	hint := "name another target, such as " + t.Name + "/NAME"
	if zfs.ParentOf(t.Name) != "" {
		hint += ", or move that one away: " + command("zfs", "rename", t.Name, t.Name+"-old")
	}
	latest, ok := t.Latest()
	copied := p.copied(t)
	if !ok {
		if copied {
			p.stray(d, t)
			hint += "\n" + p.rotateHint(t.Name)
		}
		p.conflict(NoCommon, d.Name, t.Name, hint, "%s exists and has no snapshot: it is not a copy of %s", target, source)
		return
	}
	if at, ok := p.demoted(d, t); ok {
		if copied {
			p.stray(d, t)
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
		p.stray(d, t)
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
				v.Name, v.GUID, guid, source, target, quoteNames(d), quoteNames(t))
			return
		}
	}
	p.conflict(NoCommon, d.Name, t.Name, hint,
		"%s and %s have no snapshot in common: the source has %s, the target %s (newest @%s)", source, target, quoteNames(d), quoteNames(t), latest.Name)
}

// newerCommon returns a snapshot of the target that the source has too.
func newerCommon(d, t *zfs.Dataset) (zfs.Version, bool) {
	for _, there := range slices.Backward(t.Snapshots()) {
		if slices.ContainsFunc(d.Versions, func(v zfs.Version) bool { return v.GUID == there.GUID }) {
			return there, true
		}
	}
	return zfs.Version{}, false
}
