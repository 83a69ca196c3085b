package zfsexec

import (
	"context"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// RemoveGone destroys copies of which the original is gone, each only if it is what it was
// said to be, with nothing below it and nothing in it that is another's. It is not
// recursive: what comes meanwhile stops it.
func (c *CLI) RemoveGone(ctx context.Context, all []zfs.Gone) error {
	for _, g := range all {
		if err := c.removeGone(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (c *CLI) removeGone(ctx context.Context, g zfs.Gone) error {
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
	own, err := c.Properties(ctx, []string{g.Dataset}, []string{"mounted", zfs.GoneProperty})
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
	if why := g.Leaves(&l, held); why != "" {
		return fault.Refusef("", "%s stays: %s", g.Dataset, why)
	}
	// From here on what is cut off is known by the mark.
	if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpSet, Subject: g.Dataset, Properties: []string{zfs.GoneProperty}},
		[]string{"set", zfs.GoneProperty + "=" + g.Tag, g.Dataset}); err != nil {
		return err
	}
	var tagged []string
	for _, n := range names {
		if slices.Contains(held[n].Tags, g.Tag) {
			tagged = append(tagged, n)
		}
	}
	if err := c.Release(ctx, g.Tag, tagged); err != nil {
		return err
	}
	if err := c.Destroy(ctx, names); err != nil {
		return err
	}
	return except(c.change(ctx, zfs.OpDestroy, g.Dataset, "destroy"), zfs.NotFound)
}

func (c *CLI) holdsAndClones(ctx context.Context, snapshots []string) (map[string]zfs.Holds, error) {
	out := map[string]zfs.Holds{}
	if len(snapshots) == 0 {
		return out, nil
	}
	tags, err := c.Holds(ctx, snapshots)
	if err != nil {
		return nil, err
	}
	found, err := c.Properties(ctx, snapshots, []string{"clones"})
	for _, n := range snapshots {
		of := zfs.Holds{Tags: tags[n]}
		if clones := strings.Trim(found[n]["clones"].Value, "-"); clones != "" {
			of.Clones = strings.Split(clones, ",")
		}
		out[n] = of
	}
	return out, err
}
