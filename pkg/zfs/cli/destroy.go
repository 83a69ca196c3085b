package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// ByDataset sorts versions into snapshot names by dataset and full bookmark names. For any other
// name it returns a usage error, so that nothing else can be destroyed.
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

// Destroy destroys snapshots by dataset, and bookmarks one by one. If one fails, it continues with
// the others.
func (c *CLI) Destroy(ctx context.Context, versions []string) error {
	snapshots, bookmarks, err := ByDataset(versions)
	if err != nil {
		return err
	}
	var errs []error
	destroy := func(subject, target string) error {
		_, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpDestroy, Subject: subject}, []string{"destroy", target})
		return ignore(err, zfs.NotFound)
	}
	for _, ds := range slices.Sorted(maps.Keys(snapshots)) {
		for names := range chunks(snapshots[ds], maxArg-len(ds)-len("@")) {
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
