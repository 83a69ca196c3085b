package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// restores determines the actions of a restore in addition to its streams.
type restores struct {
	*findings
	*arrivals
	keys *keys
}

// actions plans the actions of a restore. It returns nil for other jobs.
func (r restores) actions(d *zfs.Dataset, out *Dataset) *RestoreActions {
	if !r.req.Restore {
		return nil
	}
	t := r.target[out.Target]
	g := &RestoreActions{Due: t == nil || restorePending(t)}
	var canmount string
	if g.Due {
		r.setDue(d, out, g)
		canmount = cmp.Or(g.Set["canmount"], "on")
	} else {
		canmount = cmp.Or(r.req.Set["canmount"], t.Get("canmount"))
		if t.Properties[zfs.CanMountProperty].Local() { // restored, and not mounted yet
			canmount = "on"
		}
	}
	if d.Type == zfs.Filesystem && canmount == "on" && (t == nil || t.Get("mounted") != "yes") {
		g.Mountpoint = r.futureMountpoint(out)
	}
	return g
}

// setDue plans the properties and the key of a new dataset.
func (r restores) setDue(d *zfs.Dataset, out *Dataset, g *RestoreActions) {
	set := map[string]string{}
	for _, name := range []string{"readonly", "canmount"} {
		if !zfs.Settable(d.Type, name) {
			continue
		}
		asked, chosen := r.req.Set[name]
		switch own := d.Properties[name]; {
		case chosen:
			set[name] = asked
		case own.Source == "received" && zfs.CheckValue(name, own.Value) == nil && !slices.Contains(r.req.Exclude, name): // the original's value arrived with the copy
			set[name] = own.Value
		default:
			g.Revert = append(g.Revert, name)
			r.noteReadonlyAbove(name, out)
		}
	}
	if len(set) > 0 {
		g.Set = set
	}
	if g.Joins = r.keys.provedRootAbove(d, out); g.Joins == "" {
		g.AssertedRoot = r.keys.assertedRootAbove(d, out)
	}
}

// noteReadonlyAbove notes that an ancestor makes the dataset read-only.
func (r restores) noteReadonlyAbove(name string, out *Dataset) {
	for above := zfs.ParentOf(out.Target); name == "readonly" && above != ""; above = zfs.ParentOf(above) {
		if r.byTarget[above] != nil {
			return // that ancestor has its own note
		}
		if t := r.target[above]; t != nil {
			if t.Get(name) == "on" {
				r.note("%s will be read-only, because %s is; to make it writable, add {{set readonly=off}}", out.Target, above)
			}
			return
		}
	}
}

// futureMountpoint returns the directory on which a target filesystem will be mounted, or "".
func (r restores) futureMountpoint(out *Dataset) string {
	at, below, asked := "", "", r.req.Set["mountpoint"]
	if t := r.target[r.targetRoot]; t != nil && asked != "" {
		if _, has := t.SnapshotOf(cmp.Or(r.byTarget[r.targetRoot], out).Final.GUID); has {
			asked = "" // no stream remains to set it
		}
	}
	for name := out.Target; at == "" && name != ""; name = zfs.ParentOf(name) {
		below = strings.TrimPrefix(out.Target, name)
		if t := r.target[name]; asked != "" && name == r.targetRoot {
			at = asked
		} else if t != nil && !t.Inconsistent() && (asked == "" || !strings.HasPrefix(name, r.targetRoot+"/") || t.Properties["mountpoint"].Local()) {
			at = t.Get("mountpoint")
		}
	}
	if !strings.HasPrefix(at, "/") { // none or legacy
		return ""
	}
	return strings.TrimSuffix(at, "/") + below
}

// protect keeps arriving data read-only and unmounted until the restore ends.
func protect(d *zfs.Dataset, set map[string]string) {
	set["readonly"], set[zfs.RestoreProperty] = "on", "on"
	if d.Type == zfs.Filesystem {
		set["canmount"] = "noauto"
	}
}

// dropPrecautions removes properties that are set at the end of a restore.
func dropPrecautions(set map[string]string) {
	maps.DeleteFunc(set, func(name, _ string) bool { return isPrecaution(name) })
}

// restorePending reports whether a restore has started and not ended.
func restorePending(t *zfs.Dataset) bool {
	return t.Inconsistent() || t.Properties[zfs.RestoreProperty].Local()
}

// isPrecaution reports whether zxfer sets a property of copies as a precaution.
func isPrecaution(name string) bool { return name == "readonly" || name == "canmount" }
