package site

import (
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/zfs"
)

// CloneAside makes a clone.
func (l *Local) CloneAside(ctx context.Context, a zfs.Aside) (string, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return l.tools.CloneAside(ctx, a)
}

// RunAside runs a command in a clone.
func (l *Local) RunAside(ctx context.Context, a zfs.AsideCommand) (r zfs.AsideResult, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	unload, err := l.useKey(ctx, a.Clone, a.KeyFile)
	if err != nil {
		return r, err
	}
	r, err = l.tools.RunAside(ctx, a)
	return r, errors.Join(err, unload())
}

// CheckAside refuses the name of what is no clone of what was asked for.
func CheckAside(a zfs.Aside, clone *string) error {
	if _, err := zfs.ParseDataset(*clone); err != nil {
		return err
	}
	if !zfs.IsAside(*clone) || zfs.PoolOf(*clone) != zfs.PoolOf(a.Snapshot) {
		return fmt.Errorf("the clone of %s was said to be %q", a.Snapshot, cut(*clone))
	}
	return nil
}

// CheckAsideResult refuses more than a command may say.
func CheckAsideResult(_ zfs.AsideCommand, r *zfs.AsideResult) error {
	if len(r.Output) > zfs.MaxAsideOutput || len(r.Failure) > zfs.MaxAsideOutput {
		return fmt.Errorf("a command said %d bytes", len(r.Output)+len(r.Failure))
	}
	return plausible(r, shown)
}
