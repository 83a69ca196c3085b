package zfsmem

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// SetProperties changes properties of a dataset.
func (h *Host) SetProperties(ctx context.Context, a zfs.PropertyChange) error {
	return h.change(ctx, zfs.OpSet, a.Dataset, func(d *zfs.Dataset) {
		for name, value := range a.Set {
			d.Properties[name] = zfs.Property{Value: value, Source: "local"}
		}
		for _, name := range a.Revert {
			delete(d.Properties, name)
		}
	})
}

// Unmount marks a filesystem as not mounted.
func (h *Host) Unmount(ctx context.Context, dataset string) error {
	return h.change(ctx, zfs.OpUnmount, dataset, func(d *zfs.Dataset) { set(d, "mounted", "no") })
}

// Rollback rolls a dataset back to a snapshot.
func (h *Host) Rollback(ctx context.Context, r zfs.Rollback) error {
	return h.do(ctx, zfs.OpRollback, []string{r.Snapshot()}, func() error {
		if err := r.Check(); err != nil {
			return err
		}
		d := h.datasets[r.Dataset]
		if d == nil {
			return fail(zfs.NotFound, zfs.OpRollback, r.Snapshot())
		}
		newer, why := r.Newer(d)
		if why != "" {
			return fault.Refusef("", "%s: %s", r.Dataset, why)
		}
		if d.Get("mounted") == "yes" {
			return fail(zfs.Busy, zfs.OpRollback, r.Snapshot())
		}
		if err := h.destroy(newer); err != nil {
			return err
		}
		h.head[d.Name] = slices.Clip(h.content[r.To.GUID])
		delete(h.late, d.Name)
		set(d, "written", "0")
		return nil
	})
}

// InheritKey makes a dataset inherit its parent's encryption root.
func (h *Host) InheritKey(ctx context.Context, dataset string) error {
	return h.change(ctx, zfs.OpChangeKey, dataset, func(d *zfs.Dataset) {
		set(d, "encryptionroot", h.datasets[zfs.ParentOf(dataset)].Get("encryptionroot"))
	})
}

// MakeEncryptionRoot makes a dataset an encryption root.
func (h *Host) MakeEncryptionRoot(ctx context.Context, dataset string) error {
	return h.change(ctx, zfs.OpChangeKey, dataset, func(d *zfs.Dataset) { set(d, "encryptionroot", dataset) })
}

// InUse returns nothing, because there are no directories.
func (h *Host) InUse(ctx context.Context, paths []string) (map[string]string, error) {
	return nil, h.do(ctx, zfs.OpMount, paths, func() error { return nil })
}

func (h *Host) change(ctx context.Context, op, dataset string, change func(*zfs.Dataset)) error {
	return h.do(ctx, op, []string{dataset}, func() error {
		d := h.datasets[dataset]
		if d == nil {
			return fail(zfs.NotFound, op, dataset)
		}
		change(d)
		return nil
	})
}

// SetFiles assigns a local directory to a snapshot or dataset, as its files.
func (h *Host) SetFiles(name, directory string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files == nil {
		h.files = map[string]string{}
	}
	h.files[name] = directory
}

// MountFiles opens the directory of a snapshot or dataset. If the key is not loaded, it fails
// like ZFS.
func (h *Host) MountFiles(_ context.Context, source string, _ bool) (*os.File, func() error, error) {
	dataset, _, _ := strings.Cut(source, "@")
	h.mu.Lock()
	defer h.mu.Unlock()
	d, directory := h.datasets[dataset], cmp.Or(h.files[source], h.Files)
	switch {
	case d == nil || directory == "":
		return nil, nil, fail(zfs.NotFound, zfs.OpMount, source)
	case d.Get("keystatus") == "unavailable":
		return nil, nil, fail(zfs.KeyMissing, zfs.OpMount, source)
	}
	root, err := os.Open(directory)
	return root, func() error { return root.Close() }, err
}

// LoadKey marks the key of an encryption root as loaded if the key file exists. It ignores the
// contents.
func (h *Host) LoadKey(ctx context.Context, root, file string) error {
	return h.do(ctx, zfs.OpLoadKey, []string{root}, func() error {
		if _, err := os.Stat(file); err != nil {
			return err
		}
		return h.keys(root, "available")
	})
}

// RunDirectory is Run.
func (h *Host) RunDirectory() string { return h.Run }

// UnloadKey marks the key of an encryption root as not loaded.
func (h *Host) UnloadKey(ctx context.Context, root string) error {
	return h.do(ctx, zfs.OpUnloadKey, []string{root}, func() error { return h.keys(root, "unavailable") })
}

// keys sets the key status of all datasets of an encryption root.
func (h *Host) keys(root, state string) error {
	if h.datasets[root] == nil {
		return fail(zfs.NotFound, zfs.OpLoadKey, root)
	}
	for _, d := range h.datasets {
		if d.Get("encryptionroot") == root {
			set(d, "keystatus", state)
		}
	}
	return nil
}
