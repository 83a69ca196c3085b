package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/damage"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/notify"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// Run runs a job once and appends its record to the log. It returns the record even with an error.
// If the job is already running, Run waits or, unless wait is set, fails with statedir.ErrRunning
// (fault.Refused). If the job is paused, a scheduled run does nothing, and a manual one is refused.
func (r *Runner) Run(ctx context.Context, j *replicate.Job, wait bool) (*statedir.Run, error) {
	p := r.pinger(j)
	rec, err := r.runOnce(ctx, j, wait, p)
	r.notifyEnd(ctx, j, p, rec, err)
	return rec, err
}

// runOnce is Run without the messages at the end. p, if not nil, reports the start.
func (r *Runner) runOnce(ctx context.Context, j *replicate.Job, wait bool, p *notify.Pinger) (*statedir.Run, error) {
	if err := r.standby(j); err != nil {
		return nil, err
	}
	store, unlock, err := r.Env.LockStore(ctx, j, wait, "wait until it ends: "+r.Env.Command("run --wait "+j.Name))
	if err != nil {
		return nil, err
	}
	defer unlock()
	pause, extent, err := r.checkPause(j) // before the state is read, which may be damaged
	if err != nil && fault.ClassOf(err) == fault.Refused {
		return nil, err
	}
	if err != nil {
		return nil, r.recordFailure(j, store, err)
	}
	if extent == decide.RunNothing {
		return r.skip(j, store, pause)
	}
	w, err := r.newRun(j, store)
	if err != nil {
		return nil, r.recordFailure(j, store, err)
	}
	if p != nil {
		p.Start(ctx)
	}
	if extent == decide.RunSource && len(w.session.Targets) > 0 {
		w.pause, w.run.Paused = pause, pause.Text(session.Stamp)
	}
	return w.complete(ctx)
}

// complete runs a locked job once, with its hooks, and records the run.
func (w *jobRun) complete(ctx context.Context) (_ *statedir.Run, err error) {
	if err = w.hooksBefore(ctx); err == nil {
		w.attachDisks(ctx)
		err = w.execute(ctx)
		w.scrubDisks(ctx)
	}
	if err == nil && ctx.Err() == nil {
		w.recordDamage(w.damage.Finish(ctx, w.run, w.absent))
	} else {
		w.recordDamage(damage.Keep(w.session))
	}
	w.damage.Stop()
	w.detachDisks(ctx)
	w.run.Conclude(w.Env.Now().UTC().Truncate(time.Second), err, ctx.Err() != nil)
	w.run.Stopped = ctx.Err() != nil && w.run.Outcome == outcome.Interrupted
	w.session.State.LastRun = w.run.WithoutDatasets()
	switch {
	case w.session.Job.DrillSchedule() == "":
		w.session.State.DrillSince = time.Time{}
	case w.session.State.DrillSince.IsZero():
		w.session.State.DrillSince = w.run.Started
	}
	err = w.record(err, ctx.Err() != nil)
	w.hooksAfter(ctx)
	return w.run, w.run.Err(err)
}

// record stores the state and then the record of a concluded run. If one cannot be stored, the run counts as
// failed, and the record says so. err is the error of the whole run, which record returns with its own.
func (w *jobRun) record(err error, stopped bool) error {
	for _, store := range []func() error{
		func() error { return w.session.Store.Save(w.session.State) },
		func() error { return w.session.Store.Append(w.run) },
	} {
		if failed := store(); failed != nil {
			err = errors.Join(err, fmt.Errorf("cannot store the record of the run: %w", failed))
			w.run.Conclude(w.run.Ended, err, stopped)
		}
	}
	return err
}

// execute does the work between the hooks. Its error concerns the whole run.
func (w *jobRun) execute(ctx context.Context) error {
	w.heldAtStart = map[string]string{}
	for _, t := range w.session.Targets {
		if b := w.heldBatch(t); b != nil {
			w.heldAtStart[t.Name] = b.held
		}
	}
	connected, disconnect := w.connectHosts(ctx)
	defer disconnect()
	roles, stop := w.readRoles(ctx, w.session.Source.At.Name)
	defer stop()
	settled := w.session.Store.UnchangedCache(w.session.Job)
	v, err := w.surveyChanged(ctx, settled)
	if err != nil {
		return err
	}
	defer func() { v.Forget() }() // v is reassigned below
	early, stopListing := w.listTargets(ctx, v)
	defer stopListing()
	if err := w.judgeRoles(v.Root, roles); err != nil {
		return err
	}
	if time.Since(roles.began) > maxRolesAge {
		if err := w.checkRoles(ctx, v.Root); err != nil {
			return err
		}
	}
	if err := w.confirm(ctx, v); err != nil {
		return err
	}
	v, missed, snapErr := w.takeSnapshots(ctx, v)
	if errors.Is(snapErr, errNotFrozen) && w.run.Snapshots == 0 {
		return snapErr
	}
	w.followRenames(ctx, v)
	connected() // otherwise the batches would ask for the same facts
	// A failure to take some snapshots does not stop the transfer.
	after := &replicate.RunState{Survey: v}
	for i, b := range w.send(ctx, v, early) {
		w.run.Targets[i] = b.record(len(v.UnchangedAt(b.Name)))
		if !b.absent {
			b.updateState(v, missed)
		}
		after.Targets = append(after.Targets, b.targetState())
		w.noteLacking(b)
		w.recordOrigins(ctx, v, b)
	}
	stopListing()
	v.AddBookmarks(w.bookmarks)
	w.damage = damage.Start(ctx, w.session, w.sentSides())
	d := w.decide(ctx, after)
	pruneErr := w.finish(ctx, d)
	if len(w.session.Targets) == 0 {
		v.EndLocal(missed, cmp.Or(pruneErr, ctx.Err()))
	}
	if ctx.Err() == nil && snapErr == nil {
		settled.Datasets = replicate.CacheUnchanged(after, d.Prunings, settled.Datasets)
		if err := w.session.Store.SaveUnchangedCache(settled); err != nil {
			w.note("cannot store the list of unchanged datasets: %v", err)
		}
	}
	return errors.Join(snapErr, pruneErr, w.freezeErr)
}

// connectHosts connects to the hosts of the run and asks for their facts, while the source is listed. It
// ignores errors, because the first user of a connection reports them. wait waits for the answers. stop
// cancels the queries and waits.
func (w *jobRun) connectHosts(ctx context.Context) (wait, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	needed := map[*hosts.Conn]bool{}
	for _, t := range w.session.Targets {
		if w.heldBatch(t) == nil {
			needed[w.session.Source.Host], needed[t.Host] = true, true
		}
	}
	var all sync.WaitGroup
	for h := range needed {
		all.Go(func() { _, _ = h.Facts(ctx) })
		all.Go(func() { h.System(ctx) })
	}
	return all.Wait, func() { cancel(); all.Wait() }
}

// sentSides returns the source and the targets that the run sent to, without disks: a disk is asked for its data
// errors after the scrub.
func (w *jobRun) sentSides() []*side {
	all := []*side{w.session.Source}
	for i, t := range w.session.Targets {
		if r := w.run.Targets[i]; w.disk(t) == nil && r.Sent > 0 && r.Error == "" {
			all = append(all, t)
		}
	}
	return all
}

func (w *jobRun) recordDamage(r damage.Result) {
	w.run.Damaged, w.session.State.Pools = r.Damaged, r.Pools
	w.run.Notes = append(w.run.Notes, r.Notes...)
}
