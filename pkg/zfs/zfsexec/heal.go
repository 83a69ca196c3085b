package zfsexec

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Pools looks after pools.
type Pools interface {
	// Damage reads the list of permanent errors of a pool.
	Damage(ctx context.Context, pool string) (zfs.Damage, error)
	// Scrub begins a scrub.
	Scrub(ctx context.Context, pool string, errorsOnly bool) error
}

var _ Pools = (*CLI)(nil)

// Damage reads the list of permanent errors of a pool.
func (c *CLI) Damage(ctx context.Context, pool string) (zfs.Damage, error) {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return zfs.Damage{}, err
	}
	mounted, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpList, Subject: pool}, zfs.MountedArgs(pool))
	if err != nil {
		return zfs.Damage{}, err
	}
	out, err := c.output(ctx, zfs.Failure{Op: zfs.OpStatus, Subject: pool}, c.zpool, zfs.StatusArgs(pool))
	if err != nil {
		return zfs.Damage{}, err
	}
	return zfs.ParseDamage(out, zfs.ParseMounted(mounted)), nil
}

// Scrub begins a scrub.
func (c *CLI) Scrub(ctx context.Context, pool string, errorsOnly bool) error {
	if _, err := zfs.ParseDataset(pool); err != nil {
		return err
	}
	_, err := c.output(ctx, zfs.Failure{Op: zfs.OpScrub, Subject: pool}, c.zpool, zfs.ScrubArgs(pool, errorsOnly))
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
		f, err := os.Open(file)
		if err != nil {
			continue // it just ended
		}
		lines := bufio.NewScanner(f)
		at := ""
		for at == "" && lines.Scan() {
			before, after, _ := strings.Cut(lines.Text(), " - ")
			kind, place := strings.Fields(after), strings.Fields(before)
			if len(kind) > 1 && len(place) > 4 && kind[0] == "zfs" && strings.ReplaceAll(kind[1], `\040`, " ") == snapshot {
				at = place[4]
			}
		}
		f.Close()
		if at != "" {
			return at
		}
	}
	return ""
}
