package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// estimates is how many zfs send -n run at once.
const estimates = 4

// Estimate asks for each stream by itself.
func (c *CLI) Estimate(ctx context.Context, streams []zfs.SendSpec) ([]uint64, error) {
	sizes := make([]uint64, len(streams))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(estimates)
	for i, s := range streams {
		g.Go(func() error {
			args, err := zfs.EstimateArgs(s)
			if err != nil {
				return err
			}
			out, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpEstimate, Subject: s.Dataset + "@" + s.To}, args)
			if err != nil {
				return err
			}
			sizes[i], err = zfs.ParseEstimate(out)
			return err
		})
	}
	return sizes, g.Wait()
}

// CheckSnapshots checks that one transaction can take all the snapshots: the
// names are legal, of one pool, and no two of one dataset.
func CheckSnapshots(snapshots []string) error {
	seen := map[string]string{}
	for _, s := range snapshots {
		ds, _, err := zfs.ParseSnapshot(s)
		if err != nil {
			return err
		}
		if other, twice := seen[ds]; twice {
			return fault.Usagef("", "snapshot %s: one transaction takes one snapshot of a dataset, and %s is wanted too", s, other)
		}
		if zfs.PoolOf(s) != zfs.PoolOf(snapshots[0]) {
			return fault.Usagef("", "snapshot %s: one transaction is of one pool, and %s is wanted too", s, snapshots[0])
		}
		seen[ds] = s
	}
	return nil
}

// Snapshot takes all snapshots in one transaction, or none.
func (c *CLI) Snapshot(ctx context.Context, snapshots []string) error {
	if len(snapshots) == 0 {
		return nil
	}
	if err := CheckSnapshots(snapshots); err != nil {
		return err
	}
	f := zfs.Failure{Op: zfs.OpSnapshot, Subject: snapshots[0]}
	_, err := c.zfsOutput(ctx, f, append([]string{"snapshot"}, snapshots...))
	return err
}

// Mark sets a user property of snapshots.
func (c *CLI) Mark(ctx context.Context, property, value string, snapshots []string) error {
	if err := errors.Join(zfs.CheckProperty(property), zfs.CheckValue(property, value)); err != nil {
		return err
	}
	for _, s := range snapshots {
		if _, _, err := zfs.ParseSnapshot(s); err != nil {
			return err
		}
	}
	for some := range chunks(snapshots, maxArgv) {
		f := zfs.Failure{Op: zfs.OpSet, Subject: some[0], Properties: []string{property}}
		if _, err := c.zfsOutput(ctx, f, append([]string{"set", property + "=" + value}, some...)); err != nil {
			return err
		}
	}
	return nil
}

// CheckHold checks the names of holds.
func CheckHold(tag string, snapshots []string) error {
	if err := zfs.CheckTag(tag); err != nil {
		return err
	}
	for _, s := range snapshots {
		if _, _, err := zfs.ParseSnapshot(s); err != nil {
			return err
		}
	}
	return nil
}

// Hold places a hold on each snapshot.
func (c *CLI) Hold(ctx context.Context, tag string, snapshots []string) error {
	return c.hold(ctx, zfs.OpHold, zfs.Exists, tag, snapshots)
}

// Release removes the holds.
func (c *CLI) Release(ctx context.Context, tag string, snapshots []string) error {
	return c.hold(ctx, zfs.OpRelease, zfs.NotFound, tag, snapshots)
}

// Holds lists the tags of the holds on snapshots; those that are gone are
// left out.
func (c *CLI) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	all := map[string][]string{}
	for _, s := range snapshots {
		if _, _, err := zfs.ParseSnapshot(s); err != nil {
			return nil, err
		}
	}
	for some := range chunks(snapshots, maxArgv) {
		f := zfs.Failure{Op: zfs.OpHold, Subject: some[0]}
		out, err := c.zfsOutput(ctx, f, append([]string{"holds", "-H"}, some...))
		if err = butMissing(err); err != nil {
			return nil, err
		}
		tags, malformed := zfs.ParseHolds(out)
		held, err := c.Properties(ctx, some, []string{"userrefs"})
		if err != nil {
			return nil, err
		}
		for s, props := range held {
			n := props["userrefs"].Value
			if n == "0" {
				continue
			}
			all[s] = tags[s]
			if malformed != nil || strconv.Itoa(len(tags[s])) != n {
				if all[s], err = c.holdsOf(ctx, s); err != nil {
					return nil, err
				}
			}
		}
	}
	maps.DeleteFunc(all, func(_ string, tags []string) bool { return len(tags) == 0 })
	return all, nil
}

// holdsOf asks about one snapshot: what its tags look like is about it alone.
func (c *CLI) holdsOf(ctx context.Context, snapshot string) ([]string, error) {
	out, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpHold, Subject: snapshot}, []string{"holds", "-H", snapshot})
	if err = butMissing(err); err != nil {
		return nil, err
	}
	return zfs.ParseHoldsOf(snapshot, out)
}

func (c *CLI) hold(ctx context.Context, op string, fine zfs.Kind, tag string, snapshots []string) error {
	if err := CheckHold(tag, snapshots); err != nil {
		return err
	}
	var errs []error
	for some := range chunks(snapshots, maxArgv) {
		_, err := c.zfsOutput(ctx, zfs.Failure{Op: op, Subject: some[0]}, append([]string{op, tag}, some...))
		errs = append(errs, except(err, fine))
	}
	return errors.Join(errs...)
}

// CheckBookmarks checks the names of bookmarks and their snapshots.
func CheckBookmarks(bookmarks map[string]string) error {
	for b, s := range bookmarks {
		of, _, err := zfs.ParseBookmark(b)
		if err != nil {
			return err
		}
		ds, _, err := zfs.ParseSnapshot(s)
		if err != nil {
			return err
		}
		if of != ds {
			return fault.Usagef("", "bookmark %s: it is not of the dataset of %s", b, s)
		}
	}
	return nil
}

// Bookmark makes the bookmarks one by one; zfs(8) knows no other way.
func (c *CLI) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	if err := CheckBookmarks(bookmarks); err != nil {
		return err
	}
	var errs []error
	for _, b := range slices.Sorted(maps.Keys(bookmarks)) {
		s := bookmarks[b]
		_, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpBookmark, Subject: b}, []string{"bookmark", s, b})
		if errors.Is(err, &zfs.Error{Kind: zfs.Exists}) {
			err = c.SameVersion(ctx, b, s, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// SameVersion returns nil if two versions have one GUID, else the error
// given, or why it could not be told.
func (c *CLI) SameVersion(ctx context.Context, a, b string, otherwise error) error {
	props, err := c.Properties(ctx, []string{a, b}, []string{"guid"})
	if err != nil {
		return err
	}
	if g := props[a]["guid"].Value; g != "" && g == props[b]["guid"].Value {
		return nil
	}
	return otherwise
}

// ByDataset sorts out what is to be destroyed: snapshot names by dataset, and
// full names of bookmarks. A name that is neither is a usage fault, so that
// nothing else can be destroyed.
func ByDataset(versions []string) (snapshots map[string][]string, bookmarks []string, err error) {
	snapshots = map[string][]string{}
	for _, name := range versions {
		ds, v, err := zfs.ParseVersion(name)
		if err != nil {
			return nil, nil, fmt.Errorf("only snapshots and bookmarks are destroyed: %w", err)
		}
		if v.Kind == zfs.Bookmark {
			bookmarks = append(bookmarks, name)
		} else {
			snapshots[ds] = append(snapshots[ds], v.Name)
		}
	}
	return snapshots, bookmarks, nil
}

// Destroy destroys snapshots, dataset by dataset, and bookmarks, one by one.
// It goes on with the others when one fails.
func (c *CLI) Destroy(ctx context.Context, versions []string) error {
	snapshots, bookmarks, err := ByDataset(versions)
	if err != nil {
		return err
	}
	var errs []error
	destroy := func(subject, target string) error {
		_, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpDestroy, Subject: subject}, []string{"destroy", target})
		return except(err, zfs.NotFound)
	}
	for _, ds := range slices.Sorted(maps.Keys(snapshots)) {
		for names := range chunks(snapshots[ds], maxArg-len(ds)-len("@")) {
			subject := ds
			if len(names) == 1 {
				subject += "@" + names[0]
			}
			errs = append(errs, causeOf(destroy(subject, ds+"@"+strings.Join(names, ",")), ds, names))
		}
	}
	for _, b := range bookmarks {
		errs = append(errs, destroy(b, b))
	}
	return errors.Join(errs...)
}

// causeOf makes of the failure of a command that was to destroy several snapshots
// one for each that is in use: zfs destroys none then, and names them.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_dataset.c (zfs_destroy_snaps_nvl)
func causeOf(err error, dataset string, names []string) error {
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

// CreateParents creates the missing datasets above dataset as filesystems
// that never mount. It looks once, and runs one zfs create for each: -p would
// set the option on the last only.
func (c *CLI) CreateParents(ctx context.Context, dataset string) error {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return err
	}
	above := ancestors(dataset)
	if len(above) < 2 {
		return nil // the pool
	}
	there, err := c.Properties(ctx, above, []string{"type"})
	if err != nil {
		return err
	}
	for _, name := range above[1:] {
		if there[name] != nil {
			continue
		}
		f := zfs.Failure{Op: zfs.OpCreate, Subject: name, Properties: []string{"canmount"}}
		_, err := c.zfsOutput(ctx, f, []string{"create", "-u", "-o", "canmount=off", name})
		if err = except(err, zfs.Exists); err != nil { // a parallel receive made it
			return err
		}
	}
	return nil
}

// DiscardPartial drops the saved state of an interrupted receive; that there
// is none is no error.
func (c *CLI) DiscardPartial(ctx context.Context, dataset string) error {
	return except(c.change(ctx, zfs.OpDiscard, dataset, "receive", "-A"), zfs.NoState)
}

// change runs zfs(8) with words and the name of a dataset.
func (c *CLI) change(ctx context.Context, op, dataset string, words ...string) error {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return err
	}
	_, err := c.zfsOutput(ctx, zfs.Failure{Op: op, Subject: dataset}, append(words, dataset))
	return err
}
