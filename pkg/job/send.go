package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
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
	// Gate, if not nil, replaces Parallel: it is called before each dataset. Jobs with a common
	// limit share a Gate. It blocks until the dataset may start, or returns an error after ctx
	// ended.
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
	return t.finish(outcome.Settle(ctx, t.send(ctx)))
}

// send moves one source tree. If any part is refused or fails, the job fails.
func (t *sendJob) send(ctx context.Context) error {
	if err := t.checkTarget(); err != nil {
		return err
	}
	defer t.warm(ctx, &t.req)()
	takeNew := t.req.TakeSnapshot != ""
	whole := jobRules{simulated: takeNew, survey: func(ctx context.Context) (plan.State, error) {
		if err := resolve(ctx, t.ends, &t.req, t.rep.Log); err != nil {
			return plan.State{}, err
		}
		state, err := survey(ctx, t.ends, t.req.Plan)
		if err == nil {
			err = keyDependents(ctx, t.ends, t.req.Plan, &state)
		}
		return state, err
	}}
	if err := t.prepareMove(ctx, &whole); err != nil || t.req.DryRun {
		return err
	}
	if takeNew {
		if err := t.takeSnapshot(ctx); err != nil {
			return err
		}
		t.changed, whole.simulated = true, false
		if err := t.surveyAndPlan(ctx, &whole, whole.survey); err != nil {
			return changed(err)
		}
		if err := t.admit(); err != nil {
			return changed(err)
		}
	}
	err := t.deliver(ctx)
	if takeNew && fault.ClassOf(err) == fault.Interrupted {
		err = fault.Interrupt("the same command resumes, with "+t.snapshotSource().String()+" as its source and without {{snapshot}}", err)
	}
	return err
}

func (t *sendJob) checkTarget() error {
	if t.req.Target.Path() {
		return fault.Usagef("name the target's pool or dataset, without a leading \"/\"", "target %s is a path, not a dataset", t.req.Target)
	}
	return nil
}

// checkFree refuses a snapshot name that one of the datasets already has.
func (t *sendJob) checkFree() error {
	existing := plan.WithSnapshot(t.state.Source, t.req.TakeSnapshot)
	if len(existing) == 0 {
		return nil
	}
	return fault.Refusef("{{snapshot =}} takes one with a name of its own, made of the time\n"+
		"to send what is there: the same command, with "+t.snapshotSource().String()+" as its source and without {{snapshot}}",
		"%s: %s takes a new snapshot, but there is one of that name: %s", t.source.Label(), option.Name("snapshot", t.req.TakeSnapshot), finding.Some(existing, 3))
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
	err := hosts.Run(ctx, t.source.Conn, hosts.OpSnapshot, names)
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

func (t *sendJob) snapshotSource() endpoint.Endpoint {
	return endpoint.Endpoint{Host: t.req.Source.Host, Name: t.req.Plan.Source + "@" + t.req.TakeSnapshot}
}

// deliver moves the planned datasets and verifies them.
func (t *sendJob) deliver(ctx context.Context) error {
	failed := t.move(ctx)
	t.joinKeys(ctx, failed)
	var errs []error
	for _, d := range t.report.Plan.Datasets {
		errs = append(errs, failed[d.Source])
	}
	err := outcome.Join(errs...)
	if err == nil {
		err = t.retryLost(ctx, t.verifyAll)
	}
	if t.changed {
		err = changed(err)
	}
	return err
}

// verifyAll verifies what arrived and places holds and bookmarks. It also runs if nothing was
// sent, because requested holds are placed then too.
func (t *sendJob) verifyAll(ctx context.Context) error {
	p, target := t.report.Plan, t.state.Target
	title := "looking at what arrived on " + t.target.Label()
	// Both listings run concurrently. The second one's result is checked last.
	waitUnexpected, stop := async(ctx, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, checkUnexpected(ctx, t.ends, &t.req, p, &t.state.Target)
	})
	defer stop()
	if p.Steps() > 0 {
		done := t.rep.Activity(title)
		var err error
		target, err = listArrived(ctx, t.ends, &t.req, p, &t.state)
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
			t.rep.Log("{{verify}}: nothing was sent, so there are only GUIDs to compare, which are equal")
		}
		c := &contentComparison{ends: t.ends, state: &t.state, rep: t.rep}
		if err := c.compareAll(ctx, p, &target, t.report.Results); err != nil {
			return err
		}
	}
	if err := placeHolds(ctx, t.ends, &t.req, results); err != nil {
		return fmt.Errorf("the data arrived, but: %w", err)
	}
	defer t.rep.Activity(title)()
	_, err := waitUnexpected(ctx)
	return err
}

// finish sets the outcome in the report.
func (t *sendJob) finish(err error) (*Report, error) {
	r := t.report
	switch {
	case err != nil:
		r.Outcome, r.Error, r.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
	case r.Plan.Steps() == 0 && !r.Plan.RollsBack() && !t.changed:
		r.Outcome = outcome.UpToDate
	case t.req.DryRun:
		r.Outcome = outcome.Planned
	default:
		r.Outcome = outcome.Done
	}
	return r, err
}

// changed turns a refusal into a failure, because something was already changed.
func changed(err error) error {
	switch fault.ClassOf(err) {
	case fault.Refused, fault.Usage:
		return &fault.Error{Class: fault.Failed, Hint: fault.HintOf(err), Err: err}
	}
	return err
}

// unchanged classifies an error before any change. A failed query is still a failure (exit 1),
// not a refusal.
func unchanged(err error) error {
	if errors.Is(err, context.Canceled) {
		return fault.Interrupt("nothing was changed", errors.New("interrupted"))
	}
	return err
}
