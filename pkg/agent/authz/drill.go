package authz

import (
	"context"
	"errors"

	"zxfer/pkg/zfs"
)

// CreateDrillClone permits read-only clones of datasets granted for drills. The host limits
// their number.
func CreateDrillClone(_ context.Context, g *Guard, a *zfs.DrillClone) error {
	if a.Writable {
		return errors.New("a clone for this key is only read")
	}
	if a.KeyFile != "" {
		return errKeyFile
	}
	a.Among = g.policy.Drilled
	return g.checkSnapshots([]string{a.Snapshot}, g.policy.Drilled, "drill")
}

// DestroyDrillClones permits destroying the drill clones of granted datasets. The host
// determines which clones these are.
func DestroyDrillClones(_ context.Context, g *Guard, a *zfs.DrillClones) error {
	if len(a.Datasets) == 0 {
		return errors.New("it names no dataset")
	}
	for _, d := range a.Datasets {
		if !within(d, g.policy.Drilled) {
			return errOutside(d)
		}
	}
	return nil
}

// drillOrigin returns the dataset of which a drill clone was made, or "" if the name is not a
// drill clone of a granted dataset.
func (g *Guard) drillOrigin(ctx context.Context, clone string) (string, error) {
	if !zfs.IsDrillClone(clone) {
		return "", nil
	}
	found, err := g.host.Properties(ctx, []string{clone}, []string{"origin", zfs.AsideProperty})
	if err != nil {
		return "", err
	}
	dataset, _, err := zfs.ParseSnapshot(found[clone]["origin"].Value)
	if err != nil || !found[clone][zfs.AsideProperty].Local() || !within(dataset, g.policy.Drilled) {
		return "", nil //nolint:nilerr // not a clone
	}
	return dataset, nil
}

// DrillSnapshotName returns the Account of a drill clone.
func DrillSnapshotName(a *zfs.DrillClone) Account { return Account{items: []string{quote(a.Snapshot)}} }

// DrillDatasetNames returns the Account of datasets whose drill clones are destroyed.
func DrillDatasetNames(a *zfs.DrillClones) Account { return Account{items: quoted(a.Datasets)} }
