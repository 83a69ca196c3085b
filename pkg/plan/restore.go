package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Giving is what a restore does for a dataset besides moving its streams.
type Giving struct {
	// Due tells that the dataset is new, or that a restore which brought it was
	// interrupted: in the end it is given what follows.
	Due bool `json:"due,omitempty"`
	// Set and Revert undo what the copy had changed for its own safety.
	Set    map[string]string `json:"set,omitempty"`
	Revert []string          `json:"revert,omitempty"`
	// Joins is the encryption root that it will take its key from, as far as is known
	// before; see zfs.ProvedKey.
	Joins string `json:"joins,omitempty"`
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
	g := &Giving{Due: t == nil || begun(t)}
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
func (p *planner) giveBack(d *zfs.Dataset, out *Dataset, g *Giving) {
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
	g.Joins = p.keyAbove(d, out)
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

func (g *Giving) give(name, value string) {
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

// mayStay judges a dataset that has the snapshot which is to be restored, and went on
// from there: nothing has to be fetched, and what it would lose is not for a restore
// to decide about. It may stay as it is below what is restored, unless all is to be
// as it was; and where an interrupted restore goes on, whose first datasets are in use.
func (p *planner) mayStay(d, t *zfs.Dataset, at zfs.Version) bool {
	var newer []string
	for _, v := range t.Snapshots() {
		if v.CreateTXG > at.CreateTXG {
			newer = append(newer, v.Short())
		}
	}
	back := []string{"zfs", "rollback", at.In(t.Name)}
	if len(newer) > 0 {
		slices.Reverse(newer)
		back = slices.Insert(back, 2, "-r")
	}
	if n := written(t); n > 0 {
		newer = append(newer, fmt.Sprintf("%d bytes written since", n))
	}
	if len(newer) == 0 {
		return true
	}
	const text = "%s has @%s itself, and what is newer: %s"
	list := strings.Join(newer[:min(evidence, len(newer))], ", ")
	if going := slices.ContainsFunc(p.state.Target.Datasets, begun); going || d.Name != p.req.Source && !p.req.Rollback {
		p.note(text+"; it is left as it is; to lose what is newer: %s", p.onTarget(t.Name), at.Name, list, command(back...))
		return true
	}
	hint := "there, to lose what is newer: " + command(back...)
	if point := t.Get("mountpoint"); strings.HasPrefix(point, "/") {
		hint = "single files are in " + strings.TrimSuffix(point, "/") + "/.zfs/snapshot/" + at.Name + "\n" + hint
	}
	if p.req.Recursive {
		hint += "\nto restore only what is below it, name that"
	}
	p.conflict(Diverged, d.Name, t.Name, hint, text, p.onTarget(t.Name), at.Name, list)
	return false
}
