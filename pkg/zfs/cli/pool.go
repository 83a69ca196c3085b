package cli

import (
	"context"
	"errors"
	"os"

	"zxfer/pkg/zfs"
)

// Pools reads and repairs pools.
type Pools interface {
	// Damage returns the permanent errors of a pool.
	Damage(ctx context.Context, pool string) (zfs.Damage, error)
	// Scrub starts a scrub of the dataset's pool.
	Scrub(ctx context.Context, dataset string) error
	// Revert rolls a dataset back to a snapshot.
	Revert(ctx context.Context, snapshot string) error
	// Sync writes out the open transaction group of the dataset's pool.
	Sync(ctx context.Context, dataset string) error
	// FindPools lists imported and attached pools.
	FindPools(ctx context.Context, q zfs.PoolQuery) (zfs.FoundPools, error)
	// ImportPool imports a pool.
	ImportPool(ctx context.Context, i zfs.PoolImport) error
	// ExportPool exports a pool that ImportPool has imported, and no other.
	ExportPool(ctx context.Context, e zfs.PoolExport) error
}

var _ Pools = (*CLI)(nil)

// Damage returns the permanent errors of a pool. On another host, it does not know mountpoints.
func (c *CLI) Damage(ctx context.Context, pool string) (zfs.Damage, error) {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return zfs.Damage{}, err
	}
	var mountinfo []byte
	if c.remote == nil {
		var err error
		if mountinfo, err = os.ReadFile("/proc/self/mountinfo"); err != nil {
			return zfs.Damage{}, err
		}
	}
	out, stderr, err := c.outputs(ctx, zfs.Failure{Op: zfs.OpStatus, Subject: pool}, c.zpool, zfs.StatusArgs(pool))
	if err != nil {
		return zfs.Damage{}, err
	}
	d := zfs.ParseDamage(out, zfs.ParseMounts(string(mountinfo), pool))
	switch {
	case d.Unlisted:
		d.Reason = zfs.UnlistedReason(stderr)
	case c.remote != nil:
		d.NoBlocks = "zxfer does not run on the host"
	case len(d.Objects) > 0:
		if d.Blocks, err = damagedBlocks(ctx, pool); err != nil {
			d.NoBlocks = err.Error()
		}
	}
	return d, nil
}

func (c *CLI) Scrub(ctx context.Context, dataset string) error {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return err
	}
	pool := zfs.PoolOf(dataset)
	_, err := c.output(ctx, zfs.Failure{Op: zfs.OpScrub, Subject: pool}, c.zpool, zfs.ScrubArgs(pool))
	return err
}

// Sync makes properties such as "written" include the latest changes.
func (c *CLI) Sync(ctx context.Context, dataset string) error {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return err
	}
	pool := zfs.PoolOf(dataset)
	_, err := c.output(ctx, zfs.Failure{Op: zfs.OpSync, Subject: pool}, c.zpool, []string{"sync", pool})
	return err
}

// pool returns the properties and features of a pool. If the host does not permit zpool(8), they are
// unknown.
func (c *CLI) pool(ctx context.Context, pool string) (zfs.Pool, error) {
	if c.remote != nil && c.remote.Limits().NoZpool {
		return zfs.Pool{Name: pool}, nil
	}
	f, clones := zfs.Failure{Op: zfs.OpPool, Subject: pool}, !c.noClones.Load()
	out, err := c.output(ctx, f, c.zpool, zfs.PoolArgs(pool, clones))
	if clones && errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) {
		c.noClones.Store(true)
		out, err = c.output(ctx, f, c.zpool, zfs.PoolArgs(pool, false))
	}
	if err != nil {
		return zfs.Pool{}, err
	}
	return zfs.ParsePool(out)
}
