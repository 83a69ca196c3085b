package zfsmem

import (
	"context"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

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
		return fault.Refusef("", "%s stays: %s", g.Dataset, why)
	}
	h.remove(g.Dataset)
	return nil
}
