package job

import (
	"context"
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Batch is a request to bring many datasets to one target, each for itself:
// what stands in the way of one stops only that one and those that need it.
type Batch struct {
	Send
	// Survey is the source as it was listed already, with only the datasets
	// that are wanted; with DryRun it may have pretended snapshots. Several batches may share one; it is not changed.
	Survey zfs.Listing
	// Copies, where not empty, are the target's datasets of all in Survey that
	// may be sent, where they have arrived before: only these are listed. If
	// one of them turns out to be gone, the whole target is.
	Copies []string
	// Newest has no more of the target's histories listed than the plan needs, and what
	// tells a dataset of the source from another: Result.Target has the newest snapshot
	// of the others.
	Newest bool
	// Review, where not nil, is shown the plan before anything is changed, to
	// refuse more of it. It may change the conflicts that are there.
	Review func(*plan.Plan, plan.State)
}

// BatchResult is what became of a Batch.
type BatchResult struct {
	Report   *Report
	Datasets []*DatasetResult // of every dataset that has something to send or was refused
	// Target is the target after the batch, as it was before where nothing
	// was sent, or it could not be looked at again.
	Target zfs.Listing
}

// DatasetResult is one dataset's part of a Batch.
type DatasetResult struct {
	Source, Target string
	// Arrive is the snapshot that the target has, or was to have, in the end;
	// There is the same one as the target names it, "" while it lacks it.
	Arrive zfs.Version
	There  string
	Steps  int    // streams that were planned
	Aside  string // the name that the copy before it has since
	Full   int    // of them, those without a base
	Bytes  uint64
	// Seconds is the time that its streams took.
	Seconds float64
	Err     error
	// Conflict is the id of what the plan refused the dataset for, "" where it did not.
	Conflict string
}

// RunBatch moves a Batch, or with DryRun only plans it. The error is of what
// concerned the whole target: nothing was sent then. That a dataset failed is
// in its result only.
func RunBatch(ctx context.Context, b Batch, at *hosts.Set, rep Reporter) (*BatchResult, error) {
	t := newSendJob(b.Send, at, rep)
	res := &BatchResult{Report: t.report}
	apart := &admission{}
	if b.Review != nil {
		apart.review = func(p *plan.Plan) { b.Review(p, t.state) }
	}
	err := t.begin(ctx, &jobRules{apart: apart, survey: func(ctx context.Context) (plan.State, error) {
		return surveyBatch(ctx, t.ends, &b)
	}})
	res.Target = t.state.Target
	if err != nil {
		return res, err
	}
	planned := expectedResults(t.report.Plan)
	res.Datasets = append(apart.refused, planned...)
	if b.DryRun {
		return res, nil
	}
	failed := t.move(ctx)
	t.joinKeys(ctx, failed)
	if t.report.Plan.Steps() > 0 {
		defer rep.Activity("looking at what arrived on " + t.target.Label())()
		if err := t.persist(ctx, func(ctx context.Context) error {
			there, err := lastLook(ctx, t.ends, &b, t.report.Plan, t.state.Target.Root)
			if err == nil { // what was there before counts where nobody can tell
				res.Target = there
			}
			return err
		}); err != nil {
			for _, d := range planned {
				d.Err = failed[d.Source] // which no look changes
			}
			return res, fmt.Errorf("verify: %w", err)
		}
	}
	_ = t.check(planned, &res.Target, failed) // each has its own
	if len(b.Copies) > 0 {
		return res, nil // nothing else was looked at
	}
	return res, unplanned(t.target.Label(), t.report.Plan, &t.state.Target, &res.Target)
}

// surveyBatch lists the target of a batch.
func surveyBatch(ctx context.Context, e *ends, b *Batch) (state plan.State, err error) {
	target, err := plan.TargetName(b.Plan.Source, b.Plan.Target)
	if err != nil {
		return state, err
	}
	state = plan.State{Source: b.Survey, SourceHost: e.source.Label(), TargetHost: e.target.Label(), SameHost: e.sameHost()}
	if state.Target, err = listTarget(ctx, e, b, nil, target); err != nil {
		return state, MissingPool(e.target.Conn, target, err)
	}
	if len(b.Copies) > 0 && plan.NeedInheritors(b.Plan, state) {
		all := *b
		all.Copies = nil
		if state.Target, err = listTarget(ctx, e, &all, nil, target); err != nil {
			return state, err
		}
	}
	if b.Plan.Carries().All {
		if state.Source, err = localProperties(ctx, &e.source, state.Source); err != nil {
			return state, err
		}
	}
	return state, surveySource(ctx, e, b.Plan, &state)
}

// listTarget lists the copies of a batch, or where these are not known, or not
// what they should be, all that the target has. After a plan was carried out the pool
// is of no concern any more.
func listTarget(ctx context.Context, e *ends, b *Batch, after *plan.Plan, target string) (zfs.Listing, error) {
	q := hosts.ListQuery{Dataset: target, Recursive: b.Plan.Recursive, Versions: true, Changed: true, Newest: b.Newest, Alone: after != nil}
	some := q
	some.Only = b.Copies
	l, err := e.target.List(ctx, some)
	broken := func(d *zfs.Dataset) bool { return d.Inconsistent() }
	if err == nil && len(b.Copies) > 0 && (len(l.Datasets) != len(b.Copies) || slices.ContainsFunc(l.Datasets, broken)) {
		l, err = e.target.List(ctx, q)
	}
	if err != nil || !b.Newest {
		return l, err
	}
	return l, wholeHistories(ctx, e, &l, unexplained(&l, &b.Survey, after))
}

// unexplained are the datasets of a target whose newest snapshot does not tell what
// they are: the source has none such, or another was to arrive.
func unexplained(l, source *zfs.Listing, after *plan.Plan) (names []string) {
	known, arrived := map[uint64]bool{}, map[string]uint64{}
	for _, d := range source.Datasets {
		for _, v := range d.Versions {
			known[v.GUID] = true
		}
	}
	if after != nil {
		for _, d := range after.Datasets {
			arrived[d.Target] = d.Arrive.GUID
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

// lastLook lists the target after a batch. What was interrupted wants to be told
// of all the same, but soon.
func lastLook(ctx context.Context, e *ends, b *Batch, p *plan.Plan, target string) (zfs.Listing, error) {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
	}
	return listTarget(ctx, e, b, p, target)
}

// Partial finds the snapshots that interrupted receives of a target still
// need on the source, by GUID.
func Partial(l *zfs.Listing) map[uint64]bool {
	need := map[uint64]bool{}
	for _, d := range l.Datasets {
		if d.ResumeToken() == "" {
			continue
		}
		if t, err := zfs.ParseToken(d.ResumeToken()); err == nil { // a token that is none needs nothing
			need[t.ToGUID] = true
			need[t.FromGUID] = true
		}
	}
	return need
}
