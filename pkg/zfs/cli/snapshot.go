package cli

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// CheckSnapshots returns an error unless one transaction can take all snapshots: valid names, one
// pool, and at most one snapshot of each dataset.
func CheckSnapshots(snapshots []string) error {
	seen := map[string]string{}
	for _, s := range snapshots {
		ds, _, err := zfs.ParseSnapshot(s)
		if err != nil {
			return err
		}
		if other, twice := seen[ds]; twice {
			return fault.Usagef("", "snapshot %s: one transaction can take only one snapshot of a dataset, not also %s", s, other)
		}
		if zfs.PoolOf(s) != zfs.PoolOf(snapshots[0]) {
			return fault.Usagef("", "snapshot %s: one transaction covers only one pool, not also %s", s, snapshots[0])
		}
		seen[ds] = s
	}
	return nil
}

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

// Mark sets a user property on snapshots.
func (c *CLI) Mark(ctx context.Context, property, value string, snapshots []string) error {
	if err := errors.Join(zfs.CheckProperty(property), zfs.CheckValue(property, value)); err != nil {
		return err
	}
	for _, s := range snapshots {
		if _, _, err := zfs.ParseSnapshot(s); err != nil {
			return err
		}
	}
	for batch := range chunks(snapshots, c.maxArgv()) {
		f := zfs.Failure{Op: zfs.OpSet, Subject: batch[0], Properties: []string{property}}
		if _, err := c.zfsOutput(ctx, f, append([]string{"set", property + "=" + value}, batch...)); err != nil {
			return err
		}
	}
	return nil
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
			return fault.Usagef("", "bookmark %s: belongs to another dataset than %s", b, s)
		}
	}
	return nil
}

// Bookmark creates the bookmarks one by one, because zfs(8) cannot create several in one call.
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

// SameVersion returns nil if two versions have the same GUID. Otherwise it returns the error
// otherwise, or the error of the query.
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

// CheckHold checks a tag and the names of snapshots.
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

func (c *CLI) Hold(ctx context.Context, tag string, snapshots []string) error {
	return c.hold(ctx, zfs.OpHold, zfs.Exists, tag, snapshots)
}

func (c *CLI) Release(ctx context.Context, tag string, snapshots []string) error {
	return c.hold(ctx, zfs.OpRelease, zfs.NotFound, tag, snapshots)
}

func (c *CLI) hold(ctx context.Context, op string, ignored zfs.Kind, tag string, snapshots []string) error {
	if err := CheckHold(tag, snapshots); err != nil {
		return err
	}
	var errs []error
	for batch := range chunks(snapshots, c.maxArgv()) {
		_, err := c.zfsOutput(ctx, zfs.Failure{Op: op, Subject: batch[0]}, append([]string{op, tag}, batch...))
		errs = append(errs, ignore(err, ignored))
	}
	return errors.Join(errs...)
}

// Holds returns the hold tags of snapshots. It skips missing snapshots.
func (c *CLI) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	all := map[string][]string{}
	for _, s := range snapshots {
		if _, _, err := zfs.ParseSnapshot(s); err != nil {
			return nil, err
		}
	}
	for batch := range chunks(snapshots, c.maxArgv()) {
		f := zfs.Failure{Op: zfs.OpHold, Subject: batch[0]}
		out, err := c.zfsOutput(ctx, f, append([]string{"holds", "-H"}, batch...))
		if err = ignoreMissing(err); err != nil {
			return nil, err
		}
		tags, malformed := zfs.ParseHolds(out)
		held, err := c.Properties(ctx, batch, []string{"userrefs"})
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

// holdsOf queries a single snapshot. Then a tag with unusual characters cannot be mistaken for
// another row.
func (c *CLI) holdsOf(ctx context.Context, snapshot string) ([]string, error) {
	out, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpHold, Subject: snapshot}, []string{"holds", "-H", snapshot})
	if err = ignoreMissing(err); err != nil {
		return nil, err
	}
	return zfs.ParseHoldsOf(snapshot, out)
}
