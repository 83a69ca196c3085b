package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// takeSnapshots takes all due snapshots in one transaction and lists them. If ZFS refuses, it uses
// several transactions, as few as possible. missed has the errors of the datasets without a
// snapshot.
func (w *jobRun) takeSnapshots(ctx context.Context, v *replicate.Survey) (now *replicate.Survey, missed map[string]error, err error) {
	due := v.DueSnapshots()
	all := due.Names
	missed = map[string]error{}
	if len(all) == 0 {
		return v, missed, nil
	}
	if err := w.recordUnmatched(due.Unmatched, all); err != nil {
		return v, missed, err
	}
	names, restoring := excludeRestoring(v, all, missed)
	var first, destroyed error
	next := w.newRelisting(v)
	if len(names) > 0 {
		taken := w.session.Activity("taking snapshots of %s", english.Plural(len(names), "dataset", ""))
		first = w.snapshot(ctx, names, due.Frozen, missed, next)
		taken()
	}
	if errors.Is(first, errNotFrozen) && len(missed) == len(all) {
		return v, missed, first
	}
	if w.run.Snapshots = len(all) - len(missed); w.run.Snapshots > 0 {
		w.Env.Log(fmt.Sprintf("%s: took @%s of %s", w.session.Job.Name, w.session.Scope.Naming().At(v.Started), english.Plural(w.run.Snapshots, "dataset", "")))
		now, err := next.finish(ctx)
		if err != nil {
			return v, missed, err
		}
		v = now
		destroyed = findMissing(v, names, missed)
	}
	if first != nil && w.run.Snapshots > 0 {
		w.note("the snapshots were taken in several transactions, because one was not possible")
		for name, err := range missed {
			if v.Source.Find(name) == nil && errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
				delete(missed, name) // destroyed meanwhile
			}
		}
	}
	if len(missed) == 0 {
		return v, missed, nil
	}
	return v, missed, fmt.Errorf("cannot take a snapshot of %s: %w", english.Plural(len(missed), "dataset", ""), cmp.Or(first, destroyed, restoring))
}

// findMissing adds to missed the datasets of v without their new snapshot, and returns the first error. An
// empty run would look successful.
func findMissing(v *replicate.Survey, names []string, missed map[string]error) (first error) {
	for _, full := range names {
		dataset, name, _ := strings.Cut(full, "@")
		d := v.Source.Find(dataset)
		if d == nil || missed[dataset] != nil || slices.ContainsFunc(d.Versions, func(x zfs.Version) bool { return x.Kind == zfs.Snapshot && x.Name == name }) {
			continue
		}
		missed[dataset] = fault.Failf("to find what destroyed it: "+v.SourceAt.Command("zpool", "history", "-il", zfs.PoolOf(dataset)),
			"this run took %s, but it does not exist", full)
		first = cmp.Or(first, missed[dataset])
	}
	return first
}

// excludeRestoring excludes datasets that a restore is receiving, because a snapshot would block the
// next stream.
func excludeRestoring(v *replicate.Survey, names []string, missed map[string]error) (others []string, err error) {
	arriving := map[string]bool{}
	for _, d := range v.Source.Datasets {
		arriving[d.Name] = d.Properties[zfs.RestoreProperty].Local()
	}
	for _, n := range names {
		dataset, _, _ := strings.Cut(n, "@")
		if !arriving[dataset] {
			others = append(others, n)
			continue
		}
		missed[dataset] = fault.Failf("wait until it ends; if it was interrupted, run the same zxfer restore again", "a restore of %s is running", dataset)
		err = cmp.Or(err, missed[dataset])
	}
	return others, err
}

// snapshot takes snapshots with applications frozen. If one transaction fails, it bisects. It
// returns the first error. If the first transaction succeeds, next follows it; nil = none.
func (w *jobRun) snapshot(ctx context.Context, names []string, frozen []freeze.Application, missed map[string]error, next *relisting) error {
	err := replicate.InKeys(w.snapshotAtOnce(ctx, names, frozen, next))
	if err == nil {
		return nil
	}
	if len(names) > 1 && maybeOneDataset(err) {
		if first, second := bisect(names, frozen); len(second) > 0 {
			return cmp.Or(w.snapshot(ctx, first, frozenIn(first, frozen), missed, nil), w.snapshot(ctx, second, frozenIn(second, frozen), missed, nil))
		}
		if !slices.ContainsFunc(frozen, func(z freeze.Application) bool { return z.Required }) {
			for i := range frozen {
				w.recordFreeze(&frozen[i], freeze.Outcome{Error: fmt.Sprintf("its snapshots could not be taken in one transaction: %v", err)}, names)
			}
			return w.snapshot(ctx, names, nil, missed, nil)
		}
	}
	for _, n := range names {
		dataset, _, _ := strings.Cut(n, "@")
		missed[dataset] = err
	}
	return err
}

// maybeOneDataset reports whether a snapshot error may concern only one dataset: it is missing, has reached
// its snapshot limit, is not delegated, or its name is too long.
func maybeOneDataset(err error) bool {
	return slices.ContainsFunc([]zfs.Kind{zfs.NotFound, zfs.NoSpace, zfs.Permission, zfs.Exists, zfs.Busy, zfs.InvalidName},
		func(k zfs.Kind) bool { return errors.Is(err, &zfs.Error{Kind: k}) })
}
