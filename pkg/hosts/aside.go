package hosts

import (
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/zfs"
)

// CreateDrillClone makes a clone.
func (l *Local) CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return l.tools.CreateDrillClone(ctx, a)
}

// RunInDrillClone runs a command in a clone.
func (l *Local) RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (r zfs.DrillResult, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	unload, err := l.useKey(ctx, a.Clone, a.KeyFile)
	if err != nil {
		return r, err
	}
	r, err = l.tools.RunInDrillClone(ctx, a)
	return r, errors.Join(err, unload())
}

// CheckDrillClone refuses the name of what is no clone of what was asked for.
func CheckDrillClone(a zfs.DrillClone, clone *string) error {
	if _, err := zfs.ParseDataset(*clone); err != nil {
		return err
	}
	if !zfs.IsDrillClone(*clone) || zfs.PoolOf(*clone) != zfs.PoolOf(a.Snapshot) {
		return fmt.Errorf("the clone of %s was said to be %q", a.Snapshot, cut(*clone))
	}
	return nil
}

// CheckDrillResult refuses more than a command may say.
func CheckDrillResult(_ zfs.DrillCommand, r *zfs.DrillResult) error {
	if len(r.Output) > zfs.MaxDrillOutput || len(r.Failure) > zfs.MaxDrillOutput {
		return fmt.Errorf("a command said %d bytes", len(r.Output)+len(r.Failure))
	}
	return plausible(r, shown)
}
