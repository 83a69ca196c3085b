package job

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// Batch is a request to bring many datasets to one target, each for itself:
// what stands in the way of one stops only that one and those that need it.
type Batch struct {
	Send
	// Survey is the source as it was listed already, with only the datasets
	// that are wanted. Several batches may share one; it is not changed.
	Survey zfs.Listing
	// Copies, where not empty, are the target's datasets of all in Survey that
	// may be sent, where they have arrived before: only these are listed. If
	// one of them turns out to be gone, the whole target is.
	Copies []string
	// Pretended tells that Survey has snapshots that do not exist yet: nothing
	// is estimated. Only with DryRun.
	Pretended bool
	// Review, where not nil, is shown the plan before anything is changed, to
	// refuse more of it. It may change the conflicts that are there.
	Review func(*plan.Plan, plan.State)
}

// BatchResult is what became of a Batch.
type BatchResult struct {
	Report   *Report
	Datasets []*DatasetResult // of every dataset that has something to send or was refused
	// Target is the target after the batch, as it was before where nothing
	// was sent.
	Target zfs.Listing
	// Partial are the snapshots that interrupted receives of the target are
	// still to bring: the source must keep them. By GUID.
	Partial map[uint64]bool
}

// DatasetResult is one dataset's part of a Batch.
type DatasetResult struct {
	Source, Target string
	// Arrive is the snapshot that the target has, or was to have, in the end;
	// There is the same one as the target names it, "" while it lacks it.
	Arrive zfs.Version
	There  string
	Steps  int // streams that were planned
	Full   int // of them, those without a base
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
	s := newSender(b.Send, at, rep)
	res := &BatchResult{Report: s.report}
	started := time.Now()
	if err := s.resolve(ctx); err != nil {
		return res, err
	}
	if err := s.surveyBatch(ctx, &b); err != nil {
		return res, unchanged(err)
	}
	res.Target, res.Partial = s.state.Target, Partial(&s.state.Target)
	refused, err := s.planBatch(ctx, &b)
	if err != nil {
		return res, unchanged(err)
	}
	rep.Planned(s.report)
	if err := s.admit(); err != nil {
		return res, err
	}
	res.Datasets = refused
	for _, d := range s.report.Plan.Datasets {
		r := &DatasetResult{Source: d.Source, Target: d.Target, Arrive: d.Arrive, Steps: len(d.Steps)}
		if len(d.Steps) > 0 && d.Steps[0].Kind == plan.Full {
			r.Full = 1
		}
		res.Datasets = append(res.Datasets, r)
	}
	if b.DryRun {
		return res, nil
	}
	failed := s.runEach(ctx)
	s.report.Seconds = time.Since(started).Seconds()
	return res, s.account(ctx, &b, res, failed)
}

func (s *sender) surveyBatch(ctx context.Context, b *Batch) (err error) {
	target, err := plan.TargetName(b.Plan.Source, b.Plan.Target)
	if err != nil {
		return err
	}
	s.state = plan.State{
		Source: b.Survey, SourceHost: s.source.Label(), TargetHost: s.target.Label(), SameHost: s.source == s.target,
	}
	if s.state.Target, err = s.listTarget(ctx, b, target); err != nil {
		return err
	}
	if b.Plan.CarryProperties {
		if s.state.Source, err = s.localProperties(ctx, s.state.Source); err != nil {
			return err
		}
	}
	return s.surveyOrigins(ctx, b.Plan, &s.state)
}

// listTarget lists the copies of a batch, or where these are not known, or not
// what they should be, all that the target has.
func (s *sender) listTarget(ctx context.Context, b *Batch, target string) (zfs.Listing, error) {
	q := site.ListQuery{Dataset: target, Recursive: b.Plan.Recursive, Versions: true, Changed: true}
	if len(b.Copies) > 0 {
		some := q
		some.Only = b.Copies
		l, err := s.target.List(ctx, some)
		broken := func(d *zfs.Dataset) bool { return d.Inconsistent() }
		if err != nil || len(l.Datasets) == len(b.Copies) && !slices.ContainsFunc(l.Datasets, broken) {
			return l, err
		}
	}
	return s.target.List(ctx, q)
}

// planBatch makes the plan of all that nothing stands in the way of, and
// returns the results of the others.
func (s *sender) planBatch(ctx context.Context, b *Batch) ([]*DatasetResult, error) {
	p := plan.Make(s.req.Plan, s.state)
	s.report.Plan = &p
	if whole(&p) {
		return nil, nil // admit refuses it
	}
	var refused []*DatasetResult
	if b.Review != nil {
		b.Review(&p, s.state)
	}
	refused = partOff(&p, refused)
	if err := s.checkChains(ctx, &p, &s.state); err != nil {
		return nil, err
	}
	if err := s.formats(ctx, &p, &s.state); err != nil {
		return nil, err
	}
	refused = partOff(&p, refused)
	if !b.Pretended {
		if err := s.estimate(ctx, &p, true); err != nil {
			return nil, err
		}
	}
	refused = s.partOffLarge(&p, refused)
	s.report.Commands = commands(&p)
	s.report.Wire = wireReport(s.link, &p)
	return refused, nil
}

// partOffLarge takes the largest datasets out of a plan until the target has
// room for the others: these are to arrive all the same.
func (s *sender) partOffLarge(p *plan.Plan, refused []*DatasetResult) []*DatasetResult {
	for {
		s.report.Findings = preflight.Send(s.preflightInput(p))
		block := preflight.Blocking(s.report.Findings, s.req.SkipChecks)
		i := slices.IndexFunc(block, func(f finding.Finding) bool { return f.ID == preflight.Space })
		if i < 0 {
			return refused
		}
		d := largestBelow(p, block[i].Target)
		if d == nil {
			return refused
		}
		p.Refuse(finding.Finding{
			ID: plan.NoRoom, Source: d.Source, Target: d.Target, Remedy: block[i].Remedy,
			Summary: fmt.Sprintf("%s: there is no room for %s: %s", s.target.Label(), d.Target, block[i].Summary),
		})
		refused = partOff(p, refused)
	}
}

// largestBelow is the dataset of a plan with the most to send to a dataset of the
// target, or below it; nil where nothing is.
func largestBelow(p *plan.Plan, target string) (most *plan.Dataset) {
	bytes := uint64(0)
	for _, d := range p.Datasets {
		n := uint64(0)
		for _, st := range d.Steps {
			n += st.Bytes
		}
		if n > bytes && (d.Target == target || strings.HasPrefix(d.Target, target+"/")) {
			most, bytes = d, n
		}
	}
	return most
}

// whole tells whether the conflicts concern the request and not a dataset.
func whole(p *plan.Plan) bool {
	for _, c := range p.Conflicts {
		if len(p.Datasets) == 0 && c.ID != plan.NoSnapshot && c.ID != plan.HalfReceived {
			return true
		}
	}
	return false
}

// partOff takes the datasets that have a conflict, and those that need them,
// out of a plan.
func partOff(p *plan.Plan, refused []*DatasetResult) []*DatasetResult {
	if len(p.Conflicts) == 0 {
		return refused
	}
	why := map[string]*DatasetResult{}
	for _, c := range p.Conflicts {
		if why[c.Source] == nil {
			why[c.Source] = &DatasetResult{Source: c.Source, Target: c.Target, Conflict: c.ID, Err: c.Err()}
			refused = append(refused, why[c.Source])
		}
	}
	var rest []*plan.Dataset
	for _, d := range p.Datasets { // in an order that respects Needs
		for _, need := range d.Needs {
			if why[d.Source] == nil && why[need] != nil {
				why[d.Source] = &DatasetResult{Source: d.Source, Target: d.Target, Err: &skipped{dataset: d.Source, need: need}}
				refused = append(refused, why[d.Source])
			}
		}
		if r := why[d.Source]; r != nil {
			r.Arrive, r.Steps = d.Arrive, len(d.Steps)
			continue
		}
		rest = append(rest, d)
	}
	p.Datasets, p.Conflicts = rest, nil
	return refused
}

// lastLook bounds the look at the target of a batch that was interrupted.
const lastLook = 30 * time.Second

// account fills in what became of each dataset, after one more look at the
// target where something was sent.
func (s *sender) account(ctx context.Context, b *Batch, res *BatchResult, failed map[string]error) error {
	if s.report.Plan.Steps() > 0 {
		// What was interrupted wants to be told of all the same, but soon.
		look, cancel := ctx, context.CancelFunc(func() {})
		if ctx.Err() != nil {
			look, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastLook)
		}
		defer cancel()
		l, err := s.listTarget(look, b, s.state.Target.Root)
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
		res.Target = l
	}
	for guid := range Partial(&res.Target) {
		res.Partial[guid] = true
	}
	have := make(map[string]*zfs.Dataset, len(res.Target.Datasets))
	for _, d := range res.Target.Datasets {
		have[d.Name] = d
	}
	planned := make(map[string]*plan.Dataset, len(s.report.Plan.Datasets))
	for _, d := range s.report.Plan.Datasets {
		planned[d.Source] = d
	}
	results := make(map[string]*DatasetResult, len(res.Datasets))
	for _, r := range res.Datasets {
		results[r.Source] = r
		d := planned[r.Source]
		if d == nil {
			continue
		}
		r.Err = failed[r.Source]
		t := have[r.Target]
		if t != nil {
			s.verifySafety(d, t)
			if v, ok := t.SnapshotOf(d.Arrive.GUID); ok {
				r.There = v.Name
			}
		}
		if r.Err == nil && r.There == "" {
			r.Err = fault.Failf("look at both sides: zfs list -t snapshot -o name,guid "+d.Target,
				"%s: %s has no snapshot with the GUID %d of %s", s.target.Label(), d.Target, d.Arrive.GUID, d.Arrive.In(d.Source))
		}
	}
	for _, step := range s.report.Results {
		if r := results[step.Source]; r != nil {
			r.Bytes += step.Bytes
			r.Seconds += step.Seconds
		}
	}
	if len(b.Copies) > 0 {
		return nil // nothing else was looked at
	}
	return s.unplanned(&s.state.Target, &res.Target)
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
