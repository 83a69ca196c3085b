package zfsmem

import (
	"context"
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
			h.rename(a.Dataset, a.As)
		}
		return nil
	})
}

// rename renames a dataset and its descendants.
func (h *Host) rename(from, to string) {
	for _, d := range h.datasets {
		if origin := d.Get("origin"); strings.HasPrefix(origin, from+"@") || strings.HasPrefix(origin, from+"/") {
			set(d, "origin", to+strings.TrimPrefix(origin, from))
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
