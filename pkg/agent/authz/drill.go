package authz

import (
	"context"
	"errors"

	"zxfer/pkg/zfs"
)

// mayCreateDrillClone permits read-only clones of datasets granted for drills. The host limits
// their number.
func mayCreateDrillClone(_ context.Context, g *Guard, a *zfs.DrillClone) error {
	if a.Writable {
		return errors.New("this key permits only read-only clones")
	}
	if a.KeyFile != "" {
		return errKeyFile
	}
	a.Among = g.policy.Drilled
	return g.checkSnapshots([]string{a.Snapshot}, g.policy.Drilled, "drill")
}

// mayDestroyDrillClones permits destroying the drill clones of granted datasets. The host
// determines which clones these are.
func mayDestroyDrillClones(_ context.Context, g *Guard, a *zfs.DrillClones) error {
	if len(a.Datasets) == 0 {
		return errors.New("it does not name a dataset")
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
	found, err := g.host.Properties(ctx, []string{clone}, []string{"origin", zfs.DrillCloneProperty})
	if err != nil {
		return "", err
	}
	dataset, _, err := zfs.ParseSnapshot(found[clone]["origin"].Value)
	if err != nil || !found[clone][zfs.DrillCloneProperty].Local() || !within(dataset, g.policy.Drilled) {
		return "", nil //nolint:nilerr // not a clone
	}
	return dataset, nil
}

// drillSnapshotName returns the account of a drill clone.
func drillSnapshotName(a *zfs.DrillClone) account { return account{items: []string{quote(a.Snapshot)}} }

// drillDatasetNames returns the account of datasets whose drill clones are destroyed.
func drillDatasetNames(a *zfs.DrillClones) account { return account{items: quoted(a.Datasets)} }
