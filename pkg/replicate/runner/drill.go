package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// DrillOptions are the command-line options of a drill.
type DrillOptions struct {
	Sample replicate.Fraction // overrides the job's sample unless 0
	Seed   uint64             // selects the sample; 0 means random
}

// skipsDrill reports whether a pause makes a scheduled drill do nothing. It refuses a manual drill of
// a paused job. A pause of transfers does not affect drills.
func (r *Runner) skipsDrill(j *replicate.Job) (bool, error) {
	p, err := statedir.Paused(r.Env.StateDir, j.Name, r.Env.Now())
	switch {
	case err != nil:
		return false, err
	case p.State(r.Env.Now()) != decide.Paused:
		return false, nil
	case !r.Scheduled:
		return false, p.Refusal(j.Name, r.resumeCommand(j, p), "", stampLocal)
	}
	r.Env.Log(j.Name + ": " + p.Text(stampLocal) + ": no drill")
	return true, nil
}

// drillRun is one drill of a job.
type drillRun struct {
	*jobRun
	DrillOptions
	rec        *statedir.Drill
	known      *statedir.DrillState // before this drill
	sourceDown bool                 // the source is unreachable
}

// Drill tests the copies of a job: it clones the most recent snapshot of each copy, reads the
// clone and compares it with the source. It returns the record even with an error. Runs may
// continue meanwhile: ZFS does not destroy a snapshot with a clone, and retention keeps it. A
// scheduled drill of a paused job does nothing and has no record.
func (r *Runner) Drill(ctx context.Context, j *replicate.Job, o DrillOptions) (*statedir.Drill, error) {
	if skip, err := r.skipsDrill(j); skip || err != nil {
		return nil, err
	}
	store, err := statedir.Open(r.Env.StateDir, j.Name)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	unlock, err := store.LockDrill(ctx)
	if errors.Is(err, statedir.ErrRunning) {
		err = fault.Refusef("wait until it ends", "job %q: a drill is running", j.Name)
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := store.Drills()
	if err != nil {
		return nil, err
	}
	w, err := r.newRun(j, store)
	if err != nil {
		return nil, err
	}
	if len(w.session.Targets) == 0 {
		return nil, fault.Usagef("", "job %q has no [[job.target]], so it has no copy to drill", j.Name)
	}
	o.Seed = cmp.Or(o.Seed, rand.Uint64())
	d := &drillRun{jobRun: w, DrillOptions: o, known: known,
		rec: &statedir.Drill{Job: j.Name, Source: j.Source, Started: w.run.Started, Seed: o.Seed, Copies: []*statedir.DrillResult{}}}
	err = d.drillInTime(ctx)
	d.rec.Notes = w.run.Notes
	d.rec.Conclude(r.Env.Now().UTC().Truncate(time.Second), err, ctx.Err() != nil)
	known.Record(d.rec)
	if stored := store.SaveDrill(d.rec, known); stored != nil {
		err = errors.Join(err, fmt.Errorf("cannot store the record of the drill: %w", stored))
	}
	d.alert(ctx)
	return d.rec, d.rec.Err(err)
}

// drillInTime ends the drill at its deadline.
func (d *drillRun) drillInTime(ctx context.Context) error {
	limit := drillLimit(d.session.Job, d.Env.Now())
	if limit == 0 {
		return d.drillTargets(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fault.Failf("set drill.deadline to a longer time, or drill.sample to a smaller part, in the job file",
		"%w of %s", statedir.ErrDeadline, replicate.Duration(limit)))
	defer cancel()
	return d.drillTargets(ctx)
}

// drillLimit returns how long the drill may take, 0 = forever. Without a limit, one huge or endless copy would
// prevent all drills that are due later.
func drillLimit(j *replicate.Job, now time.Time) time.Duration {
	if j.Drill == nil {
		return 0
	}
	if e, err := calendar.Parse(j.Drill.Schedule); err == nil && j.Drill.Deadline == 0 {
		if next, ok := e.Next(now); ok {
			return next.Add(drillGrace).Sub(now).Round(time.Minute)
		}
	}
	return time.Duration(j.Drill.Deadline)
}

// drillTargets drills one copy at a time to leave disk time to others. A copy that the last drill did not
// finish comes last.
func (d *drillRun) drillTargets(ctx context.Context) error {
	_, err := d.jobRun.session.Source.List(ctx, hosts.ListQuery{Dataset: d.jobRun.session.Source.At.Name, NoAncestors: true})
	if d.sourceDown = err != nil; d.sourceDown {
		d.note("drilling copies without comparing them to the source: %v", err)
	}
	var errs []error
	var copies, again []*drillCopy
	d.findDisks(ctx)
	for _, t := range d.jobRun.session.Targets {
		if disk := d.disk(t); disk != nil && disk.State.State != decide.DiskPresent { // a run may export it at any time
			d.note("%s", disk.Skipped())
			continue
		}
		found, err := d.prepare(ctx, t)
		if err != nil {
			errs = append(errs, fmt.Errorf("target %s: %w", t.Name, err))
		}
		for _, c := range found {
			if last := d.known.Copies[c.rec.Source][t.Name]; last != nil && last.Outcome == statedir.NotFinished {
				again = append(again, c)
			} else {
				copies = append(copies, c)
			}
		}
	}
	for _, c := range append(copies, again...) {
		if ctx.Err() == nil {
			c.drill(ctx)
			d.rec.Copies = append(d.rec.Copies, c.rec)
		}
	}
	if ctx.Err() != nil {
		return outcome.Settle(ctx, errors.Join(append(errs, context.Cause(ctx))...))
	}
	return outcome.Join(errs...)
}

// prepare destroys the clones of killed drills of a target, and returns its copies.
func (d *drillRun) prepare(ctx context.Context, t *side) (out []*drillCopy, err error) {
	root := t.Target.CopyOf(d.jobRun.session.Source.At.Name, d.jobRun.session.Source.At.Name)
	if root == "" {
		return nil, fmt.Errorf("%s has no copy of %s", t.At, d.jobRun.session.Source.At)
	}
	listed := d.session.Activity("listing %s", t.At)
	listing, err := t.List(ctx, hosts.ListQuery{Dataset: root, Recursive: d.session.Job.Recursive, Newest: true, NoAncestors: true})
	listed()
	if err != nil {
		return nil, err
	}
	copies := d.copies(t, root, &listing)
	if len(copies) == 0 {
		return nil, fault.Failf(d.Env.Command("run "+d.session.Job.Name), "%s: no copy", t.At)
	}
	left := zfs.DrillClones{Job: d.session.Job.Name}
	for _, c := range listing.Datasets {
		left.Datasets = append(left.Datasets, c.Name)
	}
	if err := t.RemoveClones(ctx, left); err != nil {
		return nil, err
	}
	for _, name := range copies {
		out = append(out, &drillCopy{drillRun: d, t: t, as: d.session.Job.DrillAt(t.Target),
			rec: &statedir.DrillResult{Source: name, To: t.Name, Target: t.Target.CopyOf(d.jobRun.session.Source.At.Name, name)}})
	}
	return out, nil
}

// copies returns the source datasets that the target has, or should have, a copy of. It skips
// intermediate datasets that never had snapshots.
func (d *drillRun) copies(t *side, root string, listing *zfs.Listing) (names []string) {
	above := d.jobRun.session.Source.At.Name
	for _, c := range listing.Datasets {
		source := above + strings.TrimPrefix(c.Name, root)
		if len(c.Snapshots()) > 0 && d.session.Job.SelectsByName(t.Target, above, source) {
			names = append(names, source)
		}
	}
	for source, known := range d.session.State.Datasets {
		if a := known.Targets[t.Name]; a != nil && !a.Success.IsZero() && !slices.Contains(names, source) {
			names = append(names, source)
		}
	}
	slices.Sort(names)
	return names
}

// alert runs the job's alert unless the drill succeeded.
func (d *drillRun) alert(ctx context.Context) {
	if d.session.Job.Alert == nil || d.rec.Outcome == outcome.Done {
		return
	}
	like := &statedir.Run{Started: d.rec.Started, Outcome: d.rec.Outcome, Error: d.rec.FirstError()}
	env := append(HookEnvironment("alert", d.session.Job, like), "ZXFER_DRILL="+d.rec.Outcome)
	if err := d.hook(context.WithoutCancel(ctx), d.session.Job.Alert, "alert", env, d.rec); err != nil {
		d.Env.Log(d.session.Job.Name + ": alert: " + err.Error())
	}
}
