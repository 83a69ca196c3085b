package zfsmem

import (
	"context"
	"slices"

	"zxfer/pkg/zfs"
)

// Damage is what Damaged says.
func (h *Host) Damage(ctx context.Context, pool string) (zfs.Damage, error) {
	return ask(ctx, h, zfs.OpStatus, []string{pool}, func() (zfs.Damage, error) { return h.Damaged, nil })
}

// Scrub finds no more than what is known.
func (h *Host) Scrub(ctx context.Context, pool string) error {
	return h.do(ctx, zfs.OpScrub, []string{pool}, func() error {
		h.Damaged.Scan = zfs.Scan{Text: "scrub repaired 0B in 00:00:00 with 0 errors"}
		return nil
	})
}

// Revert destroys what came after a snapshot.
func (h *Host) Revert(ctx context.Context, snapshot string) error {
	return h.do(ctx, zfs.OpRevert, []string{snapshot}, func() error {
		d, at := h.find(snapshot)
		if at < 0 {
			return fail(zfs.NotFound, zfs.OpRevert, snapshot)
		}
		h.head[d.Name] = h.content[d.Versions[at].GUID]
		d.Versions = slices.Delete(d.Versions, at+1, len(d.Versions))
		return nil
	})
}
