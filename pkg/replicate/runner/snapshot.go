package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// snapshots is the result of taking snapshots.
type snapshots struct {
	count  int
	frozen []statedir.Frozen
	// missed has the errors of the datasets without their snapshot, and err sums them up.
	missed map[string]error
	err    error
	// unfrozen joins the errors of snapshots that were taken without the required freeze.
	unfrozen error
}

// taking takes the snapshots of a run.
type taking struct {
	p   *pass
	out snapshots
	// query lists the source with the snapshots. listed is the answer of the first transaction, nil = none.
	query  hosts.ListQuery
	listed *zfs.Listing
}

// takeSnapshots takes all due snapshots in one transaction and lists them. If ZFS refuses, it uses
// several transactions, as few as possible. It returns the survey with the snapshots.
func takeSnapshots(ctx context.Context, p *pass, v *decision.Survey) (*decision.Survey, snapshots) {
	due := v.DueSnapshots()
	t := &taking{p: p, out: snapshots{missed: map[string]error{}}}
	if len(due.Names) == 0 {
		return v, t.out
	}
	if t.out.err = t.recordUnmatched(due.Unmatched, due.Names); t.out.err != nil {
		return v, t.out
	}
	names, restoring := t.excludeRestoring(v, due.Names)
	var first, destroyed error
	if len(names) > 0 {
		taken := p.s.Activity("taking snapshots of %s", english.Plural(len(names), "dataset", ""))
		t.query, _ = relistQuery(p.s, v) // a dataset with a due snapshot is not known to be unchanged
		first = t.take(ctx, names, due.Frozen, true)
		taken()
	}
	if errors.Is(first, errNotFrozen) && len(t.out.missed) == len(due.Names) {
		t.out.err = first
		return v, t.out
	}
	if t.out.count = len(due.Names) - len(t.out.missed); t.out.count > 0 {
		p.journal.Log("took @%s of %s", p.s.Scope.Naming().At(v.Started), english.Plural(t.out.count, "dataset", ""))
		now, err := t.relist(ctx, v)
		if err != nil {
			t.out.err = err
			return v, t.out
		}
		v, destroyed = now, t.findMissing(now, names)
		if first != nil {
			p.journal.Note("the snapshots were taken in several transactions, because one was not possible")
			maps.DeleteFunc(t.out.missed, func(name string, err error) bool {
				return v.Source.Find(name) == nil && errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) // destroyed meanwhile
			})
		}
	}
	if n := len(t.out.missed); n > 0 {
		t.out.err = fmt.Errorf("cannot take a snapshot of %s: %w", english.Plural(n, "dataset", ""), cmp.Or(first, destroyed, restoring))
	}
	return v, t.out
}

// relist returns the survey with the new snapshots.
func (t *taking) relist(ctx context.Context, v *decision.Survey) (*decision.Survey, error) {
	if t.listed == nil {
		return relist(ctx, t.p.s, v)
	}
	return withListing(ctx, t.p.s, v, &t.query, t.listed)
}

// findMissing adds the datasets without their new snapshot to missed, and returns the first error. An
// empty run would look successful.
func (t *taking) findMissing(v *decision.Survey, names []string) (first error) {
	for _, full := range names {
		dataset, _, _ := strings.Cut(full, "@")
		if v.Source.Find(dataset) == nil || t.out.missed[dataset] != nil || hasSnapshot(v.Source, full) {
			continue
		}
		t.out.missed[dataset] = fault.Failf("to find what destroyed it: "+v.SourceAt.Command("zpool", "history", "-il", zfs.PoolOf(dataset)),
			"this run took %s, but it does not exist", full)
		first = cmp.Or(first, t.out.missed[dataset])
	}
	return first
}

// hasSnapshot reports whether a listing has a snapshot.
func hasSnapshot(l *zfs.Listing, full string) bool {
	dataset, name, _ := strings.Cut(full, "@")
	d := l.Find(dataset)
	return d != nil && slices.ContainsFunc(d.Versions, func(x zfs.Version) bool { return x.Kind == zfs.Snapshot && x.Name == name })
}

// excludeRestoring excludes datasets that a restore is receiving, because a snapshot would block the
// next stream.
func (t *taking) excludeRestoring(v *decision.Survey, names []string) (others []string, err error) {
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
		t.out.missed[dataset] = fault.Failf("wait until it ends; if it was interrupted, run the same zxfer restore again", "a restore of %s is running", dataset)
		err = cmp.Or(err, t.out.missed[dataset])
	}
	return others, err
}

// take takes snapshots with applications frozen. If one transaction fails, it bisects. It returns the first
// error. If the first transaction of the run succeeds without a freeze, its answer has the listing.
func (t *taking) take(ctx context.Context, names []string, frozen []freeze.Application, first bool) error {
	err := replicate.InKeys(t.together(ctx, names, frozen, first))
	if err == nil {
		return nil
	}
	if len(names) > 1 && maybeOneDataset(err) {
		if a, b := bisect(names, frozen); len(b) > 0 {
			err := t.take(ctx, a, frozenIn(a, frozen), false)
			return cmp.Or(err, t.take(ctx, b, frozenIn(b, frozen), false)) // both
		}
		if !slices.ContainsFunc(frozen, func(z freeze.Application) bool { return z.Required }) {
			for i := range frozen {
				t.recordFreeze(&frozen[i], freeze.Outcome{Error: fmt.Sprintf("its snapshots could not be taken in one transaction: %v", err)}, names)
			}
			return t.take(ctx, names, nil, false)
		}
	}
	for _, n := range names {
		dataset, _, _ := strings.Cut(n, "@")
		t.out.missed[dataset] = err
	}
	return err
}

// maybeOneDataset reports whether a snapshot error may concern only one dataset: it is missing, has reached
// its snapshot limit, is not delegated, or its name is too long.
func maybeOneDataset(err error) bool {
	return slices.ContainsFunc([]zfs.Kind{zfs.NotFound, zfs.NoSpace, zfs.Permission, zfs.Exists, zfs.Busy, zfs.InvalidName},
		func(k zfs.Kind) bool { return errors.Is(err, &zfs.Error{Kind: k}) })
}

// together takes snapshots in one transaction.
func (t *taking) together(ctx context.Context, names []string, frozen []freeze.Application, first bool) error {
	source := t.p.s.Source.Host
	if len(frozen) > 0 {
		return t.takeFrozen(ctx, names, frozen)
	}
	if !first {
		return t.afterLoss(ctx, names, hosts.Run(ctx, source, hosts.OpSnapshot, names))
	}
	list := hosts.ChangeList{Changes: []hosts.Change{hosts.OpSnapshot.Change(names)}, List: &t.query}
	found, err := hosts.Call(ctx, source, hosts.OpApply, list)
	if err == nil {
		t.listed = &found
	}
	if hosts.Done(err) == len(list.Changes) {
		return nil // only the listing failed
	}
	return t.afterLoss(ctx, names, err)
}

// afterLoss returns the result of a transaction that ended with err. If the connection was lost, the snapshots may
// exist. afterLoss takes those that do not.
func (t *taking) afterLoss(ctx context.Context, names []string, err error) error {
	if !errors.Is(err, hosts.ErrLost) {
		return err
	}
	missing, unknown := t.missing(ctx, names)
	if unknown != nil || len(missing) == 0 {
		return unknown
	}
	err = hosts.Run(ctx, t.p.s.Source.Host, hosts.OpSnapshot, missing)
	if !errors.Is(err, &zfs.Error{Kind: zfs.Exists}) && !errors.Is(err, hosts.ErrLost) {
		return err
	}
	if missing, unknown = t.missing(ctx, missing); unknown != nil || len(missing) == 0 { // the first one was still in progress
		return unknown
	}
	return err
}

// missing returns the snapshots that do not exist on the source.
func (t *taking) missing(ctx context.Context, names []string) (missing []string, err error) {
	found, err := hosts.Call(ctx, t.p.s.Source, hosts.OpList, t.query)
	for _, full := range names {
		if !hasSnapshot(&found, full) {
			missing = append(missing, full)
		}
	}
	return missing, err
}
