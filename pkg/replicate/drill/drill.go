// Package drill tests the copies of a job: it reads them and compares them with their source.
package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/hook"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// Options are the command-line options of a drill.
type Options struct {
	Sample replicate.Fraction // overrides the job's sample unless 0
	Seed   uint64             // selects the sample; 0 means random
	// Scheduled means that a timer started the drill.
	Scheduled bool
}

// skips reports whether a pause makes a scheduled drill do nothing. It refuses a manual drill of a paused
// job. A pause of transfers does not affect drills.
func skips(e *session.Env, j *replicate.Job, scheduled bool) (bool, error) {
	p, err := statedir.Paused(e.StateDir, j.Name, e.Now())
	switch {
	case err != nil:
		return false, err
	case p.State(e.Now()) != decide.Paused:
		return false, nil
	case !scheduled:
		return false, p.Refusal(j.Name, e.ResumeCommand(j, p), "", session.Stamp)
	}
	e.Log(j.Name + ": " + p.Text(session.Stamp) + ": no drill")
	return true, nil
}

// drill is one drill of a job.
type drill struct {
	session    *session.Session
	options    Options
	rec        *statedir.Drill
	known      *statedir.DrillState // before this drill
	sourceDown bool                 // the source is unreachable
}

// Run tests the copies of a job: it clones the most recent snapshot of each copy, reads the
// clone and compares it with the source. It returns the record even with an error. Runs of the job may
// continue: ZFS does not destroy a snapshot with a clone, and retention keeps it. A
// scheduled drill of a paused job does nothing and has no record.
func Run(ctx context.Context, e *session.Env, j *replicate.Job, o Options) (*statedir.Drill, error) {
	if skip, err := skips(e, j, o.Scheduled); skip || err != nil {
		return nil, err
	}
	store, err := statedir.Open(e.StateDir, j.Name)
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
	s, err := e.Open(j, store)
	if err != nil {
		return nil, err
	}
	if len(s.Targets) == 0 {
		return nil, fault.Usagef("", "job %q has no [[job.target]], so it has no copy to drill", j.Name)
	}
	o.Seed = cmp.Or(o.Seed, rand.Uint64())
	d := &drill{session: s, options: o, known: known,
		rec: &statedir.Drill{Job: j.Name, Source: j.Source, Started: e.Now().UTC().Truncate(time.Second), Seed: o.Seed, Copies: []*statedir.DrillResult{}}}
	err = d.inTime(ctx)
	d.rec.Conclude(e.Now().UTC().Truncate(time.Second), err, ctx.Err() != nil)
	known.Record(d.rec)
	if stored := store.SaveDrill(d.rec, known); stored != nil {
		err = errors.Join(err, fmt.Errorf("cannot store the record of the drill: %w", stored))
	}
	d.alert(ctx)
	return d.rec, d.rec.Err(err)
}

// note records and logs a problem that does not make the drill fail.
func (d *drill) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.rec.Notes = append(d.rec.Notes, text)
	d.session.Env.Log(d.session.Job.Name + ": " + text)
}

// inTime ends the drill at its deadline.
func (d *drill) inTime(ctx context.Context) error {
	limit := limitOf(d.session.Job, d.session.Env.Now())
	if limit == 0 {
		return d.targets(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fault.Failf("set drill.deadline to a longer time, or drill.sample to a smaller part, in the job file",
		"%w of %s", statedir.ErrDeadline, calendar.Duration(limit)))
	defer cancel()
	return d.targets(ctx)
}

// limitOf returns how long the drill may take, 0 = forever. Without a limit, one huge or endless copy would
// prevent all drills that are due later.
func limitOf(j *replicate.Job, now time.Time) time.Duration {
	if j.Drill == nil {
		return 0
	}
	if e, err := calendar.Parse(j.Drill.Schedule); err == nil && j.Drill.Deadline == 0 {
		if next, ok := e.Next(now); ok {
			return next.Add(replicate.DrillGrace).Sub(now).Round(time.Minute)
		}
	}
	return time.Duration(j.Drill.Deadline)
}

// targets drills one copy at a time to leave disk time to others. A copy that the last drill did not
// finish comes last.
func (d *drill) targets(ctx context.Context) error {
	disks := disk.Find(ctx, d.session, d.rec.Started, &sync.Mutex{})
	away := func(t *session.Side) bool { on := disks.Of(t); return on != nil && !on.Usable() }
	there := slices.DeleteFunc(slices.Clone(d.session.Targets), away)
	// A drill does not need all sides, and changes none. If the roles permit no run, it reads the copies as the last run knew them.
	if s, err := d.session.Present(ctx, there); err == nil {
		d.session, d.rec.Source = s, s.Job.Source
	}
	_, err := d.session.Source.List(ctx, hosts.ListQuery{Dataset: d.session.Source.At.Name, NoAncestors: true})
	if d.sourceDown = err != nil; d.sourceDown {
		d.note("drilling copies without comparing them to the source: %v", err)
	}
	var errs []error
	var copies, again []*oneCopy
	for _, t := range d.session.Targets {
		if on := disks.Of(t); on != nil && on.State.State != decide.DiskPresent { // a run may export it at any time
			d.note("%s", on.Skipped())
			continue
		}
		found, err := d.prepare(ctx, t)
		if err != nil && !errors.Is(context.Cause(ctx), statedir.ErrDeadline) { // otherwise a consequence of the deadline
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
func (d *drill) prepare(ctx context.Context, t *session.Side) (out []*oneCopy, err error) {
	root := t.Target.CopyOf(d.session.Source.At.Name, d.session.Source.At.Name)
	if root == "" {
		return nil, fmt.Errorf("%s has no copy of %s", t.At, d.session.Source.At)
	}
	listed := d.session.Activity("listing %s", t.At)
	listing, err := t.List(ctx, hosts.ListQuery{Dataset: root, Recursive: d.session.Job.Recursive, Newest: true, NoAncestors: true})
	listed()
	if err != nil {
		return nil, err
	}
	copies := d.copies(t, root, &listing)
	if len(copies) == 0 {
		return nil, fault.Failf(d.session.Env.Command("run "+d.session.Job.Name), "%s: no copy", t.At)
	}
	left := zfs.DrillClones{Job: d.session.Job.Name}
	for _, c := range listing.Datasets {
		left.Datasets = append(left.Datasets, c.Name)
	}
	if err := t.RemoveClones(ctx, left); err != nil {
		return nil, err
	}
	for _, name := range copies {
		out = append(out, &oneCopy{of: d, t: t, as: d.session.Job.DrillAt(t.Target),
			rec: &statedir.DrillResult{Source: name, To: t.Name, Target: t.Target.CopyOf(d.session.Source.At.Name, name)}})
	}
	return out, nil
}

// copies returns the source datasets that the target has, or should have, a copy of. It skips
// intermediate datasets that never had snapshots.
func (d *drill) copies(t *session.Side, root string, listing *zfs.Listing) (names []string) {
	above := d.session.Source.At.Name
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
func (d *drill) alert(ctx context.Context) {
	if d.session.Job.Alert == nil || d.rec.Outcome == outcome.Done {
		return
	}
	like := &statedir.Run{Started: d.rec.Started, Outcome: d.rec.Outcome, Error: d.rec.FirstError()}
	env := append(hook.Environment("alert", d.session.Job, like), "ZXFER_DRILL="+d.rec.Outcome)
	defer d.session.Activity("running %s, alert", d.session.Job.Alert.Command[0])()
	if err := hook.Run(context.WithoutCancel(ctx), d.session.Job.Alert, env, d.rec); err != nil {
		d.session.Env.Log(d.session.Job.Name + ": alert: " + err.Error())
	}
}
