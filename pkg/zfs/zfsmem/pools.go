package zfsmem

import (
	"context"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// disk is a pool that may be detached. Without a disk, a pool is always imported.
type disk struct {
	name     string
	guid     uint64
	attached bool
	degraded bool   // a device is missing
	health   string // of the imported pool, "" = not imported
	owned    bool   // imported by ImportPool
	readOnly bool
	// of the pool while it is not imported
	datasets map[string]*zfs.Dataset
	head     map[string][]write
	partial  map[string]*partial
}

// AddDisk adds a detached disk with an empty pool. Several disks may have pools with the same name.
func (h *Host) AddDisk(pool string, guid uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	root := h.create(pool, zfs.Filesystem, nil)
	delete(h.datasets, pool)
	if h.disks == nil {
		h.disks = map[uint64]*disk{}
	}
	h.disks[guid] = &disk{name: pool, guid: guid, datasets: map[string]*zfs.Dataset{pool: root}}
}

// Attach attaches or detaches a disk. If its pool is imported, detaching suspends the pool and
// attaching clears it.
func (h *Host) Attach(guid uint64, attached bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.disks[guid]
	d.attached = attached
	switch {
	case d.health == "":
	case attached:
		d.health = zfs.PoolOnline
	default:
		d.health = zfs.PoolSuspended
	}
}

// Degrade removes a device of a pool that is not imported, or adds it again.
func (h *Host) Degrade(guid uint64, degraded bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.disks[guid].degraded = degraded
}

// Import imports the pool of a disk as an administrator does.
func (h *Host) Import(guid uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.importPool(guid)
}

func (h *Host) importPool(guid uint64) error {
	d := h.disks[guid]
	if d == nil || !d.attached || d.health != "" {
		return fail(zfs.NotFound, zfs.OpImport, "pool")
	}
	if h.datasets[d.name] != nil {
		return fail(zfs.Exists, zfs.OpImport, d.name)
	}
	maps.Copy(h.datasets, d.datasets)
	maps.Copy(h.head, d.head)
	maps.Copy(h.partial, d.partial)
	d.health, d.owned, d.readOnly = zfs.PoolOnline, false, false
	return nil
}

// FindPools lists the pools of disks.
func (h *Host) FindPools(ctx context.Context, q zfs.PoolQuery) (zfs.FoundPools, error) {
	return query(ctx, h, zfs.OpPool, nil, func() (f zfs.FoundPools, err error) {
		for _, guid := range slices.Sorted(maps.Keys(h.disks)) {
			d := h.disks[guid]
			switch {
			case d.health != "" && (q.Pool == "" || q.Pool == d.name):
				f.Imported = append(f.Imported, zfs.ImportedPool{Name: d.name, GUID: guid, Health: d.health, Owned: d.owned, ReadOnly: d.readOnly})
			case d.health == "" && d.attached && len(q.Directories) > 0:
				state := zfs.PoolOnline
				if d.degraded {
					state = "DEGRADED"
				}
				f.Attached = append(f.Attached, zfs.AttachedPool{Name: d.name, GUID: guid, State: state})
			}
		}
		return f, nil
	})
}

// ImportPool imports the pool of a disk.
func (h *Host) ImportPool(ctx context.Context, i zfs.PoolImport) error {
	return h.do(ctx, zfs.OpImport, nil, func() error {
		err := h.importPool(i.GUID)
		if err == nil {
			h.disks[i.GUID].owned, h.disks[i.GUID].readOnly = true, i.ReadOnly
		}
		return err
	})
}

// ExportPool exports the pool of a disk.
func (h *Host) ExportPool(ctx context.Context, e zfs.PoolExport) error {
	return h.do(ctx, zfs.OpExport, nil, func() error {
		d := h.disks[e.GUID]
		switch {
		case d == nil || d.health == "":
			return nil
		case !d.owned:
			return fault.Refusef("zpool export "+d.name, "pool %s: zxfer did not import it", d.name)
		case d.health == zfs.PoolSuspended:
			return fail(zfs.PoolFault, zfs.OpExport, d.name)
		}
		d.datasets, d.head, d.partial = moveOut(h.datasets, d.name), moveOut(h.head, d.name), moveOut(h.partial, d.name)
		d.health = ""
		return nil
	})
}

// moveOut moves the entries of a pool's datasets to a new map.
func moveOut[V any](all map[string]V, pool string) map[string]V {
	out := map[string]V{}
	for name, v := range all {
		if name == pool || strings.HasPrefix(name, pool+"/") {
			out[name] = v
			delete(all, name)
		}
	}
	return out
}
