package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// acceptsIncrement reports whether the target can receive an increment from base. The target
// must have no newer data, or Rollback must allow its loss.
func (p *planner) acceptsIncrement(d, t *zfs.Dataset, out *Dataset, base zfs.Version) bool {
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
		p.refuseDiverged(d, t, out, base, newer)
		return false
	}
	hint := LoseChanges(t)
	if p.req.Restore { // the original will be written to again
		hint = "restore beside it: name another target\n{{rollback}} lets " + t.Name + " lose what was written"
	}
	p.conflict(Modified, d.Name, t.Name, hint,
		"%s has been modified since its newest snapshot @%s (%d bytes written): %s cannot be received on top",
		p.onTarget(t.Name), latest.Name, written, p.onSource(out.Arrive.In(d.Name)))
	return false
}

// LoseChanges returns the hint for a copy modified since its most recent snapshot.
func LoseChanges(t *zfs.Dataset) string {
	latest, _ := t.Latest()
	return fmt.Sprintf("lose the changes: %s (or {{rollback}})\nkeep it from happening again: %s",
		command("zfs", "rollback", latest.In(t.Name)), command("zfs", "set", "readonly=on", t.Name))
}

// written returns the bytes written since the most recent snapshot; 0 if unknown.
func written(d *zfs.Dataset) uint64 {
	n, err := strconv.ParseUint(d.Get("written"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// planRestoreRollback plans the rollback of a dataset that has the wanted snapshot and newer
// data. Without Rollback, it refuses the dataset that the user named and leaves descendants
// alone. If an interrupted restore is being completed, it leaves all alone, because the first
// datasets may be in use. It reports whether there is no conflict.
func (p *planner) planRestoreRollback(d, t *zfs.Dataset, at zfs.Version, out *Dataset) bool {
	var snapshots, bookmarks []zfs.Version
	var names []string
	for _, v := range t.Versions {
		switch {
		case v.CreateTXG <= at.CreateTXG:
		case v.Kind == zfs.Snapshot:
			snapshots, names = append(snapshots, v), append(names, v.Short())
		default:
			bookmarks = append(bookmarks, v)
		}
	}
	if n := written(t); n > 0 {
		names = append(names, fmt.Sprintf("%d bytes written since", n))
	}
	if len(names) == 0 {
		return true // bookmarks hold no data
	}
	if p.req.Rollback {
		p.addRollback(d, t, at, snapshots, bookmarks, out)
		return true
	}
	const text = "%s has @%s itself, and newer data: %s"
	list := finding.Some(names, maxEvidence)
	if d.Name != p.req.Source || slices.ContainsFunc(p.state.Target.Datasets, restorePending) {
		p.note(text+"; it is left as it is; {{rollback}} rolls it back, and {{dry-run}} lists what would be lost", p.onTarget(t.Name), at.Name, list)
		return true
	}
	hint := "{{rollback}} rolls " + t.Name + " back to @" + at.Name + "; {{dry-run}} lists what would be lost"
	if point := t.Get("mountpoint"); strings.HasPrefix(point, "/") {
		hint = "single files are in " + strings.TrimSuffix(point, "/") + "/.zfs/snapshot/" + at.Name + "\n" + hint
	}
	if p.req.Recursive {
		hint += "\nto restore only a dataset below it, name that one"
	}
	p.conflict(Diverged, d.Name, t.Name, hint, text, p.onTarget(t.Name), at.Name, list)
	return false
}

// addRollback adds the rollback to a snapshot that the target has.
func (p *planner) addRollback(d, t *zfs.Dataset, at zfs.Version, snapshots, bookmarks []zfs.Version, out *Dataset) {
	newer := slices.Concat(snapshots, bookmarks)
	for _, v := range newer {
		out.Loses = append(out.Loses, v.In(t.Name))
	}
	if n := written(t); n > 0 {
		latest, _ := t.Latest()
		out.Loses = append(out.Loses, fmt.Sprintf("the %d bytes written to %s since @%s", n, t.Name, latest.Name))
	}
	out.newer, out.kept = snapshots, at
	out.Restore.Rollback = &zfs.Rollback{Dataset: t.Name, To: zfs.SnapshotID{Name: at.Name, GUID: at.GUID}, Loses: newer}
	p.checkMounted(d, t, out) // never refuses with Rollback
	p.noteCopyAhead(d, out)
}

// noteCopyAhead notes that the copy has snapshots newer than the restored one. No increment
// fits until the copy is rolled back too.
func (p *planner) noteCopyAhead(d *zfs.Dataset, out *Dataset) {
	var ahead []string
	for _, v := range d.Snapshots() {
		if v.CreateTXG > out.Arrive.CreateTXG {
			ahead = append(ahead, v.Short())
		}
	}
	if len(ahead) == 0 {
		return
	}
	out.Restore.Ahead = true
	slices.Reverse(ahead)
	p.note("%s keeps what is newer than @%s: %s; jobs refuse it as diverged until it is rolled back too",
		p.onSource(d.Name), out.Arrive.Name, finding.Some(ahead, maxEvidence))
}

// checkMounted refuses to restore over a filesystem in use, unless Rollback allows the loss.
// Even access-time updates during the receive would make it fail.
func (p *planner) checkMounted(d, t *zfs.Dataset, out *Dataset) bool {
	if p.req.Restore && t.Type == zfs.Volume {
		if p.req.Rollback {
			out.Loses = append(out.Loses, "what programs write to "+zfs.DeviceOf(t.Name)+" meanwhile, or have in memory: stop what uses it first")
		} else {
			p.note("%s changes under whatever uses %s: stop that first", p.onTarget(t.Name), zfs.DeviceOf(t.Name))
		}
		return true
	}
	if t.Get("mounted") != "yes" {
		return true
	}
	if !p.req.Restore { // other jobs leave it mounted
		if p.req.Rollback && t.Get("readonly") != "on" {
			out.Loses = append(out.Loses, "what is written to "+t.Name+" until the stream has arrived")
		}
		return true
	}
	if !p.req.Rollback {
		p.conflict(Mounted, d.Name, t.Name, command("zfs", "unmount", t.Name)+"\n{{rollback}} unmounts it, and lets it lose what is newer",
			"%s is mounted: what is written to it meanwhile would be in the way of %s", p.onTarget(t.Name), p.onSource(out.Arrive.In(d.Name)))
		return false
	}
	out.Restore.Unmount = []string{t.Name}
	for _, name := range p.state.TargetMounted {
		if strings.HasPrefix(name, t.Name+"/") { // zfs unmount unmounts these too
			out.Restore.Unmount = append(out.Restore.Unmount, name)
		}
	}
	out.Loses = append(out.Loses, "what is written to "+t.Name+" until it is unmounted")
	return true
}

// NeedLosses returns the full names of the target's snapshots that the plan destroys, so that
// CheckLosses can check their holds and clones.
func NeedLosses(p Plan) []string {
	var names []string
	for _, d := range p.Datasets {
		for _, v := range d.newer {
			names = append(names, v.In(d.Target))
		}
	}
	return names
}

// MayLose reports whether the plan may destroy a target snapshot.
func (d *Dataset) MayLose(v zfs.Version) bool {
	return slices.ContainsFunc(d.newer, func(n zfs.Version) bool { return n.GUID == v.GUID })
}

// CheckLosses adds a conflict for each dataset with a snapshot to destroy that has clones or
// holds of others. ZFS destroys the snapshots after the whole stream has arrived, and refuses
// only then. Holds of zxfer's jobs move to the snapshot that the rollback returns to, from
// which the job's next run starts.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (dmu_recv_end_check)
func CheckLosses(p *Plan, s State) {
	for _, d := range p.Datasets {
		var why, remedies []string
		moves := map[string][]string{}
		for _, v := range d.newer {
			name := v.In(d.Target)
			for _, tag := range s.TargetHolds[name] {
				if zfs.IsJobTag(tag) {
					moves[tag] = append(moves[tag], name)
					continue
				}
				why = append(why, fmt.Sprintf("@%s is held (%s)", v.Name, tag))
				remedies = append(remedies, command("zfs", "release", tag, name))
			}
			for _, clone := range s.TargetClones[name] {
				why = append(why, fmt.Sprintf("@%s has the clone %s", v.Name, clone))
				remedies = append(remedies, "name another target, or do without the clone: "+command("zfs", "destroy", clone))
			}
		}
		d.Moves = nil
		for _, tag := range slices.Sorted(maps.Keys(moves)) {
			d.Moves = append(d.Moves, MovedHold{Tag: tag, To: d.kept.In(d.Target), From: moves[tag]})
		}
		if len(why) == 0 {
			continue
		}
		slices.Sort(remedies)
		remedies = slices.Compact(remedies)
		p.Refuse(finding.Finding{
			ID: Kept, Source: d.Source, Target: d.Target,
			Summary: fmt.Sprintf("%s cannot lose what is newer than the common snapshot: %s", withHost(s.TargetHost, d.Target), finding.Some(why, maxEvidence)),
			Remedy:  strings.Join(remedies[:min(maxEvidence, len(remedies))], "\n"),
		})
	}
}
