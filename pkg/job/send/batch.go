package send

import (
	"context"
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Batch is a request to send many datasets to one target. A conflict stops only its dataset and
// the dependents.
type Batch struct {
	Request Request
	// Survey is the source listing, reduced to the wanted datasets. With DryRun it may have
	// simulated snapshots. Several batches may share it; RunBatch does not modify it.
	Survey zfs.Listing
	// Copies, if not empty, limits the target listing to these datasets: the copies that Survey's
	// datasets already have. If one is missing or inconsistent, the whole target is listed.
	Copies []string
	// Newest lists only the most recent snapshot of each target dataset, and full histories only
	// as far as the plan and identification need them. Result.Target is as limited.
	Newest bool
	// Review, if not nil, is called with the plan before any change. It may refuse datasets and
	// edit existing conflicts.
	Review func(*plan.Plan, plan.State)
	// Renames are renames of target datasets that precede the batch. With DryRun they have not
	// happened, and the plan assumes them.
	Renames []zfs.RenamedCopy
	// BeforeMove, if not nil, is called with the plan before anything changes. Its error ends the batch. It is
	// not called with DryRun.
	BeforeMove func(context.Context, *plan.Plan) error
}

// BatchResult is the result of a Batch.
type BatchResult struct {
	Report   *Report
	Datasets []*DatasetResult // every dataset that had something to send or was refused
	// Target is the target listing after the batch, or the one before if nothing was sent or
	// listing failed.
	Target zfs.Listing
}

// RunBatch runs a Batch, or only plans it with DryRun. An error concerns the whole target. Before
// the move, it means that nothing was sent. Failures of single datasets appear only in their
// results.
func RunBatch(ctx context.Context, b Batch, at *hosts.Set, rep Reporter) (*BatchResult, error) {
	t := New(b.Request, at, rep)
	res := &BatchResult{Report: t.Report}
	perDataset := &admission{}
	if b.Review != nil {
		perDataset.review = func(p *plan.Plan) { b.Review(p, t.State) }
	}
	err := t.Prepare(ctx, &Rules{perDataset: perDataset, Survey: func(ctx context.Context) (plan.State, error) {
		return surveyBatch(ctx, t.Ends, &b)
	}})
	res.Target = t.State.Target
	if err != nil {
		return res, err
	}
	planned := expectedResults(t.Report.Plan)
	res.Datasets = append(perDataset.refused, planned...)
	if b.Request.DryRun {
		return res, nil
	}
	if b.BeforeMove != nil {
		if err := b.BeforeMove(ctx, t.Report.Plan); err != nil {
			return res, err
		}
	}
	failed := t.move(ctx)
	t.joinKeys(ctx, failed)
	if t.Report.Plan.Steps() > 0 {
		defer rep.Activity("verifying snapshots on " + t.Ends.Target.Conn.Label())()
		if err := t.Retry(ctx, func(ctx context.Context) error {
			after, err := listAfter(ctx, t.Ends, &b, t.Report.Plan, t.State.Target.Root)
			if err == nil { // on error the listing from before remains valid
				res.Target = after
			}
			return err
		}); err != nil {
			for _, d := range planned {
				d.Err = failed[d.Source] // the listing cannot change these
			}
			return res, fmt.Errorf("verify: %w", err)
		}
	}
	_ = t.fillResults(planned, &res.Target, failed) // each result holds its error
	if len(b.Copies) > 0 {
		return res, nil // only these were listed
	}
	return res, unplannedError(t.Ends.Target.Conn, t.Report.Plan, &t.State.Target, &res.Target)
}

// surveyBatch lists the target of a batch and completes the state for planning.
func surveyBatch(ctx context.Context, e *ends.Ends, b *Batch) (state plan.State, err error) {
	target, err := plan.TargetName(b.Request.Plan.Source, b.Request.Plan.Target)
	if err != nil {
		return state, err
	}
	state = plan.State{Source: b.Survey, SourceHost: e.Source.Conn.Label(), TargetHost: e.Target.Conn.Label(), SourceAt: e.Source.Conn.At(), TargetAt: e.Target.Conn.At()}
	if state.Target, err = listTarget(ctx, e, b, nil, target); err != nil {
		return state, ends.MissingPool(e.Target.Conn, target, err)
	}
	if b.Request.DryRun {
		state.Target = plan.SimulateRenames(state.Target, b.Renames)
	}
	if len(b.Copies) > 0 && plan.NeedKeyDependents(b.Request.Plan, state) {
		all := *b
		all.Copies = nil
		if state.Target, err = listTarget(ctx, e, &all, nil, target); err != nil {
			return state, err
		}
	}
	if b.Request.Plan.Carries().All {
		if state.Source, err = localProperties(ctx, &e.Source, state.Source); err != nil {
			return state, err
		}
	}
	return state, surveySource(ctx, e, b.Request.Plan, &state)
}

// listAfter lists the target after a batch. If ctx has ended, it still tries for 30 seconds, so
// that the report is accurate.
func listAfter(ctx context.Context, e *ends.Ends, b *Batch, p *plan.Plan, target string) (zfs.Listing, error) {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
	}
	return listTarget(ctx, e, b, p, target)
}

// listTarget lists the copies of a batch. If they are unknown, incomplete or inconsistent, it
// lists the whole target. After a move (after is not nil), it skips the pool, and lists full
// histories unless Newest is set.
func listTarget(ctx context.Context, e *ends.Ends, b *Batch, after *plan.Plan, target string) (zfs.Listing, error) {
	q := hosts.ListQuery{Dataset: target, Recursive: b.Request.Plan.Recursive, Versions: true, Changed: true, NoAncestors: after != nil}
	q.Newest = b.Newest
	some := q
	some.Only = b.Copies
	l, err := e.Target.Conn.List(ctx, some)
	broken := func(d *zfs.Dataset) bool { return d.Inconsistent() }
	if err == nil && len(b.Copies) > 0 && (len(l.Datasets) != len(b.Copies) || slices.ContainsFunc(l.Datasets, broken)) {
		l, err = e.Target.Conn.List(ctx, q)
	}
	if err != nil || !q.Newest {
		return l, err
	}
	return l, listHistories(ctx, e, &l, unidentified(&l, &b.Survey, after))
}

// unidentified returns the target datasets whose most recent snapshot does not identify them: it
// is unknown to the source, or differs from the planned one.
func unidentified(l, source *zfs.Listing, after *plan.Plan) (names []string) {
	known, arrived := map[uint64]bool{}, map[string]uint64{}
	for _, d := range source.Datasets {
		for _, v := range d.Versions {
			known[v.GUID] = true
		}
	}
	if after != nil {
		for _, d := range after.Datasets {
			arrived[d.Target] = d.Final.GUID
		}
	}
	for _, d := range l.Datasets {
		v, any := d.Latest()
		if to, planned := arrived[d.Name]; any && (!known[v.GUID] || planned && v.GUID != to) {
			names = append(names, d.Name)
		}
	}
	return names
}

// NeededByResume returns the GUIDs of the snapshots that interrupted receives of a target still need on
// the source.
func NeededByResume(l *zfs.Listing) map[uint64]bool {
	need := map[uint64]bool{}
	for _, d := range l.Datasets {
		if d.ResumeToken() == "" {
			continue
		}
		if t, err := zfs.ParseToken(d.ResumeToken()); err == nil { // an invalid token needs no snapshot
			need[t.ToGUID] = true
			need[t.FromGUID] = true
		}
	}
	return need
}
