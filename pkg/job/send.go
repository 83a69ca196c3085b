package job

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
)

// RunSend runs `zxfer send`. The Report is returned, as far as it got, with
// an error too. Errors are of class fault.Refused as long as nothing was
// changed on either side, and of class fault.Interrupted where the same
// command resumes.
func RunSend(ctx context.Context, req Send, at *hosts.Set, rep Reporter) (*Report, error) {
	t := newSendJob(req, at, rep)
	return t.concluded(outcome.Settle(ctx, t.send(ctx)))
}

// concluded says in the report how a job ended.
func (t *sendJob) concluded(err error) (*Report, error) {
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

// send is a batch of what is below one source, of which any part that is refused
// or fails is the failure of all.
func (t *sendJob) send(ctx context.Context) error {
	if err := t.checkTarget(); err != nil {
		return err
	}
	defer t.warm(ctx, &t.req)()
	take := t.req.TakeSnapshot != ""
	whole := jobRules{pretended: take, survey: func(ctx context.Context) (plan.State, error) {
		if err := resolve(ctx, t.ends, &t.req, t.rep.Log); err != nil {
			return plan.State{}, err
		}
		state, err := survey(ctx, t.ends, t.req.Plan)
		if err == nil {
			err = keyDependents(ctx, t.ends, t.req.Plan, &state)
		}
		return state, err
	}}
	if err := t.begin(ctx, &whole); err != nil || t.req.DryRun {
		return err
	}
	if take {
		if err := t.takeSnapshot(ctx); err != nil {
			return err
		}
		t.changed, whole.pretended = true, false
		if err := t.prepare(ctx, &whole, whole.survey); err != nil {
			return changed(err)
		}
		if err := t.admit(); err != nil {
			return changed(err)
		}
	}
	err := t.deliver(ctx)
	if take && fault.ClassOf(err) == fault.Interrupted {
		err = fault.Interrupt("the same command resumes, with "+t.taken().String()+" as its source and without {{snapshot}}", err)
	}
	return err
}

func (t *sendJob) checkTarget() error {
	if t.req.Target.Path() {
		return fault.Usagef("name the target's pool or dataset, without a leading \"/\"", "target %s is a path, not a dataset", t.req.Target)
	}
	return nil
}

// deliver moves what was planned, and verifies it.
func (t *sendJob) deliver(ctx context.Context) error {
	failed := t.move(ctx)
	t.joinKeys(ctx, failed)
	var errs []error
	for _, d := range t.report.Plan.Datasets {
		errs = append(errs, failed[d.Source])
	}
	err := outcome.Join(errs...)
	if err == nil {
		err = t.persist(ctx, t.verifyAll)
	}
	if t.changed {
		err = changed(err)
	}
	return err
}

// taken is the source with the snapshot of --snapshot.
func (t *sendJob) taken() endpoint.Endpoint {
	return endpoint.Endpoint{Host: t.req.Source.Host, Name: t.req.Plan.Source + "@" + t.req.TakeSnapshot}
}

// checkFree refuses to take a snapshot of a name that one of the datasets has.
func (t *sendJob) checkFree() error {
	there := plan.WithSnapshot(t.state.Source, t.req.TakeSnapshot)
	if len(there) == 0 {
		return nil
	}
	return fault.Refusef("{{snapshot =}} takes one with a name of its own, made of the time\n"+
		"to send what is there: the same command, with "+t.taken().String()+" as its source and without {{snapshot}}",
		"%s: %s takes a new snapshot, but there is one of that name: %s", t.source.Label(), option.Name("snapshot", t.req.TakeSnapshot), finding.Some(there, 3))
}

// takeSnapshot takes the snapshot of --snapshot.
func (t *sendJob) takeSnapshot(ctx context.Context) error {
	var names []string
	for _, d := range t.state.Source.Datasets {
		if !d.Inconsistent() { // of what is half received ZFS takes none, and the plan skips it
			names = append(names, d.Name+"@"+t.req.TakeSnapshot)
		}
	}
	taken := t.rep.Activity("taking snapshots of " + english.Plural(len(names), "dataset", ""))
	err := t.source.Do(ctx, func(st hosts.Host) error { return st.Snapshot(ctx, names) })
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

// verifyAll verifies what arrived and places holds and bookmarks. It runs also
// where nothing had to be sent: a hold asked for is then placed all the same.
func (t *sendJob) verifyAll(ctx context.Context) error {
	p, there := t.report.Plan, t.state.Target
	look := "looking at what arrived on " + t.target.Label()
	// Both looks are on their way at once; what the second finds comes last.
	appeared, stop := async(ctx, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, checkUnexpected(ctx, t.ends, &t.req, p, &t.state.Target)
	})
	defer stop()
	if p.Steps() > 0 {
		looked := t.rep.Activity(look)
		var err error
		there, err = listArrived(ctx, t.ends, &t.req, p, &t.state)
		looked()
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	results := expectedResults(p)
	if err := t.check(results, &there, nil); err != nil {
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
		c := &comparison{ends: t.ends, state: &t.state, rep: t.rep}
		if err := c.all(ctx, p, &there, t.report.Results); err != nil {
			return err
		}
	}
	if err := placeHolds(ctx, t.ends, &t.req, results); err != nil {
		return fmt.Errorf("the data arrived, but: %w", err)
	}
	defer t.rep.Activity(look)()
	_, err := appeared(ctx)
	return err
}

// changed classifies an error that came after something was changed: a refusal
// would say that nothing was.
func changed(err error) error {
	switch fault.ClassOf(err) {
	case fault.Refused, fault.Usage:
		return &fault.Error{Class: fault.Failed, Hint: fault.HintOf(err), Err: err}
	}
	return err
}

// unchanged classifies an error that came before anything was changed.
// A failure to look is still a failure (exit 1), not a refusal.
func unchanged(err error) error {
	if errors.Is(err, context.Canceled) {
		return fault.Interrupt("nothing was changed", errors.New("interrupted"))
	}
	return err
}
