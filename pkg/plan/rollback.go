package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// losses determines the target data that a transfer destroys, and refuses losses that the request
// does not allow.
type losses struct{ *findings }

// acceptsIncrement reports whether the target can receive an increment from base. The target
// must have no newer data, or Rollback must allow its loss.
func (l losses) acceptsIncrement(d, t *zfs.Dataset, out *Dataset, base zfs.Version) bool {
	newer := newerThan(t, base)
	switch {
	case newer.isEmpty():
		return true
	case l.req.Rollback:
		out.Loses = append(out.Loses, newer.lost(newer.snapshots)...)
		out.newer, out.kept = newer.snapshots, base
		return true
	case len(newer.snapshots) > 0:
		l.refuseDiverged(d, t, out, base, newer.snapshots)
		return false
	}
	hint := ModifiedHint(l.state.TargetAt, t)
	if l.req.Restore { // the original will be written to again
		hint = "restore to another target\nto discard the changes to " + t.Name + ", add {{rollback}}"
	}
	latest, _ := t.Latest()
	l.conflict(Modified, d.Name, t.Name, hint,
		"%s has been modified since its most recent snapshot @%s (%d bytes written): %s cannot be received",
		l.onTarget(t.Name), latest.Name, newer.written, l.onSource(out.Final.In(d.Name)))
	return false
}

// refuseDiverged adds a conflict for a target that has diverged, or that is merely ahead of the
// requested snapshot.
func (l losses) refuseDiverged(d, t *zfs.Dataset, out *Dataset, base zfs.Version, newer []zfs.Version) {
	have := d.SnapshotsByGUID()
	diverged := slices.ContainsFunc(newer, func(v zfs.Version) bool { _, known := have[v.GUID]; return !known })
	list := finding.JoinFirst(shortNames(newer), maxEvidence)
	hint := "name another target\nto roll " + t.Name + " back, destroying " + list + ": {{rollback}}"
	if !diverged {
		l.conflict(Diverged, d.Name, t.Name, "name a newer snapshot, or "+hint,
			"%s has %s, which is newer than %s, and lacks the latter", l.onTarget(t.Name), list, l.onSource(out.Final.In(d.Name)))
		return
	}
	l.markDiverged(d, t)
	after := slices.DeleteFunc(d.Snapshots(), func(v zfs.Version) bool { return v.CreateTXG <= have[base.GUID].CreateTXG })
	l.conflict(Diverged, d.Name, t.Name, hint+"\n"+l.rotateHint(t.Name),
		"%s has diverged: after the common snapshot @%s it has %s, and %s has %s",
		l.onTarget(t.Name), base.Name, list, l.onSource(d.Name), listNames(after))
}

// checkNamesFree refuses arriving snapshots whose names are taken by other snapshots of the
// target. Snapshots newer than kept, a CreateTXG of the target, are rolled back and do not
// count.
func (l losses) checkNamesFree(d, t *zfs.Dataset, out *Dataset, kept uint64) bool {
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
			l.conflict(NameTaken, d.Name, t.Name, "rename the target's snapshot: "+l.state.TargetAt.Command("zfs", "rename", t.Name+"@"+name, "@"+name+"-old"),
				"@%s exists on both sides but is not the same snapshot: %s cannot be received while %s has its own (GUID %d)",
				name, l.onSource(d.Name), l.onTarget(t.Name), guid)
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

// planRollback plans the rollback of a dataset that has the wanted snapshot and newer
// data. Without Rollback, it refuses the dataset that the user named and leaves descendants
// alone. If an interrupted restore is being completed, it leaves all alone, because the first
// datasets may be in use. It reports whether there is no conflict.
func (l losses) planRollback(d, t *zfs.Dataset, at zfs.Version, out *Dataset) bool {
	newer := newerThan(t, at)
	if newer.isEmpty() {
		return true
	}
	if l.req.Rollback {
		l.addRollback(d, t, at, newer, out)
		return true
	}
	var names []string
	for _, v := range newer.snapshots {
		names = append(names, v.Short())
	}
	if newer.written > 0 {
		names = append(names, fmt.Sprintf("%d bytes written since", newer.written))
	}
	const text = "%s has @%s, and newer data: %s"
	list := finding.JoinFirst(names, maxEvidence)
	if d.Name != l.req.Source || slices.ContainsFunc(l.state.Target.Datasets, restorePending) {
		l.note(text+"; zxfer keeps it; to roll it back, add {{rollback}} (preview with {{dry-run}})", l.onTarget(t.Name), at.Name, list)
		return true
	}
	hint := "to roll " + t.Name + " back to @" + at.Name + ", add {{rollback}} (preview with {{dry-run}})"
	if point := t.Get("mountpoint"); strings.HasPrefix(point, "/") {
		hint = "single files are available in " + strings.TrimSuffix(point, "/") + "/.zfs/snapshot/" + at.Name + "\n" + hint
	}
	if l.req.Recursive {
		hint += "\nto restore only a dataset below it, name that one"
	}
	l.conflict(Diverged, d.Name, t.Name, hint, text, l.onTarget(t.Name), at.Name, list)
	return false
}

// addRollback adds the rollback to a snapshot that the target has.
func (l losses) addRollback(d, t *zfs.Dataset, at zfs.Version, newer newerData, out *Dataset) {
	versions := slices.Concat(newer.snapshots, newer.bookmarks)
	out.Loses = append(out.Loses, newer.lost(versions)...)
	out.newer, out.kept = newer.snapshots, at
	out.Restore.Rollback = &zfs.Rollback{Dataset: t.Name, To: zfs.SnapshotID{Name: at.Name, GUID: at.GUID}, Loses: versions}
	l.checkMounted(d, t, out) // never refuses with Rollback
	l.noteCopyAhead(d, out)
}

// noteCopyAhead notes that the copy has snapshots newer than the restored one. No increment
// fits until the copy is rolled back too.
func (l losses) noteCopyAhead(d *zfs.Dataset, out *Dataset) {
	ahead := newerThan(d, out.Final).snapshots
	if len(ahead) == 0 {
		return
	}
	out.Restore.CopyAhead = true
	l.note("%s has snapshots newer than @%s: %s; jobs refuse it as diverged until you roll it back too",
		l.onSource(d.Name), out.Final.Name, finding.JoinFirst(shortNames(ahead), maxEvidence))
}

// checkMounted refuses to restore over a filesystem in use, unless Rollback allows the loss.
// Even access-time updates during the receive would make it fail.
func (l losses) checkMounted(d, t *zfs.Dataset, out *Dataset) bool {
	if l.req.Restore && t.Type == zfs.Volume {
		if l.req.Rollback {
			out.Loses = append(out.Loses, "data that programs write to "+zfs.DeviceOf(t.Name)+" during the restore, or have cached: stop its users first")
		} else {
			l.note("%s changes during the restore: first stop all programs that use %s", l.onTarget(t.Name), zfs.DeviceOf(t.Name))
		}
		return true
	}
	if t.Get("mounted") != "yes" {
		return true
	}
	if !l.req.Restore { // other jobs leave it mounted
		if l.req.Rollback && t.Get("readonly") != "on" {
			out.Loses = append(out.Loses, "data written to "+t.Name+" until the stream is received")
		}
		return true
	}
	if !l.req.Rollback {
		l.conflict(Mounted, d.Name, t.Name, l.state.TargetAt.Command("zfs", "unmount", t.Name)+"\nto unmount it and destroy newer data, add {{rollback}}",
			"%s is mounted: writes during the restore would prevent %s", l.onTarget(t.Name), l.onSource(out.Final.In(d.Name)))
		return false
	}
	out.Restore.Unmount = []string{t.Name}
	for _, name := range l.state.TargetMounted {
		if strings.HasPrefix(name, t.Name+"/") { // zfs unmount unmounts these too
			out.Restore.Unmount = append(out.Restore.Unmount, name)
		}
	}
	out.Loses = append(out.Loses, "data written to "+t.Name+" until it is unmounted")
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
				remedies = append(remedies, s.TargetAt.Command("zfs", "release", tag, name))
			}
			for _, clone := range s.TargetClones[name] {
				why = append(why, fmt.Sprintf("@%s has the clone %s", v.Name, clone))
				remedies = append(remedies, "name another target, or destroy the clone: "+s.TargetAt.Command("zfs", "destroy", clone))
			}
		}
		d.MovedHolds = nil
		for _, tag := range slices.Sorted(maps.Keys(moves)) {
			d.MovedHolds = append(d.MovedHolds, MovedHold{Tag: tag, To: d.kept.In(d.Target), From: moves[tag]})
		}
		if len(why) == 0 {
			continue
		}
		slices.Sort(remedies)
		remedies = slices.Compact(remedies)
		p.Refuse(finding.Finding{
			ID: Kept, Source: d.Source, Target: d.Target,
			Summary: fmt.Sprintf("%s cannot be rolled back to the common snapshot: %s", withHost(s.TargetHost, d.Target), finding.JoinFirst(why, maxEvidence)),
			Remedy:  strings.Join(remedies[:min(maxEvidence, len(remedies))], "\n"),
		})
	}
}

// newerData is the data of a target dataset that is newer than one of its snapshots.
type newerData struct {
	of                   *zfs.Dataset
	snapshots, bookmarks []zfs.Version
	written              uint64 // bytes since the most recent snapshot
}

func newerThan(t *zfs.Dataset, at zfs.Version) newerData {
	n := newerData{of: t, written: written(t)}
	for _, v := range t.Versions {
		switch {
		case v.CreateTXG <= at.CreateTXG:
		case v.Kind == zfs.Snapshot:
			n.snapshots = append(n.snapshots, v)
		default:
			n.bookmarks = append(n.bookmarks, v)
		}
	}
	return n
}

// isEmpty reports whether a rollback loses no data. Bookmarks hold none.
func (n newerData) isEmpty() bool { return len(n.snapshots) == 0 && n.written == 0 }

// lost lists versions to destroy and the changes since the most recent snapshot, for Dataset.Loses.
func (n newerData) lost(versions []zfs.Version) (out []string) {
	for _, v := range versions {
		out = append(out, v.In(n.of.Name))
	}
	if n.written > 0 {
		latest, _ := n.of.Latest()
		out = append(out, fmt.Sprintf("the %d bytes written to %s since @%s", n.written, n.of.Name, latest.Name))
	}
	return out
}

// ModifiedHint returns the hint for a copy modified since its most recent snapshot.
func ModifiedHint(at remedy.Host, t *zfs.Dataset) string {
	latest, _ := t.Latest()
	return fmt.Sprintf("discard the changes: %s\nor: {{rollback}}\nprevent further changes: %s",
		at.Command("zfs", "rollback", latest.In(t.Name)), at.Command("zfs", "set", "readonly=on", t.Name))
}

// written returns the bytes written since the most recent snapshot; 0 if unknown.
func written(d *zfs.Dataset) uint64 {
	n, err := strconv.ParseUint(d.Get("written"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
