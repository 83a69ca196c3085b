package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// GroupVersions sorts versions into snapshot names by dataset and full bookmark names. For any other
// name it returns a usage error, so that nothing else can be destroyed.
func GroupVersions(versions []string) (snapshots map[string][]string, bookmarks []string, err error) {
	snapshots = map[string][]string{}
	for _, name := range versions {
		ds, v, err := zfs.ParseVersion(name)
		if err != nil {
			return nil, nil, fmt.Errorf("only snapshots and bookmarks can be destroyed: %w", err)
		}
		if v.Kind == zfs.Bookmark {
			bookmarks = append(bookmarks, name)
		} else {
			snapshots[ds] = append(snapshots[ds], v.Name)
		}
	}
	return snapshots, bookmarks, nil
}

// Destroy destroys snapshots by dataset, and bookmarks one by one. If one fails, it continues with
// the others.
func (c *CLI) Destroy(ctx context.Context, versions []string) error {
	snapshots, bookmarks, err := GroupVersions(versions)
	if err != nil {
		return err
	}
	var errs []error
	destroy := func(subject, target string) error {
		_, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpDestroy, Subject: subject}, []string{"destroy", target})
		return ignore(err, zfs.NotFound)
	}
	for _, ds := range slices.Sorted(maps.Keys(snapshots)) {
		for names := range chunks(snapshots[ds], min(maxArg, c.maxArgv())-len(ds)-len("@")) {
			subject := ds
			if len(names) == 1 {
				subject += "@" + names[0]
			}
			errs = append(errs, splitBusy(destroy(subject, ds+"@"+strings.Join(names, ",")), ds, names))
		}
	}
	for _, b := range bookmarks {
		errs = append(errs, destroy(b, b))
	}
	return errors.Join(errs...)
}

// splitBusy splits the error of a command that destroys several snapshots into one error for each
// busy snapshot. zfs names them and then destroys none.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_dataset.c (zfs_destroy_snaps_nvl)
func splitBusy(err error, dataset string, names []string) error {
	var e *zfs.Error
	if len(names) < 2 || !errors.As(err, &e) || e.Kind != zfs.Busy {
		return err
	}
	var errs []error
	for _, n := range names {
		full := dataset + "@" + n
		for line := range strings.Lines(e.Detail) {
			if strings.HasPrefix(line, "cannot destroy snapshot "+full+": ") || strings.HasPrefix(line, "cannot destroy '"+full+"': ") {
				one := zfs.Failure{Op: e.Op, Subject: full, Argv: e.Argv, Stderr: line}.Err()
				one.Host = e.Host
				errs = append(errs, one)
			}
		}
	}
	if len(errs) == 0 {
		return err
	}
	return errors.Join(errs...)
}

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
	l, err := c.List(ctx, zfs.ListQuery{Dataset: g.Dataset, Recursive: true, Versions: true, NoAncestors: true})
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
		return fault.Refusef("", "%s is kept: %s", g.Dataset, why)
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
	l, err := c.List(ctx, zfs.ListQuery{Dataset: g.Dataset, Versions: true, NoAncestors: true})
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
	if at, process := mountedAt(d.Name); at != "" {
		return fmt.Sprintf("it is mounted at %s, visible to process %s", at, process), nil
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

// Rollback destroys the newer snapshots and bookmarks that the request names, and then rolls the
// dataset back. It does not use zfs rollback -r, because that would also destroy versions that were
// created after the plan. If there are such versions, it changes nothing. Repeating the request
// completes an interrupted rollback.
func (c *CLI) Rollback(ctx context.Context, r zfs.Rollback) error {
	if err := r.Check(); err != nil {
		return err
	}
	l, err := c.List(ctx, zfs.ListQuery{Dataset: r.Dataset, Versions: true, NoAncestors: true})
	if err != nil {
		return err
	}
	d := l.Find(r.Dataset)
	if d == nil {
		return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpRollback, Subject: r.Snapshot(), Detail: "dataset does not exist"}
	}
	newer, why := r.Newer(d)
	if why != "" {
		return fault.Refusef("run the same command again, to list the losses", "%s is not rolled back to @%s: %s", r.Dataset, r.To.Name, why)
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
	l, err := c.List(ctx, zfs.ListQuery{Dataset: dataset, Versions: true, NoAncestors: true})
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
			return fault.Refusef("", "%s is not rolled back to @%s: it has the newer %s", dataset, name, v.Short())
		}
	}
	if p[dataset]["readonly"].Value != "on" {
		return fault.Refusef("", "%s is not rolled back to @%s: it is not read-only, and writes would be lost", dataset, name)
	}
	if p[dataset]["written"].Value != "0" {
		return fault.Refusef("", "%s is not rolled back to @%s: it was modified since", dataset, name)
	}
	_, err = c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpRollback, Subject: snapshot}, []string{"rollback", "-r", snapshot})
	return err
}
