package send

import (
	"context"
	"errors"
	"fmt"
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

// Job is a running send, restore or batch.
type Job struct {
	Ends     *ends.Ends
	Request  *Request
	Reporter Reporter
	mover    *mover
	State    plan.State
	Report   *Report
}

// New returns a send, restore or batch, without any query.
func New(req Request, at *hosts.Set, rep Reporter) *Job {
	req.Plan.Bookmark = req.Bookmark
	req.Plan.AllowKeyChange = slices.Contains(req.SkipChecks, plan.KeyChanged)
	t := &Job{Ends: ends.New(at, req.Source, req.Target, &req.Settings), Request: &req, Reporter: rep, Report: &Report{
		Schema: "zxfer.send/v1", Source: req.Source.String(), Target: req.Target.String(), DryRun: req.DryRun,
	}}
	t.Ends.Activity = rep.Activity
	t.mover = &mover{ends: t.Ends, req: t.Request, rep: rep, limitID: rand.Uint64(), surveyed: &t.State}
	return t
}

// Rules holds the differences between jobs before the move: how to survey and how to treat
// conflicts.
type Rules struct {
	Survey func(ctx context.Context) (plan.State, error)
	// Simulated means to plan as if the snapshot of --snapshot existed.
	Simulated bool
	// Review, if not nil, may add conflicts and notes to the plan.
	Review func(ctx context.Context, p *plan.Plan) error
	// perDataset admits datasets one by one; nil admits all or none.
	perDataset *admission
}

// MarkChanged records that a host was changed.
func (t *Job) MarkChanged() { t.mover.changed.Store(true) }

// Prepare runs the stages before the first change.
func (t *Job) Prepare(ctx context.Context, rules *Rules) error {
	if t.Request.Target.Path() {
		return fault.Usagef("name the target's pool or dataset, without a leading \"/\"", "target %s is a path, not a dataset", t.Request.Target)
	}
	if rules.perDataset == nil {
		defer warm(ctx, t.Ends, t.Request)()
	}
	s := ends.Stages{
		Survey:   func(ctx context.Context) error { return t.reachAndPlan(ctx, rules) },
		Admit:    t.admit,
		Moves:    t.needsPath,
		Evaluate: t.evaluate,
		DryRun:   t.Request.DryRun,
		Planned:  func() { t.Reporter.Planned(t.Report) },
	}
	if t.Request.Measure {
		s.Measure = func(ctx context.Context) error { return t.measure(ctx, !rules.Simulated) }
	}
	return t.Ends.Prepare(ctx, t.Reporter, &s)
}

// reachAndPlan reaches the hosts, surveys them and plans. The survey starts in the background while
// the hosts are reached.
func (t *Job) reachAndPlan(ctx context.Context, rules *Rules) error {
	survey, stop := async(ctx, rules.Survey)
	defer stop()
	if err := ends.WithActivity(ctx, t.Reporter, "reaching "+t.Ends.RemoteNames(), t.Ends.Reach); err != nil {
		return err
	}
	t.Report.Hosts = []ends.HostReport{t.Ends.Source.Report("source"), t.Ends.Target.Report("target")}
	if err := t.Ends.Choose(t.Request.Settings, t.Reporter.Log); err != nil {
		return err
	}
	start := time.Now()
	if err := t.surveyAndPlan(ctx, rules, survey); err != nil {
		return err
	}
	t.Report.PlanSeconds = time.Since(start).Seconds()
	return nil
}

// surveyAndPlan surveys both sides, plans and runs the preflight checks.
func (t *Job) surveyAndPlan(ctx context.Context, rules *Rules, survey func(context.Context) (plan.State, error)) (err error) {
	listed := t.Reporter.Activity(fmt.Sprintf("listing %s and %s", t.Request.Source, t.Request.Target))
	t.State, err = survey(ctx)
	listed()
	if err != nil {
		return err
	}
	if rules.Simulated {
		if err := t.checkFree(); err != nil {
			return err
		}
		t.State.Source = plan.Simulate(t.State.Source, func(string) string { return t.Request.TakeSnapshot })
	}
	var removeRefused func(*plan.Plan)
	if rules.perDataset != nil {
		removeRefused = rules.perDataset.removeRefused
	}
	defer t.Reporter.Activity("planning, and estimating sizes")()
	p, err := makePlan(ctx, t.Ends, t.Request.Plan, &t.State, removeRefused)
	if err != nil {
		return err
	}
	if rules.Review != nil {
		if err := rules.Review(ctx, &p); err != nil {
			return err
		}
	}
	t.Report.Plan = &p
	if len(p.Conflicts) == 0 {
		if err := estimate(ctx, &t.Ends.Source, &p, &t.State.Source, rules.perDataset != nil); err != nil {
			return err
		}
	}
	if rules.perDataset != nil {
		t.Report.Findings = rules.perDataset.refuseOversized(t.Ends, &p, &t.State, t.Request.SkipChecks)
	} else {
		t.Report.Findings = preflight.Send(t.Ends.Input(&t.State, &p))
	}
	in := t.Ends.Input(&t.State, &p)
	t.Report.Growth = preflight.PlanGrowth(&in)
	t.Report.Commands = plan.Commands(&p)
	t.Report.Wire = wireReport(t.Ends.Search.Link(), &p)
	return nil
}

// needsPath reports whether a planned stream needs a data connection.
func (t *Job) needsPath() bool {
	first := t.Ends.Search.First()
	for _, st := range t.Report.Plan.Streams() {
		if _, small := first.Small(smallBytes(st)); !small {
			return true
		}
	}
	return t.Request.Measure && t.Report.Plan.Steps() > 0
}

// smallBytes returns the size of a stream for connect.Link.Small, 0 if it needs a path.
func smallBytes(st *plan.Step) uint64 {
	if len(st.Receive.Only) > 0 { // the source may read for hours before it finds a block
		return 0
	}
	return st.Bytes
}

// evaluate repeats the checks, now including the link.
func (t *Job) evaluate() {
	t.Report.Findings = preflight.Send(t.Ends.Input(&t.State, t.Report.Plan))
	t.Report.Wire = wireReport(t.Ends.Search.Link(), t.Report.Plan)
}

// admit refuses a plan with conflicts or blocking findings.
func (t *Job) admit() error {
	block := preflight.Blocking(t.Report.Findings, t.Request.SkipChecks)
	if t.Request.AllChecks {
		block = finding.Failed(t.Report.Findings)
	}
	return finding.Refusal(slices.Concat(t.Report.Plan.Conflicts, block))
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
func (t *Job) measure(ctx context.Context, taken bool) error {
	p := t.Report.Plan
	m := &measure.Measurer{Ends: t.Ends, Link: measure.LargestStreamLink(t.Ends, p), Time: measure.Time, Reporter: t.Reporter}
	var all measure.Rounds
	if !t.Ends.SameHost() {
		all.Add(m.OnLink(forecast.Link, &t.Ends.Source, &t.Ends.Target))
	}
	m.AddDatasets(&all, p, &t.State.Target, func(id string) bool { return taken || id != probe.SourceRead })
	err := m.Run(ctx, all)
	t.Report.Ceilings, t.Ends.Links = m.Ceilings, m.Links
	t.evaluate()
	t.Report.Expected = m.Expected(p.Bytes(), streamOptions(t.Request).BandLimit)
	return err
}

// checkFree refuses a snapshot name that one of the datasets already has.
func (t *Job) checkFree() error {
	existing := plan.SnapshotsNamed(t.State.Source, t.Request.TakeSnapshot)
	if len(existing) == 0 {
		return nil
	}
	return fault.Refusef("to name the snapshot after the time: {{snapshot =}}\n"+
		"to send the existing one, run the same command with "+t.snapshotSource().String()+" as source and without {{snapshot}}",
		"%s: %s takes a new snapshot, but that name exists: %s", t.Ends.Source.Conn.Label(), option.Name("snapshot", t.Request.TakeSnapshot), finding.JoinFirst(existing, 3))
}

func (t *Job) snapshotSource() endpoint.Endpoint {
	return endpoint.Endpoint{Host: t.Request.Source.Host, Name: t.Request.Plan.Source + "@" + t.Request.TakeSnapshot}
}

// Retry retries f after a lost connection. f must be idempotent.
func (t *Job) Retry(ctx context.Context, f func(context.Context) error) error {
	l := ends.NewLoop("", t.Request.Retries, t.Reporter.Log)
	l.Try = func(ctx context.Context, _ int) error { return f(ctx) }
	l.Retryable = func(err, _ error) bool { return errors.Is(err, hosts.ErrLost) }
	return l.Run(ctx)
}

// fillResults sets the result of each dataset and returns the first error. failed holds the
// errors of the move by source dataset.
func (t *Job) fillResults(results []*DatasetResult, target *zfs.Listing, failed map[string]error) (first error) {
	arrived, of := target.ByName(), make(map[string]*DatasetResult, len(results))
	for i, d := range t.Report.Plan.Datasets {
		r := results[i]
		of[d.Source] = r
		r.NameOnTarget, r.Err = verify(t.Ends.Target.Conn, d, arrived[d.Target], t.Reporter.Log)
		if err := failed[d.Source]; err != nil {
			r.Err = err
		}
		if r.Unset = t.mover.unsetAccess(d, arrived[d.Target]); r.Unset != nil {
			t.Reporter.Log(fmt.Sprintf("%s: %v: %s", t.Ends.Target.Conn.Label(), r.Unset, fault.HintOf(r.Unset)))
		}
		if first == nil {
			first = r.Err
		}
	}
	for _, step := range t.Report.Results {
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
