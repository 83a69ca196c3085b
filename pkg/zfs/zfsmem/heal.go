package zfsmem

import (
	"context"
	"slices"
	"strconv"

	"zxfer/pkg/zfs"
)

// Damage returns the part of Damaged that belongs to a pool.
func (h *Host) Damage(ctx context.Context, pool string) (zfs.Damage, error) {
	return query(ctx, h, zfs.OpStatus, []string{pool}, func() (zfs.Damage, error) {
		d := h.Damaged
		d.Things = slices.DeleteFunc(slices.Clone(d.Things), func(t zfs.Damaged) bool { return t.Dataset != "" && zfs.PoolOf(t.Dataset) != pool })
		return d, nil
	})
}

// Scrub removes healed errors from Damaged.
func (h *Host) Scrub(ctx context.Context, pool string) error {
	return h.do(ctx, zfs.OpScrub, []string{pool}, func() error {
		h.Damaged.Scan = zfs.Scan{Text: "scrub repaired 0B in 00:00:00 with 0 errors"}
		h.Damaged.Things = slices.DeleteFunc(h.Damaged.Things, func(t zfs.Damaged) bool { return h.healed[t.Shown] })
		return nil
	})
}

// Sync makes "written" include the bytes of WriteLate.
func (h *Host) Sync(ctx context.Context, pool string) error {
	return h.do(ctx, zfs.OpSync, []string{pool}, func() error {
		for name, n := range h.late {
			if d := h.datasets[name]; d != nil && zfs.PoolOf(name) == pool {
				set(d, "written", strconv.Itoa(n))
				delete(h.late, name)
			}
		}
		return nil
	})
}

// correct heals errors of a dataset through one of its snapshots.
func (h *Host) correct(snapshot string, of stream) error {
	d, at := h.find(snapshot)
	if at < 0 || d.Versions[at].GUID != of.to {
		return fail(zfs.NoBase, zfs.OpReceive, snapshot)
	}
	if h.healed == nil {
		h.healed = map[string]bool{}
	}
	for _, t := range h.Damaged.Things {
		if t.Dataset == d.Name && (h.Heals == nil || h.Heals(t, of.from)) {
			h.healed[t.Shown] = true
		}
	}
	return nil
}

// Revert rolls a dataset back to a snapshot.
func (h *Host) Revert(ctx context.Context, snapshot string) error {
	return h.do(ctx, zfs.OpRollback, []string{snapshot}, func() error {
		d, at := h.find(snapshot)
		if at < 0 {
			return fail(zfs.NotFound, zfs.OpRollback, snapshot)
		}
		h.head[d.Name] = h.content[d.Versions[at].GUID]
		d.Versions = slices.Delete(d.Versions, at+1, len(d.Versions))
		return nil
	})
}
