package zfsmem

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// RenameDiverged renames copies and their descendants.
func (h *Host) RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error {
	var names []string
	for _, a := range all {
		names = append(names, a.Dataset, a.As)
	}
	return h.do(ctx, zfs.OpRename, names, func() error {
		for _, a := range all {
			if err := a.Check(); err != nil {
				return err
			}
			if d := h.datasets[a.As]; d != nil && d.GUID == a.GUID {
				continue
			}
			if d := h.datasets[a.Dataset]; d == nil || d.GUID != a.GUID {
				return fault.Refusef("", "%s is not what it was", a.Dataset)
			}
			l := zfs.Listing{Root: a.Dataset}
			for _, name := range h.subtree(a.Dataset) {
				l.Datasets = append(l.Datasets, h.datasets[name])
			}
			if why := a.RefusalReason(&l); why != "" {
				return fault.Refusef("", "%s was not renamed: %s", a.Dataset, why)
			}
			h.rename(a.Dataset, a.As)
		}
		return nil
	})
}

// RenameCopies renames copies whose source dataset was renamed, with the checks of a real host.
func (h *Host) RenameCopies(ctx context.Context, all []zfs.RenamedCopy) error {
	for _, r := range all {
		if err := r.Check(); err != nil {
			return err
		}
		if err := h.do(ctx, zfs.OpRename, []string{r.Dataset, r.As}, func() error { return h.renameCopy(r) }); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) renameCopy(r zfs.RenamedCopy) error {
	parent := h.datasets[zfs.ParentOf(r.As)]
	switch d := h.datasets[r.As]; {
	case d != nil && d.GUID == r.GUID:
		return nil
	case d != nil || parent == nil:
		return fault.Refusef("", "%s exists, or has no parent", r.As)
	}
	l := zfs.Listing{Root: r.Dataset}
	for _, name := range h.subtree(r.Dataset) {
		l.Datasets = append(l.Datasets, h.datasets[name])
	}
	if why := r.RefusalReason(&l, parent.Get("encryptionroot")); why != "" {
		return fault.Refusef("", "%s is not renamed: %s", r.Dataset, why)
	}
	h.rename(r.Dataset, r.As)
	return nil
}

// rename renames a dataset and its descendants.
func (h *Host) rename(from, to string) {
	for _, d := range h.datasets {
		for _, p := range []string{"origin", "encryptionroot"} {
			if v := d.Get(p); v == from || strings.HasPrefix(v, from+"@") || strings.HasPrefix(v, from+"/") {
				set(d, p, to+strings.TrimPrefix(v, from))
			}
		}
	}
	for _, name := range h.subtree(from) {
		d := h.datasets[name]
		d.Name = to + strings.TrimPrefix(name, from)
		h.datasets[d.Name], h.head[d.Name] = d, h.head[name]
		if p := h.partial[name]; p != nil {
			h.partial[d.Name] = p
		}
		delete(h.datasets, name)
		delete(h.head, name)
		delete(h.partial, name)
	}
}

// subtree returns a dataset and its descendants.
func (h *Host) subtree(name string) (all []string) {
	for n := range h.datasets {
		if n == name || strings.HasPrefix(n, name+"/") {
			all = append(all, n)
		}
	}
	return all
}

// DestroyOrphans destroys copies whose source dataset was deleted.
func (h *Host) DestroyOrphans(ctx context.Context, all []zfs.Orphan) error {
	for _, g := range all {
		if err := g.Check(); err != nil {
			return err
		}
		if err := h.do(ctx, zfs.OpDestroy, []string{g.Dataset}, func() error { return h.destroyOrphan(g) }); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) destroyOrphan(g zfs.Orphan) error {
	d := h.datasets[g.Dataset]
	if d == nil {
		return nil
	}
	l := zfs.Listing{Root: g.Dataset}
	for _, name := range h.subtree(g.Dataset) {
		l.Datasets = append(l.Datasets, h.datasets[name])
	}
	held := map[string]zfs.SnapshotRefs{}
	for _, s := range d.Snapshots() {
		of := zfs.SnapshotRefs{Tags: h.tags[key(d, s)]}
		for _, c := range h.datasets {
			if c.Get("origin") == s.In(d.Name) {
				of.Clones = append(of.Clones, c.Name)
			}
		}
		held[s.In(d.Name)] = of
	}
	if why := g.RefusalReason(&l, held); why != "" {
		return fault.Refusef("", "%s is kept: %s", g.Dataset, why)
	}
	h.remove(g.Dataset)
	return nil
}

// CreateDrillClone creates a drill clone and returns its name.
func (h *Host) CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error) {
	return query(ctx, h, zfs.OpClone, []string{a.Snapshot}, func() (string, error) {
		of, i := h.find(a.Snapshot)
		if i < 0 {
			return "", fail(zfs.NotFound, zfs.OpClone, a.Snapshot)
		}
		h.guid++
		name := zfs.DrillCloneName(zfs.PoolOf(of.Name), fmt.Sprint(h.guid))
		clone := h.create(name, of.Type, map[string]string{zfs.DrillCloneProperty: a.Job})
		for _, p := range []string{"encryption", "encryptionroot", "keystatus"} { // a clone has those of its origin
			clone.Properties[p] = of.Properties[p]
		}
		h.clone(of.Versions[i], a.Snapshot, clone)
		if directory := h.files[a.Snapshot]; directory != "" {
			h.files[name] = directory
		}
		return name, nil
	})
}

// DestroyDrillClones destroys the drill clones of a job.
func (h *Host) DestroyDrillClones(ctx context.Context, a zfs.DrillClones) error {
	return h.do(ctx, zfs.OpDestroy, a.Datasets, func() error {
		for _, d := range slices.Collect(maps.Values(h.datasets)) {
			origin, _, _ := strings.Cut(d.Get("origin"), "@")
			if zfs.IsDrillClone(d.Name) && d.Get(zfs.DrillCloneProperty) == a.Job && slices.Contains(a.Datasets, origin) {
				h.remove(d.Name)
			}
		}
		return nil
	})
}

// RunInDrillClone runs nothing. It returns a failure if the program's name is "false".
func (h *Host) RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (out zfs.DrillResult, err error) {
	return query(ctx, h, "run", []string{a.Clone}, func() (zfs.DrillResult, error) {
		if err := a.Check(); err != nil {
			return out, err
		}
		if out.Output = strings.Join(a.Argv, " "); path.Base(a.Argv[0]) == "false" {
			out.Failure = "exit status 1"
		}
		return out, nil
	})
}
