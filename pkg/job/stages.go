package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// stages are the parts of a job before its first change. ends.prepare runs them for every verb that
// moves data: send, restore, batch, dev and files.
type stages struct {
	// survey queries both hosts, chooses the transport and plans.
	survey func(ctx context.Context) error
	// admit returns why the job must not run, as far as is known.
	admit func() error
	// moves reports whether data is to be moved, which needs a network path.
	moves func() bool
	// evaluate repeats the checks, now including the path.
	evaluate func()
	// measure, if not nil, does what needs the path before the move.
	measure func(ctx context.Context) error
	// planned shows the plan.
	planned func()
}

// prepare runs all stages before the first change. A refused job needs no path and no measurement.
func (e *ends) prepare(ctx context.Context, rep Watcher, s *stages) error {
	if err := s.survey(ctx); err != nil {
		return unchanged(err)
	}
	if s.moves() && s.admit() == nil {
		if err := e.open(ctx, rep); err != nil {
			return err
		}
		s.evaluate()
		if s.measure != nil && s.admit() == nil {
			if err := s.measure(ctx); err != nil {
				return unchanged(err)
			}
		}
	}
	s.planned()
	return s.admit()
}

// async runs f in the background. wait returns its results; stop cancels f and waits for its end.
func async[T any](ctx context.Context, f func(context.Context) (T, error)) (wait func(context.Context) (T, error), stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var got T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err = f(ctx)
	}()
	return func(context.Context) (T, error) { <-done; return got, err }, func() { cancel(); <-done }
}

// sendJob is a running send, restore or batch.
type sendJob struct {
	*mover
	state  plan.State
	report *Report
}

func newSendJob(req Send, at *hosts.Set, rep Reporter) *sendJob {
	req.Plan.Bookmark = req.Bookmark
	req.Plan.AnyKey = slices.Contains(req.SkipChecks, plan.KeyChanged)
	return &sendJob{mover: &mover{req: &req, rep: rep, ends: newEnds(at, req.Source, req.Target, &req.Settings)}, report: &Report{
		Schema: "zxfer.send/v1", Source: req.Source.String(), Target: req.Target.String(), DryRun: req.DryRun,
	}}
}

// jobRules holds the differences between jobs before the move: how to survey and how to treat
// conflicts.
type jobRules struct {
	survey func(ctx context.Context) (plan.State, error)
	// simulated means to plan as if the snapshot of --snapshot existed.
	simulated bool
	// review, if not nil, may add conflicts and notes to the plan.
	review func(ctx context.Context, p *plan.Plan) error
	// perDataset admits datasets one by one; nil admits all or none.
	perDataset *admission
}

// prepareMove runs the stages before the first change.
func (t *sendJob) prepareMove(ctx context.Context, rules *jobRules) error {
	s := stages{
		survey:   func(ctx context.Context) error { return t.reachAndPlan(ctx, rules) },
		admit:    t.admit,
		moves:    func() bool { return t.report.Plan.Steps() > 0 },
		evaluate: t.evaluate,
		planned:  func() { t.rep.Planned(t.report) },
	}
	if t.req.Measure {
		s.measure = func(ctx context.Context) error { return t.measure(ctx, !rules.simulated) }
	}
	return t.prepare(ctx, t.rep, &s)
}

// reachAndPlan reaches the hosts, surveys them and plans. The survey starts in the background while
// the hosts are reached.
func (t *sendJob) reachAndPlan(ctx context.Context, rules *jobRules) error {
	survey, stop := async(ctx, rules.survey)
	defer stop()
	if err := withActivity(ctx, t.rep, "reaching "+t.remoteNames(), t.reach); err != nil {
		return err
	}
	t.report.Hosts = []HostReport{t.source.report("source"), t.target.report("target")}
	if err := t.choose(t.req.Settings); err != nil {
		return err
	}
	start := time.Now()
	if err := t.surveyAndPlan(ctx, rules, survey); err != nil {
		return err
	}
	t.report.PlanSeconds = time.Since(start).Seconds()
	return nil
}

// surveyAndPlan surveys both sides, plans and runs the preflight checks.
func (t *sendJob) surveyAndPlan(ctx context.Context, rules *jobRules, survey func(context.Context) (plan.State, error)) (err error) {
	listed := t.rep.Activity(fmt.Sprintf("listing %s and %s", t.req.Source, t.req.Target))
	t.state, err = survey(ctx)
	listed()
	if err != nil {
		return unchanged(err)
	}
	if rules.simulated {
		if err := t.checkFree(); err != nil {
			return err
		}
		t.state.Source = plan.Simulate(t.state.Source, func(string) string { return t.req.TakeSnapshot })
	}
	var removeRefused func(*plan.Plan)
	if rules.perDataset != nil {
		removeRefused = rules.perDataset.removeRefused
	}
	defer t.rep.Activity("planning, and estimating sizes")()
	p, err := makePlan(ctx, t.ends, t.req.Plan, &t.state, removeRefused)
	if err != nil {
		return unchanged(err)
	}
	if rules.review != nil {
		if err := rules.review(ctx, &p); err != nil {
			return unchanged(err)
		}
	}
	t.report.Plan = &p
	if len(p.Conflicts) == 0 {
		if err := estimate(ctx, &t.source, &p, &t.state.Source, rules.perDataset != nil); err != nil {
			return unchanged(err)
		}
	}
	if rules.perDataset != nil {
		t.report.Findings = rules.perDataset.refuseOversized(t.ends, &p, &t.state, t.req.SkipChecks)
	} else {
		t.report.Findings = preflight.Send(t.input(&t.state, &p))
	}
	t.report.Commands = commands(&p)
	t.report.Wire = wireReport(t.link, &p)
	return nil
}

// evaluate repeats the checks, now including the link.
func (t *sendJob) evaluate() {
	t.report.Findings = preflight.Send(t.input(&t.state, t.report.Plan))
	t.report.Wire = wireReport(t.link, t.report.Plan)
}

func (t *sendJob) admit() error { return admit(t.report.Plan, t.report.Findings, t.req.SkipChecks) }

// wireReport describes the transport of a plan's streams.
func wireReport(l connect.Link, p *plan.Plan) connect.Report {
	var sealed, open, unknown bool
	var largest uint64
	for d, st := range p.Streams() {
		sealed, open, unknown = sealed || d.Encrypted, open || !d.Encrypted, unknown || st.Bytes == 0
		largest = max(largest, st.Bytes)
	}
	if unknown {
		largest = 0
	}
	return l.ForSize(largest).Report(sealed, open)
}

// retryLost retries f after a lost connection. f must be idempotent.
func (t *sendJob) retryLost(ctx context.Context, f func(context.Context) error) error {
	l := newLoop("", t.req.Retries, t.rep.Log)
	l.Try = func(ctx context.Context, _ int) error { return f(ctx) }
	l.Curable = func(err, _ error) bool { return errors.Is(err, hosts.ErrLost) }
	return l.Run(ctx)
}

// fillResults sets the result of each dataset and returns the first error. failed holds the
// errors of the move by source dataset.
func (t *sendJob) fillResults(results []*DatasetResult, target *zfs.Listing, failed map[string]error) (first error) {
	arrived, of := target.ByName(), make(map[string]*DatasetResult, len(results))
	for i, d := range t.report.Plan.Datasets {
		r := results[i]
		of[d.Source] = r
		r.There, r.Err = verify(t.target.Label(), d, arrived[d.Target], t.rep.Log)
		if err := failed[d.Source]; err != nil {
			r.Err = err
		}
		if first == nil {
			first = r.Err
		}
	}
	for _, step := range t.report.Results {
		r := of[step.Source]
		r.Bytes += step.Bytes
		r.Seconds += step.Seconds
	}
	return first
}
