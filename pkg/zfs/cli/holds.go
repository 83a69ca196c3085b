package cli

import (
	"context"
	"errors"
	"maps"
	"strconv"

	"zxfer/pkg/zfs"
)

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
	for batch := range chunks(snapshots, maxArgv) {
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
	for batch := range chunks(snapshots, maxArgv) {
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
