package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// RestoredOwner is what a restore does for a dataset besides moving its streams.
type RestoredOwner struct {
	// Due tells that the dataset is new, or that a restore which brought it was
	// interrupted: in the end it is given what follows.
	Due bool `json:"due,omitempty"`
	// Set and Revert undo what the copy had changed for its own safety.
	Set    map[string]string `json:"set,omitempty"`
	Revert []string          `json:"revert,omitempty"`
	// Joins is the encryption root that it will take its key from, as far as is known
	// before; see zfs.ProvedKey.
	Joins string `json:"joins,omitempty"`
	// Rollback is what the dataset goes back to, if it has the wanted snapshot itself and newer
	// ones or changes; nil if it is left as it is or gets streams.
	Rollback *zfs.Rollback `json:"rollback,omitempty"`
	// Takes is the encryption root that it takes its key from as it does in the copy, on that
	// host's word: ZFS shows nothing of a key that is no passphrase.
	Takes string `json:"takes,omitempty"`
	// Ahead reports that the copy has newer snapshots than the one that is restored, which the
	// original does not have any more: the copy has diverged then.
	Ahead bool `json:"copy_ahead,omitempty"`
	// Unmount are the filesystems, at and below it, that have to be unmounted first.
	Unmount []string `json:"unmount,omitempty"`
	// Mountpoint is where it mounts then; "" for nowhere, or where it does already.
	Mountpoint string `json:"mountpoint,omitempty"`
}

// givenBack tells whether a property of a copy is zxfer's own precaution.
func givenBack(name string) bool { return name == "readonly" || name == "canmount" }

// begun tells that a restore has begun to bring a dataset, and has not ended.
func begun(t *zfs.Dataset) bool {
	return t.Inconsistent() || t.Properties[zfs.RestoreProperty].Local()
}

// giving plans what a dataset is given back.
func (p *planner) giving(d *zfs.Dataset, out *Dataset) {
	if !p.req.Restore {
		return
	}
	t := p.target[out.Target]
	g := &RestoredOwner{Due: t == nil || begun(t)}
	out.Restore = g
	if g.Due {
		p.giveBack(d, out, g)
	}
	canmount := cmp.Or(g.Set["canmount"], "on")
	if !g.Due {
		canmount = cmp.Or(p.req.Set["canmount"], t.Get("canmount"))
	}
	if d.Type == zfs.Filesystem && canmount == "on" && (t == nil || t.Get("mounted") != "yes") {
		g.Mountpoint = p.mountpoint(out)
	}
}

// giveBack plans what a dataset that is new is given.
func (p *planner) giveBack(d *zfs.Dataset, out *Dataset, g *RestoredOwner) {
	for _, name := range []string{"readonly", "canmount"} {
		if !zfs.Settable(d.Type, name) {
			continue
		}
		asked, set := p.req.Set[name]
		switch own := d.Properties[name]; {
		case set:
			g.give(name, asked)
		case own.Source == "received" && zfs.CheckValue(name, own.Value) == nil && !slices.Contains(p.req.Exclude, name): // the original's own came along
			g.give(name, own.Value)
		default:
			g.Revert = append(g.Revert, name)
			p.noteInherited(name, out)
		}
	}
	if g.Joins = p.keyAbove(d, out); g.Joins == "" {
		g.Takes = p.givenBackMessage(d, out)
	}
}

// givenBackMessage plans to believe the copy about a key of which ZFS shows nothing: in the copy the dataset
// takes its key from a root that this restore brings, too. Both came with the copy's key then.
func (p *planner) givenBackMessage(d *zfs.Dataset, out *Dataset) string {
	key, at := p.rootThere(zfs.ParentOf(out.Target))
	if key == nil || key != p.sourceRoot(d) || key == d || !out.Encrypted || originDataset(d) != "" || !zfs.KeyIsUnknown(key, d) {
		return ""
	}
	if above := p.arriving[at]; above == nil || above.Restore == nil || !above.Restore.Due {
		return ""
	}
	return at
}

// noteInherited says that what is set above a dataset keeps it from being written to.
func (p *planner) noteInherited(name string, out *Dataset) {
	for above := zfs.ParentOf(out.Target); name == "readonly" && above != ""; above = zfs.ParentOf(above) {
		if p.arriving[above] != nil {
			return // it says so itself
		}
		if t := p.target[above]; t != nil {
			if t.Get(name) == "on" {
				p.note("%s will be read-only, as %s is: {{set readonly=off}} has it written to", out.Target, above)
			}
			return
		}
	}
}

func (g *RestoredOwner) give(name, value string) {
	if g.Set == nil {
		g.Set = map[string]string{}
	}
	g.Set[name] = value
}

// guard keeps what arrives from being changed and mounted until all is there, whatever
// it is given then.
func (p *planner) guard(d *zfs.Dataset, set map[string]string) {
	set["readonly"], set[zfs.RestoreProperty] = "on", "on"
	if d.Type == zfs.Filesystem {
		set["canmount"] = "noauto"
	}
}

// later leaves out what is given back in the end.
func (p *planner) later(set map[string]string) {
	maps.DeleteFunc(set, func(name, _ string) bool { return givenBack(name) })
}

// mountpoint is where a filesystem of the target will mount, "" for nowhere.
func (p *planner) mountpoint(out *Dataset) string {
	at, below, asked := "", "", p.req.Set["mountpoint"]
	if t := p.target[p.targetRoot]; t != nil && asked != "" {
		if _, has := t.SnapshotOf(cmp.Or(p.arriving[p.targetRoot], out).Arrive.GUID); has {
			asked = "" // no stream is left to set it with
		}
	}
	for name := out.Target; at == "" && name != ""; name = zfs.ParentOf(name) {
		below = strings.TrimPrefix(out.Target, name)
		if t := p.target[name]; asked != "" && name == p.targetRoot {
			at = asked
		} else if t != nil && !t.Inconsistent() && (asked == "" || !strings.HasPrefix(name, p.targetRoot+"/") || t.Properties["mountpoint"].Local()) {
			at = t.Get("mountpoint")
		}
	}
	if !strings.HasPrefix(at, "/") { // none, legacy
		return ""
	}
	return strings.TrimSuffix(at, "/") + below
}

// mayUnmount refuses to go back over what is in use, unless that may lose what is
// written there: whatever is written meanwhile, access times too, would be in the way.
func (p *planner) mayUnmount(d, t *zfs.Dataset, out *Dataset) bool {
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
	if !p.req.Restore { // which leaves it mounted
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
		if strings.HasPrefix(name, t.Name+"/") { // zfs unmount does the same with these
			out.Restore.Unmount = append(out.Restore.Unmount, name)
		}
	}
	out.Loses = append(out.Loses, "what is written to "+t.Name+" until it is unmounted")
	return true
}

// goBack plans what happens to a dataset that has the wanted snapshot itself, and newer snapshots,
// bookmarks or changes: with Rollback it goes back to that snapshot. Without it, the dataset that the
// user named is refused. A dataset below it is left alone, and so are all if an interrupted restore
// is being completed, whose first datasets may be in use by now. It reports whether there is no
// conflict.
func (p *planner) goBack(d, t *zfs.Dataset, at zfs.Version, out *Dataset) bool {
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
		return true // a bookmark alone is no data
	}
	if p.req.Rollback {
		p.rollBack(d, t, at, snapshots, bookmarks, out)
		return true
	}
	const text = "%s has @%s itself, and newer data: %s"
	list := finding.Some(names, evidence)
	if d.Name != p.req.Source || slices.ContainsFunc(p.state.Target.Datasets, begun) {
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

// rollBack plans that a dataset of the target goes back to a snapshot that it has.
func (p *planner) rollBack(d, t *zfs.Dataset, at zfs.Version, snapshots, bookmarks []zfs.Version, out *Dataset) {
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
	p.mayUnmount(d, t, out) // with Rollback it refuses nothing
	p.aheadOf(d, out)
}

// aheadOf notes that the copy has newer snapshots than the one that its original goes back to: until
// it loses them, no increment fits.
func (p *planner) aheadOf(d *zfs.Dataset, out *Dataset) {
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
		p.onSource(d.Name), out.Arrive.Name, finding.Some(ahead, evidence))
}
