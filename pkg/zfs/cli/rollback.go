package cli

import (
	"context"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Rollback destroys the newer snapshots and bookmarks that the request names, and then rolls the
// dataset back. It does not use zfs rollback -r, because that would also destroy versions that were
// created after the plan. If there are such versions, it changes nothing. Repeating the request
// completes an interrupted rollback.
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

// Revert rolls a dataset back to a snapshot. It refuses to destroy newer snapshots other than those
// for healing. Only they hold data that was written before them, so the dataset must also be
// read-only and unchanged.
func (c *CLI) Revert(ctx context.Context, snapshot string) error {
	dataset, name, err := zfs.ParseSnapshot(snapshot)
	if err != nil {
		return err
	}
	l, err := c.List(ctx, zfs.ListQuery{Dataset: dataset, Versions: true, Alone: true})
	if err != nil {
		return err
	}
	p, err := c.Properties(ctx, []string{dataset}, []string{"written", "readonly"})
	if err != nil {
		return err
	}
	d := l.Find(dataset)
	at := -1
	if d != nil {
		at = slices.IndexFunc(d.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Snapshot && v.Name == name })
	}
	if at < 0 {
		return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpRollback, Subject: snapshot, Detail: "dataset does not exist"}
	}
	for _, v := range d.Versions[at+1:] {
		if !strings.HasPrefix(v.Name, zfs.HealPrefix) {
			return fault.Refusef("", "%s is not rolled back to @%s: it has %s, which is newer", dataset, name, v.Short())
		}
	}
	if p[dataset]["readonly"].Value != "on" {
		return fault.Refusef("", "%s is not rolled back to @%s: it is not read-only, and what was written to it would be lost", dataset, name)
	}
	if p[dataset]["written"].Value != "0" {
		return fault.Refusef("", "%s is not rolled back to @%s: it was written to since", dataset, name)
	}
	_, err = c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpRollback, Subject: snapshot}, []string{"rollback", "-r", snapshot})
	return err
}
