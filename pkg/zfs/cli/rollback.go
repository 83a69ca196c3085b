package cli

import (
	"context"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Rollback makes a dataset again what it was at one of its snapshots. It destroys the newer
// snapshots and bookmarks that the request names, by name: zfs rollback -r would also destroy
// versions that were made after the plan. If the dataset has such a version, nothing is changed. Killed
// between both steps, it leaves a dataset that the same request completes.
func (c *CLI) Rollback(ctx context.Context, r zfs.Rollback) error {
	if err := r.Check(); err != nil {
		return err
	}
	l, err := c.List(ctx, zfs.ListQuery{Dataset: r.Dataset, Versions: true, Alone: true})
	if err != nil {
		return err
	}
	d := l.Find(r.Dataset)
	if d == nil {
		return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpRollback, Subject: r.Snapshot(), Detail: "dataset does not exist"}
	}
	newer, why := r.Newer(d)
	if why != "" {
		return fault.Refusef("the same command plans again, and lists what would be lost", "%s is not rolled back to @%s: %s", r.Dataset, r.To.Name, why)
	}
	if err := c.Destroy(ctx, newer); err != nil {
		return err
	}
	_, err = c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpRollback, Subject: r.Snapshot()}, []string{"rollback", r.Snapshot()})
	return err
}

// Sync has a pool write out its open transaction group, so that properties such as "written"
// include the last changes.
func (c *CLI) Sync(ctx context.Context, pool string) error {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return err
	}
	_, err := c.output(ctx, zfs.Failure{Op: zfs.OpSync, Subject: pool}, c.zpool, []string{"sync", zfs.PoolOf(pool)})
	return err
}
