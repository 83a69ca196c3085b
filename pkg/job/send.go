package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/size"
	"zxfer/pkg/transport"
)

// Send is a request for `zxfer send`.
type Send struct {
	Source endpoint.Endpoint // Name is "dataset" or "dataset@snapshot"
	Target endpoint.Endpoint
	Plan   plan.Request // Source, Snapshot and Target are filled in from the endpoints

	TakeSnapshot string // --snapshot: take a new snapshot of this name first; "" = none
	Hold         string // --hold: tag for the snapshots on both sides; "" = none
	Bookmark     bool   // --bookmark: bookmark the sent snapshots on the source
	Verify       bool   // --verify: compare content digests of both sides
	DryRun       bool
	Measure      bool // --measure: measure the bottleneck before the transfer

	transport.Settings

	Parallel int // concurrent datasets
	// Gate, if not nil, limits them to Parallel together with other requests: it is called before
	// each dataset uses the hosts, and for small streams again. It blocks until the dataset may start, or
	// returns an error after ctx ended.
	Gate func(ctx context.Context) (release func(), err error)
	// Clock returns the time for bandwidth limits that depend on it; nil = time.Now.
	Clock      func() time.Time
	Retries    int      // per dataset, after interruptions
	SkipChecks []string // IDs of preflight checks to skip
}

// RunSend runs `zxfer send`. It returns the report also with an error. Errors are Refused if
// nothing was changed on either side, and Interrupted if the same command resumes.
func RunSend(ctx context.Context, req Send, at *hosts.Set, rep Reporter) (*Report, error) {
	t := newSendJob(req, at, rep)
	defer t.ends.Release()
	return t.finish(outcome.Settle(ctx, t.send(ctx)))
}

// send moves one source tree. If any part is refused or fails, the job fails.
func (t *sendJob) send(ctx context.Context) error {
	if err := t.checkTarget(); err != nil {
		return err
	}
	defer warm(ctx, t.ends, t.req)()
	takeNew := t.req.TakeSnapshot != ""
	whole := jobRules{simulated: takeNew, survey: func(ctx context.Context) (plan.State, error) {
		if err := resolve(ctx, t.ends, t.req, t.rep.Log); err != nil {
			return plan.State{}, err
		}
		state, err := survey(ctx, t.ends, t.req.Plan, !takeNew)
		if err == nil {
			err = keyDependents(ctx, t.ends, t.req.Plan, &state)
		}
		return state, err
	}}
	err := t.prepareMove(ctx, &whole)
	if err != nil || t.req.DryRun {
		return err
	}
	if takeNew {
		if err := t.takeSnapshot(ctx); err != nil {
			return err
		}
		t.markChanged()
		whole.simulated = false
		if err = t.surveyAndPlan(ctx, &whole, whole.survey); err == nil {
			err = t.admit()
		}
		err = ends.Changed(err)
	}
	if err == nil {
		err = t.deliver(ctx)
	}
	if err = outcome.Settle(ctx, err); takeNew && fault.ClassOf(err) == fault.Interrupted {
		err = fault.Interrupt("the same command resumes, with "+t.snapshotSource().String()+" as source and without {{snapshot}}", err)
	}
	return err
}

func (t *sendJob) checkTarget() error {
	if t.req.Target.Path() {
		return fault.Usagef("name the target's pool or dataset, without a leading \"/\"", "target %s is a path, not a dataset", t.req.Target)
	}
	return nil
}

// takeSnapshot takes the snapshot of --snapshot.
func (t *sendJob) takeSnapshot(ctx context.Context) error {
	var names []string
	for _, d := range t.state.Source.Datasets {
		if !d.Inconsistent() { // ZFS cannot snapshot these, and the plan skips them
			names = append(names, d.Name+"@"+t.req.TakeSnapshot)
		}
	}
	taken := t.rep.Activity("taking snapshots of " + english.Plural(len(names), "dataset", ""))
	err := hosts.Run(ctx, t.ends.Source.Conn, hosts.OpSnapshot, names)
	taken()
	if err != nil {
		return fmt.Errorf("take snapshot @%s: %w", t.req.TakeSnapshot, err)
	}
	below := ""
	if len(names) > 1 {
		below = " and " + english.Plural(len(names)-1, "dataset", "") + " below it"
	}
	t.rep.Log(fmt.Sprintf("took snapshot @%s of %s%s", t.req.TakeSnapshot, t.req.Plan.Source, below))
	return nil
}

// deliver places bookmarks, moves the planned datasets and verifies them.
func (t *sendJob) deliver(ctx context.Context) error {
	if t.req.Bookmark {
		if err := placeBookmarks(ctx, t.ends, t.report.Plan); err != nil {
			return err
		}
		if t.report.Plan.Steps() > 0 {
			t.markChanged()
		}
	}
	t.reportsArrival = len(t.report.Plan.Datasets) == 1 && !t.req.Verify
	failed := t.move(ctx)
	t.joinKeys(ctx, failed)
	var errs []error
	for _, d := range t.report.Plan.Datasets {
		errs = append(errs, failed[d.Source])
	}
	err := outcome.Join(t.joinInterrupted(errs)...)
	if err == nil {
		err = t.retryLost(ctx, t.verifyAll)
	}
	if t.changed.Load() {
		err = ends.Changed(err)
	}
	return err
}

// joinInterrupted replaces the errors of the interrupted datasets with one, which counts what arrived.
func (t *sendJob) joinInterrupted(errs []error) []error {
	others := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return errors.Is(err, ends.ErrInterrupted) })
	if len(others) == len(errs) {
		return errs
	}
	t.report.Interrupted = true
	complete := 0
	for _, r := range t.report.Results {
		if r.Error == "" {
			complete++
		}
	}
	return append(others, fault.Interrupt(ends.Resumes, fmt.Errorf("%s: %w: %d of %s complete, %s sent", t.req.Plan.Source, ends.ErrInterrupted,
		complete, english.Plural(t.report.Plan.Steps(), "stream", ""), size.Text(t.report.Bytes))))
}

// verifyAll verifies what arrived and places holds. It also runs if nothing was
// sent, because requested holds are placed then, too.
func (t *sendJob) verifyAll(ctx context.Context) error {
	p, target := t.report.Plan, t.state.Target
	title := "verifying snapshots on " + t.ends.Target.Conn.Label()
	// Both listings run concurrently. The second one's result is checked last.
	waitUnexpected, stop := async(ctx, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, checkUnexpected(ctx, t.ends, t.req, p, &t.state.Target)
	})
	defer stop()
	if reported, ok := t.reportedArrival(); ok {
		target = reported
	} else if p.Steps() > 0 {
		done := t.rep.Activity(title)
		var err error
		target, err = listArrived(ctx, t.ends, t.req, p, &t.state)
		done()
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	results := expectedResults(p)
	if err := t.fillResults(results, &target, nil); err != nil {
		return err
	}
	for _, r := range t.report.Results {
		if r.Error == "" {
			r.Verified = "guid"
		}
	}
	if t.req.Verify {
		if p.Steps() == 0 {
			t.rep.Log("{{verify}}: nothing was sent, so zxfer compared only GUIDs, which are equal")
		}
		c := &contentComparison{ends: t.ends, state: &t.state, rep: t.rep}
		if err := c.compareAll(ctx, p, &target, t.report.Results); err != nil {
			return err
		}
	}
	if err := placeHolds(ctx, t.ends, t.req, results); err != nil {
		return fmt.Errorf("the data was received, but: %w", err)
	}
	defer t.rep.Activity(title)()
	_, err := waitUnexpected(ctx)
	return err
}

// finish sets the outcome in the report.
func (t *sendJob) finish(err error) (*Report, error) {
	r, success := t.report, outcome.Done
	switch {
	case r.Plan == nil: // there is an error
	case r.Plan.Steps() == 0 && !r.Plan.RollsBack() && !t.changed.Load():
		success = outcome.UpToDate
	case t.req.DryRun:
		success = outcome.Planned
	}
	r.Conclusion = outcome.Conclude(err, success)
	return r, err
}

// SendPlanned moves a planned dataset in one try, without checks and verification. earlier is the number of streams that
// rep has seen, for their IDs. It returns the results of all started streams also with an error.
func SendPlanned(ctx context.Context, req Send, d *plan.Dataset, earlier int, at *hosts.Set, rep Reporter) ([]*StepResult, error) {
	m := &mover{ends: ends.New(at, req.Source, req.Target, &req.Settings), req: &req, rep: rep}
	m.streams.Store(int64(earlier))
	if err := m.ends.Reach(ctx); err != nil {
		return nil, err
	}
	if err := m.ends.Choose(req.Settings); err != nil {
		return nil, err
	}
	if err := m.ends.Open(ctx, rep); err != nil {
		return nil, err
	}
	err := (&datasetMove{mover: m, planned: d, left: d, passed: true}).try(ctx, 0)
	return m.results, err
}
