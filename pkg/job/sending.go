package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// sendJob is a job on its way through the stages: reach, survey, plan, admit,
// move, verify. Each is functions of what those before it found, in a file of its
// name; what is here is their order, and what they have in common.
type sendJob struct {
	*ends
	req    Send
	rep    Reporter
	state  plan.State
	report *Report
	// changed tells that either side may be another than before.
	changed bool
	parted  *sync.Map // copies that became encryption roots, by name
}

func newSendJob(req Send, at *hosts.Set, rep Reporter) *sendJob {
	req.Plan.Bookmark = req.Bookmark
	req.Plan.AnyKey = slices.Contains(req.SkipChecks, plan.KeyChanged)
	return &sendJob{req: req, rep: rep, ends: newEnds(at, req.Source, req.Target, &req.Settings), report: &Report{
		Schema: "zxfer.send/v1", Source: req.Source.String(), Target: req.Target.String(), DryRun: req.DryRun,
	}}
}

// jobRules is in what jobs differ until something is moved: what they survey, and
// what they do about what stands in the way.
type jobRules struct {
	survey func(ctx context.Context) (plan.State, error)
	// pretended tells that the source is to be thought to have a snapshot that does
	// not exist yet.
	pretended bool
	// review, where not nil, looks at a plan once more.
	review func(ctx context.Context, p *plan.Plan) error
	// apart admits each dataset for itself; nil: all or none.
	apart *admission
}

// begin does all that comes before a change. This host is surveyed while another is
// reached, and that one as soon as it is.
func (t *sendJob) begin(ctx context.Context, by *jobRules) error {
	survey, stop := async(ctx, by.survey)
	defer stop()
	if err := withActivity(ctx, t.rep, "reaching "+t.others(), t.reach); err != nil {
		return err
	}
	t.report.Hosts = []HostReport{t.source.report("source"), t.target.report("target")}
	if err := t.choose(t.req.Settings); err != nil {
		return err
	}
	began := time.Now()
	if err := t.prepare(ctx, by, survey); err != nil {
		return err
	}
	t.report.PlanSeconds = time.Since(began).Seconds()
	// What is refused needs no way, and need not be measured.
	if t.report.Plan.Steps() > 0 && t.admit() == nil {
		if err := t.open(ctx, t.rep); err != nil {
			return err
		}
		t.judge()
		if t.req.Measure && t.admit() == nil {
			if err := t.measure(ctx, !by.pretended); err != nil {
				return err
			}
		}
	}
	t.rep.Planned(t.report)
	return t.admit()
}

// async has f done beside what follows. wait returns what it came to; stop ends it where it is
// not wanted any more, and waits for that.
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

// prepare surveys both sides and plans.
func (t *sendJob) prepare(ctx context.Context, by *jobRules, survey func(context.Context) (plan.State, error)) (err error) {
	listed := t.rep.Activity(fmt.Sprintf("listing %s and %s", t.req.Source, t.req.Target))
	t.state, err = survey(ctx)
	listed()
	if err != nil {
		return unchanged(err)
	}
	if by.pretended {
		if err := t.checkFree(); err != nil {
			return err
		}
		t.state.Source = plan.Simulate(t.state.Source, func(string) string { return t.req.TakeSnapshot })
	}
	var part func(*plan.Plan)
	if by.apart != nil {
		part = by.apart.part
	}
	defer t.rep.Activity("planning, and estimating sizes")()
	p, err := makePlan(ctx, t.ends, t.req.Plan, &t.state, part)
	if err != nil {
		return unchanged(err)
	}
	if by.review != nil {
		if err := by.review(ctx, &p); err != nil {
			return unchanged(err)
		}
	}
	t.report.Plan = &p
	if len(p.Conflicts) == 0 {
		if err := estimate(ctx, &t.source, &p, &t.state.Source, by.apart != nil); err != nil {
			return unchanged(err)
		}
	}
	if by.apart != nil {
		t.report.Findings = by.apart.room(t.ends, &p, &t.state, t.req.SkipChecks)
	} else {
		t.report.Findings = preflight.Send(t.input(&t.state, &p))
	}
	t.report.Commands = commands(&p)
	t.report.Wire = wireReport(t.link, &p)
	return nil
}

// judge has the checks look again, at the link as well.
func (t *sendJob) judge() {
	t.report.Findings = preflight.Send(t.input(&t.state, t.report.Plan))
	t.report.Wire = wireReport(t.link, t.report.Plan)
}

func (t *sendJob) admit() error { return admit(t.report.Plan, t.report.Findings, t.req.SkipChecks) }

// wireReport says how a plan's streams will cross.
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

// move moves what was planned, and returns what went wrong, by the dataset on
// the source.
func (t *sendJob) move(ctx context.Context) map[string]error {
	m := &mover{ends: t.ends, req: &t.req, rep: t.rep}
	t.parted = &m.parted
	began := time.Now()
	failed := m.all(ctx, t.report.Plan)
	if len(m.results) > 0 {
		t.report.Seconds = time.Since(began).Seconds()
	}
	t.report.Results, t.changed = m.results, t.changed || m.changed.Load()
	for _, r := range m.results {
		t.report.Bytes += r.Bytes
	}
	t.report.LimitedBy = slowestLimit(m.results)
	return failed
}

// persist does f again where a connection was lost. f bears to be repeated.
func (t *sendJob) persist(ctx context.Context, f func(context.Context) error) error {
	e := &retrier{
		retries: t.req.Retries, log: t.rep.Log,
		try:     func(ctx context.Context, _ int) error { return f(ctx) },
		curable: func(err, _ error) bool { return errors.Is(err, hosts.ErrLost) },
	}
	return e.run(ctx)
}

// check fills in what became of each dataset, of which those in failed did not
// arrive, and returns the first error.
func (t *sendJob) check(results []*DatasetResult, there *zfs.Listing, failed map[string]error) (first error) {
	arrived, of := there.ByName(), make(map[string]*DatasetResult, len(results))
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
