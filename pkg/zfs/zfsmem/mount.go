package zfsmem

import (
	"context"
	"strings"

	"zxfer/pkg/zfs"
)

// Mount marks a filesystem as mounted. All directories belong to root.
func (h *Host) Mount(ctx context.Context, m zfs.MountRequest) (string, error) {
	return "", h.change(ctx, zfs.OpMount, m.Dataset, func(d *zfs.Dataset) {
		set(d, "mounted", "yes")
		if m.Boot {
			d.Properties["canmount"] = zfs.Property{Value: "on", Source: "local"}
			delete(d.Properties, zfs.CanMountProperty)
		}
	})
}

// Mountpoints returns the mountpoints of unmounted filesystems with canmount=on.
func (h *Host) Mountpoints(ctx context.Context) (all []zfs.Mountpoint, err error) {
	err = h.do(ctx, zfs.OpList, nil, func() error {
		for name, d := range h.datasets {
			if at := d.Get("mountpoint"); strings.HasPrefix(at, "/") && d.Get("canmount") == "on" && d.Get("mounted") != "yes" {
				all = append(all, zfs.Mountpoint{Dataset: name, At: at})
			}
		}
		return nil
	})
	return all, err
}
