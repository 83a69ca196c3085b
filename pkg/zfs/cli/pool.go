package cli

import (
	"context"
	"os"

	"zxfer/pkg/zfs"
)

// Pools reads and repairs pools.
type Pools interface {
	// Damage returns the permanent errors of a pool.
	Damage(ctx context.Context, pool string) (zfs.Damage, error)
	// Scrub starts a scrub.
	Scrub(ctx context.Context, pool string) error
	// Revert rolls a dataset back to a snapshot.
	Revert(ctx context.Context, snapshot string) error
	// Sync writes out a pool's open transaction group.
	Sync(ctx context.Context, pool string) error
}

var _ Pools = (*CLI)(nil)

func (c *CLI) Damage(ctx context.Context, pool string) (zfs.Damage, error) {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return zfs.Damage{}, err
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return zfs.Damage{}, err
	}
	out, stderr, err := c.outputs(ctx, zfs.Failure{Op: zfs.OpStatus, Subject: pool}, c.zpool, zfs.StatusArgs(pool))
	if err != nil {
		return zfs.Damage{}, err
	}
	d := zfs.ParseDamage(out, zfs.ParseMounts(string(mountinfo), pool))
	if d.Unlisted {
		d.Reason = zfs.UnlistedReason(stderr)
	}
	return d, nil
}

func (c *CLI) Scrub(ctx context.Context, pool string) error {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return err
	}
	_, err := c.output(ctx, zfs.Failure{Op: zfs.OpScrub, Subject: pool}, c.zpool, zfs.ScrubArgs(pool))
	return err
}

// Sync writes out a pool's open transaction group, so that properties such as "written" include the
// latest changes.
func (c *CLI) Sync(ctx context.Context, pool string) error {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return err
	}
	_, err := c.output(ctx, zfs.Failure{Op: zfs.OpSync, Subject: pool}, c.zpool, []string{"sync", zfs.PoolOf(pool)})
	return err
}

func (c *CLI) pool(ctx context.Context, pool string) (zfs.Pool, error) {
	out, err := c.output(ctx, zfs.Failure{Op: zfs.OpPool, Subject: pool}, c.zpool, zfs.PoolArgs(pool))
	if err != nil {
		return zfs.Pool{}, err
	}
	return zfs.ParsePool(out)
}
