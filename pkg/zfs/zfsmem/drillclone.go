package zfsmem

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// CreateDrillClone creates a drill clone and returns its name.
func (h *Host) CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error) {
	return query(ctx, h, zfs.OpClone, []string{a.Snapshot}, func() (string, error) {
		of, i := h.find(a.Snapshot)
		if i < 0 {
			return "", fail(zfs.NotFound, zfs.OpClone, a.Snapshot)
		}
		h.guid++
		name := zfs.DrillCloneName(zfs.PoolOf(of.Name), fmt.Sprint(h.guid))
		clone := h.create(name, of.Type, map[string]string{zfs.AsideProperty: a.Job})
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
			if zfs.IsDrillClone(d.Name) && d.Get(zfs.AsideProperty) == a.Job && slices.Contains(a.Datasets, origin) {
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
