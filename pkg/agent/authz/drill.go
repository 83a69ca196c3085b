package authz

import (
	"context"
	"errors"

	"zxfer/pkg/zfs"
)

// CreateDrillClone clones what may be drilled, to be read only, so often and no more.
func CreateDrillClone(_ context.Context, g *Guard, a *zfs.DrillClone) error {
	if a.Writable {
		return errors.New("a clone for this key is only read")
	}
	if a.KeyFile != "" {
		return errKeyFile
	}
	a.Among = g.policy.Drilled
	return g.snapshots([]string{a.Snapshot}, g.policy.Drilled, "drill")
}

// DestroyDrillClones destroys clones of it that were made so: the host tells which are.
func DestroyDrillClones(_ context.Context, g *Guard, a *zfs.DrillClones) error {
	if len(a.Datasets) == 0 {
		return errors.New("it names no dataset")
	}
	for _, d := range a.Datasets {
		if !below(d, g.policy.Drilled) {
			return outside(d)
		}
	}
	return nil
}

// origin is the dataset that a clone was made of for a drill; "" where the name is of
// none of what may be drilled.
func (g *Guard) origin(ctx context.Context, clone string) (string, error) {
	if !zfs.IsDrillClone(clone) {
		return "", nil
	}
	found, err := g.site.Properties(ctx, []string{clone}, []string{"origin", zfs.AsideProperty})
	if err != nil {
		return "", err
	}
	dataset, _, err := zfs.ParseSnapshot(found[clone]["origin"].Value)
	if err != nil || !found[clone][zfs.AsideProperty].Local() || !below(dataset, g.policy.Drilled) {
		return "", nil //nolint:nilerr // what is no clone has no origin
	}
	return dataset, nil
}

// Cloned tells of a clone.
func Cloned(a *zfs.DrillClone) Account { return Account{each: []string{quote(a.Snapshot)}} }

// Clones tells of what has clones that go.
func Clones(a *zfs.DrillClones) Account { return Account{each: quoted(a.Datasets)} }
