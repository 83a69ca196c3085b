package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// DestroyOrphans destroys copies whose source was deleted. It destroys a copy only if it is the
// requested one and has no descendants and no data of others. It is not recursive, so a child that
// is created at the same time stops it.
func (c *CLI) DestroyOrphans(ctx context.Context, all []zfs.Orphan) error {
	for _, g := range all {
		if err := c.destroyOrphan(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (c *CLI) destroyOrphan(ctx context.Context, g zfs.Orphan) error {
	if err := g.Check(); err != nil {
		return err
	}
	l, err := c.List(ctx, zfs.ListQuery{Dataset: g.Dataset, Recursive: true, Versions: true, Alone: true})
	if err != nil {
		return err
	}
	d := l.Find(g.Dataset)
	if d == nil {
		return nil
	}
	own, err := c.Properties(ctx, []string{g.Dataset}, []string{"mounted", zfs.OrphanProperty})
	if err != nil {
		return err
	}
	for name, p := range own[g.Dataset] {
		d.Properties[name] = p
	}
	var names []string
	for _, s := range d.Snapshots() {
		names = append(names, s.In(d.Name))
	}
	held, err := c.holdsAndClones(ctx, names)
	if err != nil {
		return err
	}
	why := g.RefusalReason(&l, held)
	if why == "" { // snapshots are destroyed first, and a dataset in use would lose only these
		why, err = c.userOf(ctx, d)
	}
	if err != nil {
		return err
	}
	if why != "" {
		return fault.Refusef("", "%s stays: %s", g.Dataset, why)
	}
	var tagged, others []string
	for _, n := range names {
		if slices.Contains(held[n].Tags, g.Tag) {
			tagged = append(tagged, n)
		} else {
			others = append(others, n)
		}
	}
	if err := c.Destroy(ctx, others); err != nil {
		return err
	}
	// From here on, the property identifies a partly destroyed copy.
	if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpSet, Subject: g.Dataset, Properties: []string{zfs.OrphanProperty}},
		[]string{"set", zfs.OrphanProperty + "=" + g.Tag, g.Dataset}); err != nil {
		return err
	}
	err = c.Release(ctx, g.Tag, tagged)
	if err == nil {
		err = c.Destroy(ctx, tagged)
	}
	if err != nil {
		return errors.Join(err, c.unmarkOrphan(ctx, g, tagged))
	}
	return ignore(c.change(ctx, zfs.OpDestroy, g.Dataset, "destroy"), zfs.NotFound)
}

// unmarkOrphan undoes the property of a copy that could not be destroyed. It first holds the
// snapshots again that identify the copy. If none of them is left, it keeps the property, because
// nothing else identifies the copy.
func (c *CLI) unmarkOrphan(ctx context.Context, g zfs.Orphan, tagged []string) error {
	l, err := c.List(ctx, zfs.ListQuery{Dataset: g.Dataset, Versions: true, Alone: true})
	if err != nil {
		return err
	}
	var left []string
	for _, d := range l.Datasets {
		for _, s := range d.Snapshots() {
			if name := s.In(d.Name); d.Name == g.Dataset && slices.Contains(tagged, name) {
				left = append(left, name)
			}
		}
	}
	if len(left) == 0 {
		return nil
	}
	held, err := c.Holds(ctx, left)
	if err != nil {
		return err
	}
	bare := slices.DeleteFunc(slices.Clone(left), func(n string) bool { return slices.Contains(held[n], g.Tag) })
	if len(bare) > 0 {
		if err := c.Hold(ctx, g.Tag, bare); err != nil {
			return err
		}
	}
	return c.change(ctx, zfs.OpInherit, g.Dataset, "inherit", zfs.OrphanProperty)
}

// userOf returns who has a volume open or where a filesystem is mounted, in any namespace. It
// returns "" if nothing is visible.
func (c *CLI) userOf(ctx context.Context, d *zfs.Dataset) (string, error) {
	if d.Type == zfs.Volume {
		device := zfs.DeviceOf(d.Name)
		used, err := c.InUse(ctx, []string{device})
		if why := used[device]; why != "" {
			return "it " + why, err
		}
		return "", err
	}
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo") // a valid pattern never fails
	seen := map[string]bool{}
	for _, table := range tables {
		namespace, err := os.Readlink(filepath.Dir(table) + "/ns/mnt")
		if err == nil && seen[namespace] {
			continue
		}
		seen[namespace] = err == nil
		text, _ := os.ReadFile(table) // the process may have ended
		if at := mountOf(string(text), d.Name); at != "" {
			return fmt.Sprintf("it is mounted at %s, where process %s can see it", at, filepath.Base(filepath.Dir(table))), nil
		}
	}
	return "", nil
}

func (c *CLI) holdsAndClones(ctx context.Context, snapshots []string) (map[string]zfs.SnapshotRefs, error) {
	out := map[string]zfs.SnapshotRefs{}
	if len(snapshots) == 0 {
		return out, nil
	}
	tags, err := c.Holds(ctx, snapshots)
	if err != nil {
		return nil, err
	}
	found, err := c.Properties(ctx, snapshots, []string{"clones"})
	for _, n := range snapshots {
		of := zfs.SnapshotRefs{Tags: tags[n]}
		if clones := strings.Trim(found[n]["clones"].Value, "-"); clones != "" {
			of.Clones = strings.Split(clones, ",")
		}
		out[n] = of
	}
	return out, err
}
