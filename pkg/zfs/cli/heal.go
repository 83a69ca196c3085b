package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Pools looks after pools.
type Pools interface {
	// Damage reads the list of permanent errors of a pool.
	Damage(ctx context.Context, pool string) (zfs.Damage, error)
	// Scrub begins a scrub.
	Scrub(ctx context.Context, pool string) error
	// Revert makes a dataset what it was at a snapshot.
	Revert(ctx context.Context, snapshot string) error
	// Sync writes out a pool's open transaction group.
	Sync(ctx context.Context, pool string) error
}

var _ Pools = (*CLI)(nil)

// Damage reads the list of permanent errors of a pool.
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

// Scrub begins a scrub.
func (c *CLI) Scrub(ctx context.Context, pool string) error {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return err
	}
	_, err := c.output(ctx, zfs.Failure{Op: zfs.OpScrub, Subject: pool}, c.zpool, zfs.ScrubArgs(pool))
	return err
}

// Revert makes a dataset what it was at a snapshot. It refuses to lose anything but
// snapshots that were healed through. What was written before one of these is in it
// alone, so that only what nobody writes to is reverted.
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

// correctable refuses corrective receives that take the kernel down, seen with
// 2.3.9. Into a snapshot that somebody has mounted, or whose device is open, one
// fails an assertion in the thread that syncs the pool; into one of a clone it
// follows a null pointer. And where the list of errors is not in memory, it waits
// for itself on a host of one processor: reading the list first sees to that.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (dsl_dataset_own_obj_force in dmu_recv_begin_sync, corrective_read_done)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/zfs_ioctl.c (zfs_destroy_unmount_origin)
func (c *CLI) correctable(ctx context.Context, r zfs.ReceiveSpec) error {
	if len(r.Arrival.Snapshots) != 1 {
		return errors.New("a corrective receive is into one snapshot")
	}
	p, err := c.Properties(ctx, []string{r.Target}, []string{"origin", "snapdev"})
	if err != nil {
		return err
	}
	switch of := p[r.Target]; {
	case of == nil:
		return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpReceive, Subject: r.Target, Detail: "dataset does not exist"}
	case of["origin"].Value != "-" && of["origin"].Value != "":
		return fault.Refusef("", "%s is a clone: a corrective receive into one crashes the kernel (OpenZFS 2.2 to 2.4)", r.Target)
	case of["snapdev"].Value == "visible":
		return fault.Refusef("zfs set snapdev=hidden "+zfs.CommandLine([]string{r.Target}),
			"%s has snapdev=visible: a corrective receive into a snapshot whose device is open crashes the kernel (OpenZFS 2.2 to 2.4)", r.Target)
	}
	snapshot := r.Target + "@" + r.Arrival.Snapshots[0].Name
	if at := mountedAt(snapshot); at != "" {
		return &zfs.Error{Kind: zfs.Busy, Op: zfs.OpReceive, Subject: snapshot, Detail: "is mounted at " + at,
			Hint: "umount " + zfs.CommandLine([]string{at})}
	}
	_, err = c.Damage(ctx, zfs.PoolOf(r.Target))
	return err
}

// mountedAt is where any process sees a snapshot mounted, "" where none does.
func mountedAt(snapshot string) string {
	files, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	seen := map[string]bool{}
	for _, file := range files {
		namespace, _ := os.Readlink(filepath.Join(filepath.Dir(file), "ns/mnt"))
		if seen[namespace] && namespace != "" {
			continue
		}
		seen[namespace] = true
		text, _ := os.ReadFile(file) // nothing where it just ended
		for _, m := range zfs.ParseMounts(string(text), zfs.PoolOf(snapshot)) {
			if m.Of == snapshot {
				return m.At
			}
		}
	}
	return ""
}
