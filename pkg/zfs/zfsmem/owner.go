package zfsmem

import (
	"context"

	"zxfer/pkg/zfs"
)

// Adjust changes properties.
func (h *Host) Adjust(ctx context.Context, a zfs.Adjustment) error {
	return h.of(ctx, zfs.OpSet, a.Dataset, func(d *zfs.Dataset) {
		for name, value := range a.Set {
			d.Properties[name] = zfs.Property{Value: value, Source: "local"}
		}
		for _, name := range a.Revert {
			delete(d.Properties, name)
		}
	})
}

// Mount notes that a filesystem is mounted.
func (h *Host) Mount(ctx context.Context, dataset string) error {
	return h.of(ctx, zfs.OpMount, dataset, func(d *zfs.Dataset) { set(d, "mounted", "yes") })
}

// Unmount notes that it is not.
func (h *Host) Unmount(ctx context.Context, dataset string) error {
	return h.of(ctx, zfs.OpUnmount, dataset, func(d *zfs.Dataset) { set(d, "mounted", "no") })
}

// InheritKey takes over the encryption root above.
func (h *Host) InheritKey(ctx context.Context, dataset string) error {
	return h.of(ctx, zfs.OpKey, dataset, func(d *zfs.Dataset) {
		set(d, "encryptionroot", h.datasets[zfs.ParentOf(dataset)].Get("encryptionroot"))
	})
}

// PartKey makes a dataset an encryption root.
func (h *Host) PartKey(ctx context.Context, dataset string) error {
	return h.of(ctx, zfs.OpKey, dataset, func(d *zfs.Dataset) { set(d, "encryptionroot", dataset) })
}

// Occupied tells of nothing: there are no directories.
func (h *Host) Occupied(ctx context.Context, paths []string) (map[string]string, error) {
	return nil, h.do(ctx, zfs.OpMount, paths, func() error { return nil })
}

func (h *Host) of(ctx context.Context, op, dataset string, change func(*zfs.Dataset)) error {
	return h.do(ctx, op, []string{dataset}, func() error {
		d := h.datasets[dataset]
		if d == nil {
			return fail(zfs.NotFound, op, dataset)
		}
		change(d)
		return nil
	})
}
