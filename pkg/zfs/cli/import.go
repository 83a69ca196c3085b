package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// statistics is the directory of the kernel's statistics of pools. Reading them takes no lock of
// the pool.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/spa_stats.c (spa_state_data)
const statistics = "/proc/spl/kstat/zfs"

// FindPools lists imported and attached pools.
func (c *CLI) FindPools(ctx context.Context, q zfs.PoolQuery) (f zfs.FoundPools, err error) {
	if q.Pool != "" {
		if found, ok := statisticsOf(q.Pool); ok {
			f.Imported = append(f.Imported, found...)
			return f, nil
		}
	}
	out, err := c.output(ctx, zfs.Failure{Op: zfs.OpPool}, c.zpool, zfs.FindImportedArgs())
	if err != nil {
		return f, err
	}
	if f.Imported, err = zfs.ParseImported(out, c.RunDirectory()); err != nil {
		return f, err
	}
	if q.Pool != "" {
		f.Imported = slices.DeleteFunc(f.Imported, func(p zfs.ImportedPool) bool { return p.Name != q.Pool })
	}
	if q.Pool != "" || len(q.Directories) == 0 {
		return f, nil
	}
	existing, err := existingDirectories(q.Directories)
	if err != nil || len(existing) == 0 {
		return f, err
	}
	out, err = c.output(ctx, zfs.Failure{Op: zfs.OpImport}, c.zpool, zfs.FindAttachedArgs(existing))
	var failed *zfs.Error
	if errors.As(err, &failed) && strings.Contains(failed.Detail, zfs.NoAttached) {
		err = nil
	}
	f.Attached = zfs.ParseAttached(out)
	return f, err
}

// statisticsOf returns a pool by the kernel's statistics. ok is false if they are missing, as before
// OpenZFS 2.1 or in a container.
func statisticsOf(pool string) (found []zfs.ImportedPool, ok bool) {
	if _, err := zfs.ParseDataset(pool); err != nil || strings.Contains(pool, "/") {
		return nil, false
	}
	if _, err := os.Stat(filepath.Join(statistics, "arcstats")); err != nil {
		return nil, false
	}
	health, err := os.ReadFile(filepath.Join(statistics, pool, "state"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, true
	}
	text, errGUID := os.ReadFile(filepath.Join(statistics, pool, "guid"))
	guid, errNumber := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if errors.Join(err, errGUID, errNumber) != nil {
		return nil, false
	}
	return []zfs.ImportedPool{{Name: pool, GUID: guid, Health: strings.TrimSpace(string(health))}}, true
}

// existingDirectories returns the directories that exist. A directory of links such as /dev/disk/by-id
// is missing if no device has one.
func existingDirectories(all []string) (existing []string, err error) {
	for _, d := range all {
		info, err := os.Stat(d)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err
		case !info.IsDir():
			return nil, fmt.Errorf("%s is not a directory", d)
		default:
			existing = append(existing, d)
		}
	}
	return existing, nil
}

// ImportPool imports a pool. It never forces an import: ZFS refuses a pool that another host may
// use.
func (c *CLI) ImportPool(ctx context.Context, i zfs.PoolImport) error {
	existing, err := existingDirectories(i.Directories)
	if err != nil {
		return err
	}
	i.Directories = existing
	root := zfs.PoolRoot(c.RunDirectory(), i.GUID)
	for _, dir := range []string{c.RunDirectory(), filepath.Dir(root)} { // only root may enter a mount below it
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if info, err := os.Lstat(filepath.Dir(root)); err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fault.Refusef(remedy.Mark(remedy.Command("rmdir", filepath.Dir(root))), "%s is not a directory of root alone", filepath.Dir(root))
	}
	if err := makeFile(root); err != nil {
		return err
	}
	f := zfs.Failure{Op: zfs.OpImport, Subject: strconv.FormatUint(i.GUID, 10)}
	_, err = c.output(ctx, f, c.zpool, i.Args(c.RunDirectory()))
	var failed *zfs.Error
	if errors.As(err, &failed) && zfs.UsedByOtherHost(failed.Detail) {
		return fault.Refusef("export it on the other host: zpool export POOL", "another host may use the pool: %w", err)
	}
	return err
}

// makeFile creates an empty file, in place of an empty directory of an earlier version. As the alternate root of a
// pool, it makes each zfs mount of the pool fail. A directory would not: an absolute link in one filesystem of the pool
// leads the mount of another one out of it.
func makeFile(name string) error {
	info, err := os.Lstat(name)
	switch {
	case err == nil && info.Mode().IsRegular():
		return nil
	case err == nil:
		if err := os.Remove(name); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
	if err != nil {
		return err
	}
	return f.Close()
}

// ExportPool exports a pool that ImportPool has imported. It refuses other pools, and those with a
// mounted dataset, because zpool export would unmount it. It never forces an export.
func (c *CLI) ExportPool(ctx context.Context, e zfs.PoolExport) error {
	found, err := c.FindPools(ctx, zfs.PoolQuery{})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(found.Imported, func(p zfs.ImportedPool) bool { return p.GUID == e.GUID })
	if i < 0 {
		return nil
	}
	pool := found.Imported[i].Name
	if !found.Imported[i].Owned {
		return fault.Refusef(remedy.Mark(remedy.Command("zpool", "export", pool)), "pool %s: zxfer did not import it, and does not export it", pool)
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if mounts := zfs.ParseMounts(string(mountinfo), pool); len(mounts) > 0 {
		return fault.Failf(remedy.Mark(remedy.Command("zfs", "unmount", mounts[0].Of))+"\n"+remedy.Mark(remedy.Command("zpool", "export", pool)),
			"pool %s is in use: %s is mounted at %s", pool, mounts[0].Of, mounts[0].At)
	}
	_, err = c.output(ctx, zfs.Failure{Op: zfs.OpExport, Subject: pool}, c.zpool, zfs.ExportArgs(pool))
	return err
}
