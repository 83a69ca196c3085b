package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// takeSnapshots takes them all in one transaction, and looks again. Where ZFS
// refuses that, datasets that can be snapshotted are, in as few as it takes.
func (w *work) takeSnapshots(ctx context.Context) error {
	names := replicate.Decide(w.view()).Snapshots
	if len(names) == 0 {
		return nil
	}
	first := w.snapshot(ctx, names)
	if w.run.Snapshots = len(names) - len(w.unsnapped); w.run.Snapshots > 0 {
		w.Log(fmt.Sprintf("%s: took @%s of %s", w.job.Name, w.scope.Naming().At(w.run.Started), english.Plural(w.run.Snapshots, "dataset", "")))
		if err := w.listActive(ctx); err != nil {
			return err
		}
	}
	if first == nil {
		return nil
	}
	if w.run.Snapshots > 0 {
		w.note("the snapshots were taken in several transactions: not all could be taken in one")
		for name, err := range w.unsnapped {
			if w.listing.Find(name) == nil && errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
				delete(w.unsnapped, name) // it was destroyed meanwhile
			}
		}
	}
	if len(w.unsnapped) == 0 {
		return nil
	}
	return fmt.Errorf("no snapshot could be taken of %s: %w", english.Plural(len(w.unsnapped), "dataset", ""), first)
}

// snapshot takes snapshots, by halves where they cannot be taken at once, and
// returns the first reason why one was not.
func (w *work) snapshot(ctx context.Context, names []string) error {
	err := replicate.InKeys(w.sourceHost().Do(ctx, func(st site.Site) error { return st.Snapshot(ctx, names) }))
	if err == nil {
		return nil
	}
	if len(names) > 1 && ofOne(err) {
		half := len(names) / 2
		return cmp.Or(w.snapshot(ctx, names[:half]), w.snapshot(ctx, names[half:]))
	}
	for _, n := range names {
		dataset, _, _ := strings.Cut(n, "@")
		w.unsnapped[dataset] = err
	}
	return err
}

// ofOne tells whether a failure to take snapshots may be one dataset's alone:
// it is gone, has its limit of snapshots reached, is not delegated, or has a name
// that is too long for the template.
func ofOne(err error) bool {
	for _, k := range []zfs.Kind{zfs.NotFound, zfs.NoSpace, zfs.Permission, zfs.Exists, zfs.Busy, zfs.InvalidName} {
		if errors.Is(err, &zfs.Error{Kind: k}) {
			return true
		}
	}
	return false
}
