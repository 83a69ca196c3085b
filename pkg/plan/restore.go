package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// RestoreActions are the actions of a restore for one dataset in addition to its streams.
type RestoreActions struct {
	// Due reports whether the dataset is new or its restore was interrupted. The actions below
	// then apply after the last stream.
	Due bool `json:"due,omitempty"`
	// Set and Revert undo the precautions on the copy.
	Set    map[string]string `json:"set,omitempty"`
	Revert []string          `json:"revert,omitempty"`
	// Joins is the encryption root from which the dataset is expected to inherit its key; see
	// zfs.ProvedKey.
	Joins string `json:"joins,omitempty"`
	// Rollback rolls the dataset back to the wanted snapshot, which it already has; nil if
	// there is no rollback.
	Rollback *zfs.Rollback `json:"rollback,omitempty"`
	// AssertedRoot is the encryption root from which the dataset inherits its key on the
	// assertion of the copy's host. ZFS shows only keys that are passphrases.
	AssertedRoot string `json:"takes,omitempty"`
	// Ahead reports whether the copy has newer snapshots, which the original loses. The copy
	// has then diverged.
	Ahead bool `json:"copy_ahead,omitempty"`
	// Unmount are the filesystems at and below the dataset that must be unmounted first.
	Unmount []string `json:"unmount,omitempty"`
	// Mountpoint is the directory on which the dataset will be mounted; "" if nowhere, or
	// mounted already.
	Mountpoint string `json:"mountpoint,omitempty"`
}

// planRestore plans the actions of a restore.
func (p *planner) planRestore(d *zfs.Dataset, out *Dataset) {
	if !p.req.Restore {
		return
	}
	t := p.target[out.Target]
	g := &RestoreActions{Due: t == nil || restorePending(t)}
	out.Restore = g
	if g.Due {
		p.restoreProperties(d, out, g)
	}
	canmount := cmp.Or(g.Set["canmount"], "on")
	if !g.Due {
		canmount = cmp.Or(p.req.Set["canmount"], t.Get("canmount"))
	}
	if d.Type == zfs.Filesystem && canmount == "on" && (t == nil || t.Get("mounted") != "yes") {
		g.Mountpoint = p.futureMountpoint(out)
	}
}

// restoreProperties plans the properties and the key of a new dataset.
func (p *planner) restoreProperties(d *zfs.Dataset, out *Dataset, g *RestoreActions) {
	for _, name := range []string{"readonly", "canmount"} {
		if !zfs.Settable(d.Type, name) {
			continue
		}
		asked, set := p.req.Set[name]
		switch own := d.Properties[name]; {
		case set:
			g.set(name, asked)
		case own.Source == "received" && zfs.CheckValue(name, own.Value) == nil && !slices.Contains(p.req.Exclude, name): // the original's value arrived with the copy
			g.set(name, own.Value)
		default:
			g.Revert = append(g.Revert, name)
			p.noteReadonlyAbove(name, out)
		}
	}
	if g.Joins = p.provedRootAbove(d, out); g.Joins == "" {
		g.AssertedRoot = p.assertedRestoreRoot(d, out)
	}
}

func (g *RestoreActions) set(name, value string) {
	if g.Set == nil {
		g.Set = map[string]string{}
	}
	g.Set[name] = value
}

// assertedRestoreRoot returns the root from which a restored dataset inherits a key of which
// ZFS shows nothing, or "". In the copy, the dataset inherits from a root that this restore
// brings too, so both arrive with the copy's key.
func (p *planner) assertedRestoreRoot(d *zfs.Dataset, out *Dataset) string {
	key, at := p.futureRoot(zfs.ParentOf(out.Target))
	if key == nil || key != p.sourceRoot(d) || key == d || !out.Encrypted || originDataset(d) != "" || !zfs.KeyIsUnknown(key, d) {
		return ""
	}
	if above := p.byTarget[at]; above == nil || above.Restore == nil || !above.Restore.Due {
		return ""
	}
	return at
}

// noteReadonlyAbove notes that an ancestor makes the dataset read-only.
func (p *planner) noteReadonlyAbove(name string, out *Dataset) {
	for above := zfs.ParentOf(out.Target); name == "readonly" && above != ""; above = zfs.ParentOf(above) {
		if p.byTarget[above] != nil {
			return // that ancestor has its own note
		}
		if t := p.target[above]; t != nil {
			if t.Get(name) == "on" {
				p.note("%s will be read-only, as %s is: {{set readonly=off}} has it written to", out.Target, above)
			}
			return
		}
	}
}

// futureMountpoint returns the directory on which a target filesystem will be mounted, or "".
func (p *planner) futureMountpoint(out *Dataset) string {
	at, below, asked := "", "", p.req.Set["mountpoint"]
	if t := p.target[p.targetRoot]; t != nil && asked != "" {
		if _, has := t.SnapshotOf(cmp.Or(p.byTarget[p.targetRoot], out).Arrive.GUID); has {
			asked = "" // no stream remains to set it
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
	if !strings.HasPrefix(at, "/") { // none or legacy
		return ""
	}
	return strings.TrimSuffix(at, "/") + below
}

// protect keeps arriving data read-only and unmounted until the restore ends.
func (p *planner) protect(d *zfs.Dataset, set map[string]string) {
	set["readonly"], set[zfs.RestoreProperty] = "on", "on"
	if d.Type == zfs.Filesystem {
		set["canmount"] = "noauto"
	}
}

// dropPrecautions removes properties that are set at the end of a restore.
func (p *planner) dropPrecautions(set map[string]string) {
	maps.DeleteFunc(set, func(name, _ string) bool { return isPrecaution(name) })
}

// restorePending reports whether a restore has started and not ended.
func restorePending(t *zfs.Dataset) bool {
	return t.Inconsistent() || t.Properties[zfs.RestoreProperty].Local()
}

// isPrecaution reports whether zxfer sets a property of copies as a precaution.
func isPrecaution(name string) bool { return name == "readonly" || name == "canmount" }
