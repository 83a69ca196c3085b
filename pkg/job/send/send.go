package send

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

// Request is a request for `zxfer send`.
type Request struct {
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
	AllChecks  bool     // the command cannot skip checks
}

// Run runs `zxfer send`. It returns the report also with an error. Errors are Refused if
// nothing was changed on either side, and Interrupted if the same command resumes.
func Run(ctx context.Context, req Request, at *hosts.Set, rep Reporter) (*Report, error) {
	t := New(req, at, rep)
	return t.Finish(outcome.Settle(ctx, t.send(ctx)))
}

// send moves one source tree. If any part is refused or fails, the job fails.
func (t *Job) send(ctx context.Context) error {
	takeNew := t.Request.TakeSnapshot != ""
	whole := Rules{Simulated: takeNew, Survey: func(ctx context.Context) (plan.State, error) {
		if err := Resolve(ctx, t.Ends, t.Request, t.Reporter.Log); err != nil {
			return plan.State{}, err
		}
		state, err := Survey(ctx, t.Ends, t.Request.Plan, !takeNew)
		if err == nil {
			err = keyDependents(ctx, t.Ends, t.Request.Plan, &state)
		}
		return state, err
	}}
	err := t.Prepare(ctx, &whole)
	if err != nil || t.Request.DryRun {
		return err
	}
	if takeNew {
		if err := t.takeSnapshot(ctx); err != nil {
			return err
		}
		t.MarkChanged()
		whole.Simulated = false
		if err = t.surveyAndPlan(ctx, &whole, whole.Survey); err == nil {
			err = t.admit()
		}
		err = ends.Changed(err)
	}
	if err == nil {
		err = t.Deliver(ctx)
	}
	if err = outcome.Settle(ctx, err); takeNew && fault.ClassOf(err) == fault.Interrupted {
		err = fault.Interrupt("the same command resumes, with "+t.snapshotSource().String()+" as source and without {{snapshot}}", err)
	}
	return err
}

// takeSnapshot takes the snapshot of --snapshot.
func (t *Job) takeSnapshot(ctx context.Context) error {
	var names []string
	for _, d := range t.State.Source.Datasets {
		if !d.Inconsistent() { // ZFS cannot snapshot these, and the plan skips them
			names = append(names, d.Name+"@"+t.Request.TakeSnapshot)
		}
	}
	taken := t.Reporter.Activity("taking snapshots of " + english.Plural(len(names), "dataset", ""))
	err := hosts.Run(ctx, t.Ends.Source.Conn, hosts.OpSnapshot, names)
	taken()
	if err != nil {
		return fmt.Errorf("take snapshot @%s: %w", t.Request.TakeSnapshot, err)
	}
	below := ""
	if len(names) > 1 {
		below = " and " + english.Plural(len(names)-1, "dataset", "") + " below it"
	}
	t.Reporter.Log(fmt.Sprintf("took snapshot @%s of %s%s", t.Request.TakeSnapshot, t.Request.Plan.Source, below))
	return nil
}

// Deliver places bookmarks, moves the planned datasets and verifies them.
func (t *Job) Deliver(ctx context.Context) error {
	if t.Request.Bookmark {
		if err := placeBookmarks(ctx, t.Ends, t.Report.Plan); err != nil {
			return err
		}
		if t.Report.Plan.Steps() > 0 {
			t.MarkChanged()
		}
	}
	t.mover.reportsArrival = len(t.Report.Plan.Datasets) == 1 && !t.Request.Verify
	failed := t.move(ctx)
	t.joinKeys(ctx, failed)
	var errs []error
	for _, d := range t.Report.Plan.Datasets {
		errs = append(errs, failed[d.Source])
	}
	err := outcome.Join(t.joinInterrupted(errs)...)
	if err == nil {
		err = t.Retry(ctx, t.verifyAll)
	}
	if t.mover.changed.Load() {
		err = ends.Changed(err)
	}
	return err
}

// joinInterrupted replaces the errors of the interrupted datasets with one, which counts what arrived.
func (t *Job) joinInterrupted(errs []error) []error {
	others := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return errors.Is(err, ends.ErrInterrupted) })
	if len(others) == len(errs) {
		return errs
	}
	t.Report.Interrupted = true
	complete := 0
	for _, r := range t.Report.Results {
		if r.Error == "" {
			complete++
		}
	}
	return append(others, fault.Interrupt(ends.Resumes, fmt.Errorf("%s: %w: %d of %s complete, %s sent", t.Request.Plan.Source, ends.ErrInterrupted,
		complete, english.Plural(t.Report.Plan.Steps(), "stream", ""), size.Text(t.Report.Bytes))))
}

// verifyAll verifies what arrived and places holds. It also runs if nothing was
// sent, because requested holds are placed then, too.
func (t *Job) verifyAll(ctx context.Context) error {
	p, target := t.Report.Plan, t.State.Target
	title := "verifying snapshots on " + t.Ends.Target.Conn.Label()
	// Both listings run concurrently. The second one's result is checked last.
	waitUnexpected, stop := async(ctx, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, checkUnexpected(ctx, t.Ends, t.Request, p, &t.State.Target)
	})
	defer stop()
	if reported, ok := t.reportedArrival(); ok {
		target = reported
	} else if p.Steps() > 0 {
		done := t.Reporter.Activity(title)
		var err error
		target, err = listArrived(ctx, t.Ends, t.Request, p, &t.State)
		done()
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	results := expectedResults(p)
	if err := t.fillResults(results, &target, nil); err != nil {
		return err
	}
	for _, r := range t.Report.Results {
		if r.Error == "" {
			r.Verified = "guid"
		}
	}
	if t.Request.Verify {
		if p.Steps() == 0 {
			t.Reporter.Log("{{verify}}: nothing was sent, so zxfer compared only GUIDs, which are equal")
		}
		c := &contentComparison{ends: t.Ends, state: &t.State, rep: t.Reporter}
		if err := c.compareAll(ctx, p, &target, t.Report.Results); err != nil {
			return err
		}
	}
	if err := placeHolds(ctx, t.Ends, t.Request, results); err != nil {
		return fmt.Errorf("the data was received, but: %w", err)
	}
	defer t.Reporter.Activity(title)()
	_, err := waitUnexpected(ctx)
	return err
}

// Finish sets the outcome in the report.
func (t *Job) Finish(err error) (*Report, error) {
	r, success := t.Report, outcome.Done
	switch {
	case r.Plan == nil: // there is an error
	case r.Plan.Steps() == 0 && !r.Plan.RollsBack() && !t.mover.changed.Load():
		success = outcome.UpToDate
	case t.Request.DryRun:
		success = outcome.Planned
	}
	r.Conclusion = outcome.Conclude(err, success)
	return r, err
}

// RunPlanned moves a planned dataset in one try, without checks and verification. earlier is the number of streams that
// rep has seen, for their IDs. It returns the results of all started streams also with an error.
func RunPlanned(ctx context.Context, req Request, d *plan.Dataset, earlier int, at *hosts.Set, rep Reporter) ([]*StepResult, error) {
	m := &mover{ends: ends.New(at, req.Source, req.Target, &req.Settings), req: &req, rep: rep}
	m.streams.Store(int64(earlier))
	if err := m.ends.Reach(ctx); err != nil {
		return nil, err
	}
	if err := m.ends.Choose(req.Settings, rep.Log); err != nil {
		return nil, err
	}
	err := (&datasetMove{mover: m, planned: d, left: d, passed: true}).try(ctx, 0)
	return m.results, err
}
