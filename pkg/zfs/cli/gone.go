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

// DestroyOrphans destroys copies of which the original is gone, each only if it is what it was
// said to be, with nothing below it and nothing in it that is another's. It is not
// recursive: what comes meanwhile stops it.
func (c *CLI) DestroyOrphans(ctx context.Context, all []zfs.Orphan) error {
	for _, g := range all {
		if err := c.removeGone(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (c *CLI) removeGone(ctx context.Context, g zfs.Orphan) error {
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
	if why == "" { // its snapshots go first: what is in use would only lose these
		why, err = c.usedBy(ctx, d)
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
	// From here on what is cut off is known by the mark.
	if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpSet, Subject: g.Dataset, Properties: []string{zfs.OrphanProperty}},
		[]string{"set", zfs.OrphanProperty + "=" + g.Tag, g.Dataset}); err != nil {
		return err
	}
	err = c.Release(ctx, g.Tag, tagged)
	if err == nil {
		err = c.Destroy(ctx, tagged)
	}
	if err != nil {
		return errors.Join(err, c.keepGone(ctx, g, tagged))
	}
	return except(c.change(ctx, zfs.OpDestroy, g.Dataset, "destroy"), zfs.NotFound)
}

// keepGone undoes the mark of a copy whose removal failed: it holds the snapshots again,
// by which the copy is known, and then removes the mark. If none of these snapshots is
// left, the mark stays, as nothing else says whose copy it is.
func (c *CLI) keepGone(ctx context.Context, g zfs.Orphan, tagged []string) error {
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

// usedBy tells who has a volume open, or where a filesystem is mounted, in whatever
// namespace; "" where nobody can be seen.
func (c *CLI) usedBy(ctx context.Context, d *zfs.Dataset) (string, error) {
	if d.Type == zfs.Volume {
		device := zfs.DeviceOf(d.Name)
		used, err := c.InUse(ctx, []string{device})
		if why := used[device]; why != "" {
			return "it " + why, err
		}
		return "", err
	}
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo") // only a pattern that is none fails
	seen := map[string]bool{}
	for _, table := range tables {
		namespace, err := os.Readlink(filepath.Dir(table) + "/ns/mnt")
		if err == nil && seen[namespace] {
			continue
		}
		seen[namespace] = err == nil
		text, _ := os.ReadFile(table) // it may have ended
		if at := mountOf(string(text), d.Name); at != "" {
			return fmt.Sprintf("it is mounted at %s, where process %s can see it", at, filepath.Base(filepath.Dir(table))), nil
		}
	}
	return "", nil
}

// mountOf is where a table as of proc_pid_mountinfo(5) has a filesystem mounted, "" for
// nowhere.
func mountOf(mountinfo, dataset string) string {
	name := strings.ReplaceAll(dataset, " ", `\040`)
	for line := range strings.Lines(mountinfo) {
		head, tail, _ := strings.Cut(line, " - ")
		kind, at := strings.Fields(tail), strings.Fields(head)
		if len(kind) > 1 && len(at) > 4 && kind[0] == "zfs" && kind[1] == name {
			return at[4]
		}
	}
	return ""
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
