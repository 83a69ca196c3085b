package job

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/job/measure"
	"zxfer/pkg/option"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// sendJob is a running send, restore or batch.
type sendJob struct {
	ends *ends.Ends
	req  *Send
	rep  Reporter
	*mover
	state  plan.State
	report *Report
}

func newSendJob(req Send, at *hosts.Set, rep Reporter) *sendJob {
	req.Plan.Bookmark = req.Bookmark
	req.Plan.AllowKeyChange = slices.Contains(req.SkipChecks, plan.KeyChanged)
	t := &sendJob{ends: ends.New(at, req.Source, req.Target, &req.Settings), req: &req, rep: rep, report: &Report{
		Schema: "zxfer.send/v1", Source: req.Source.String(), Target: req.Target.String(), DryRun: req.DryRun,
	}}
	t.ends.Activity = rep.Activity
	t.mover = &mover{ends: t.ends, req: t.req, rep: rep, limitID: rand.Uint64(), surveyed: &t.state,
		checkPath: func() error { t.evaluate(); return t.admit() }}
	return t
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

// markChanged records that a host was changed.
func (t *sendJob) markChanged() { t.changed.Store(true) }

// prepareMove runs the stages before the first change.
func (t *sendJob) prepareMove(ctx context.Context, rules *jobRules) error {
	s := ends.Stages{
		Survey:   func(ctx context.Context) error { return t.reachAndPlan(ctx, rules) },
		Admit:    t.admit,
		Moves:    t.needsPath,
		Evaluate: t.evaluate,
		Planned:  func() { t.rep.Planned(t.report) },
	}
	if t.req.Measure {
		s.Measure = func(ctx context.Context) error { return t.measure(ctx, !rules.simulated) }
	}
	return t.ends.Prepare(ctx, t.rep, &s)
}

// reachAndPlan reaches the hosts, surveys them and plans. The survey starts in the background while
// the hosts are reached.
func (t *sendJob) reachAndPlan(ctx context.Context, rules *jobRules) error {
	survey, stop := async(ctx, rules.survey)
	defer stop()
	if err := ends.WithActivity(ctx, t.rep, "reaching "+t.ends.RemoteNames(), t.ends.Reach); err != nil {
		return err
	}
	t.report.Hosts = []ends.HostReport{t.ends.Source.Report("source"), t.ends.Target.Report("target")}
	if err := t.ends.Choose(t.req.Settings); err != nil {
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
		return err
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
		return err
	}
	if rules.review != nil {
		if err := rules.review(ctx, &p); err != nil {
			return err
		}
	}
	t.report.Plan = &p
	if len(p.Conflicts) == 0 {
		if err := estimate(ctx, &t.ends.Source, &p, &t.state.Source, rules.perDataset != nil); err != nil {
			return err
		}
	}
	if rules.perDataset != nil {
		t.report.Findings = rules.perDataset.refuseOversized(t.ends, &p, &t.state, t.req.SkipChecks)
	} else {
		t.report.Findings = preflight.Send(t.ends.Input(&t.state, &p))
	}
	in := t.ends.Input(&t.state, &p)
	t.report.Growth = preflight.PlanGrowth(&in)
	t.report.Commands = plan.Commands(&p)
	t.report.Wire = wireReport(t.ends.Link, &p)
	return nil
}

// needsPath reports whether a planned stream needs a data connection. The search keeps the connections
// that it makes for the first such stream.
func (t *sendJob) needsPath() bool {
	for st := range t.largeSteps() {
		if !t.req.Measure && !t.req.DryRun {
			t.ends.Link = t.ends.Link.Expecting(st.Send.Flags.Raw, st.Bytes)
		}
		return true
	}
	return t.req.Measure && t.report.Plan.Steps() > 0
}

// largeSteps returns the steps whose streams need a data connection.
func (t *sendJob) largeSteps() iter.Seq[*plan.Step] {
	return func(yield func(*plan.Step) bool) {
		for _, st := range t.report.Plan.Streams() {
			if _, small := t.ends.Chosen.Small(smallBytes(st)); !small && !yield(st) {
				return
			}
		}
	}
}

// releaseUnsuitable closes the connections that the path search kept, unless they suit a stream.
func (t *sendJob) releaseUnsuitable() {
	for st := range t.largeSteps() {
		if t.ends.Link.Suits(st.Send.Flags.Raw, st.Bytes) {
			return
		}
	}
	t.ends.Link.Release()
}

// smallBytes returns the size of a stream for connect.Link.Small, 0 if it needs a path.
func smallBytes(st *plan.Step) uint64 {
	if len(st.Receive.Only) > 0 { // the source may read for hours before it finds a block
		return 0
	}
	return st.Bytes
}

// evaluate repeats the checks, now including the link.
func (t *sendJob) evaluate() {
	t.report.Findings = preflight.Send(t.ends.Input(&t.state, t.report.Plan))
	t.report.Wire = wireReport(t.ends.Link, t.report.Plan)
}

// admit refuses a plan with conflicts or blocking findings.
func (t *sendJob) admit() error {
	return finding.Refusal(slices.Concat(t.report.Plan.Conflicts, preflight.Blocking(t.report.Findings, t.req.SkipChecks)))
}

// wireReport describes the transport of a plan's streams.
func wireReport(l connect.Link, p *plan.Plan) connect.Report {
	var sealed, open, unknown bool
	var largest uint64
	small := p.Steps() > 0
	for d, st := range p.Streams() {
		_, ok := l.Small(smallBytes(st))
		small = small && ok
		sealed, open, unknown = sealed || d.Encrypted, open || !d.Encrypted, unknown || st.Bytes == 0
		largest = max(largest, st.Bytes)
	}
	if unknown {
		largest = 0
	}
	if one, ok := l.Small(largest); ok && small {
		return one.Report(false, false)
	}
	return l.ForSize(largest).Report(sealed, open)
}

// measure measures the parts of a planned transfer: the link, zfs send on the source, and writing
// on the target. The source is skipped if its snapshot is not taken yet.
func (t *sendJob) measure(ctx context.Context, taken bool) error {
	p := t.report.Plan
	m := t.ends.Measurer(t.ends.LargestStreamLink(p), ends.MeasureTime, t.rep.Activity)
	if err := m.OtherLoad(ctx); err != nil {
		return err
	}
	var all measure.Rounds
	if !t.ends.SameHost() {
		all.Add(m.OnLink(forecast.Link, &m.Source, &m.Target))
	}
	m.AddDatasets(&all, p, &t.state.Target, func(id string) bool { return taken || id != probe.SourceRead })
	err := m.Run(ctx, all)
	t.report.Ceilings, t.ends.Links = m.Ceilings, m.Links
	t.evaluate()
	t.report.Expected = m.Expected(p.Bytes(), streamOptions(t.req).BandLimit)
	return err
}

// checkFree refuses a snapshot name that one of the datasets already has.
func (t *sendJob) checkFree() error {
	existing := plan.SnapshotsNamed(t.state.Source, t.req.TakeSnapshot)
	if len(existing) == 0 {
		return nil
	}
	return fault.Refusef("to name the snapshot after the time: {{snapshot =}}\n"+
		"to send the existing one, run the same command with "+t.snapshotSource().String()+" as source and without {{snapshot}}",
		"%s: %s takes a new snapshot, but that name exists: %s", t.ends.Source.Conn.Label(), option.Name("snapshot", t.req.TakeSnapshot), finding.JoinFirst(existing, 3))
}

func (t *sendJob) snapshotSource() endpoint.Endpoint {
	return endpoint.Endpoint{Host: t.req.Source.Host, Name: t.req.Plan.Source + "@" + t.req.TakeSnapshot}
}

// retryLost retries f after a lost connection. f must be idempotent.
func (t *sendJob) retryLost(ctx context.Context, f func(context.Context) error) error {
	l := ends.NewLoop("", t.req.Retries, t.rep.Log)
	l.Try = func(ctx context.Context, _ int) error { return f(ctx) }
	l.Retryable = func(err, _ error) bool { return errors.Is(err, hosts.ErrLost) }
	return l.Run(ctx)
}

// fillResults sets the result of each dataset and returns the first error. failed holds the
// errors of the move by source dataset.
func (t *sendJob) fillResults(results []*DatasetResult, target *zfs.Listing, failed map[string]error) (first error) {
	arrived, of := target.ByName(), make(map[string]*DatasetResult, len(results))
	for i, d := range t.report.Plan.Datasets {
		r := results[i]
		of[d.Source] = r
		r.NameOnTarget, r.Err = verify(t.ends.Target.Conn, d, arrived[d.Target], t.rep.Log)
		if err := failed[d.Source]; err != nil {
			r.Err = err
		}
		if r.Unset = t.unsetAccess(d, arrived[d.Target]); r.Unset != nil {
			t.rep.Log(fmt.Sprintf("%s: %v: %s", t.ends.Target.Conn.Label(), r.Unset, fault.HintOf(r.Unset)))
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
