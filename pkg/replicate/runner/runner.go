package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// Runner runs jobs. Runs of one Runner share their connections.
type Runner struct {
	StateDir string
	// Now is the clock: of schedules, names of snapshots and records.
	Now func() time.Time
	// Log is told what is done, for a person; it may be called from several
	// goroutines.
	Log func(string)
	// Flags name, on a command line, the job file and the state directory, where
	// they are not the usual ones: " --config FILE". For hints.
	Flags string
	// Reporter, where not nil, returns who is told of what a job sends to a target,
	// as of a transfer of its own; and with the target "" of what else a run does.
	// nil of it, too, is nobody: only Log is told then.
	Reporter func(job, target string) job.Reporter

	hosts *hosts.Set
}

// New returns a Runner.
func New(stateDir string, open hosts.Opener, now func() time.Time, log func(string)) *Runner {
	inKeys := func(message string) { log(replicate.Keys(message)) }
	return &Runner{StateDir: stateDir, Now: now, Log: inKeys, hosts: hosts.New(open)}
}

// command is a command of zxfer replicate, to be pasted.
func (r *Runner) command(words string) string { return "zxfer replicate " + words + r.Flags }

// Close ends all connections.
func (r *Runner) Close() error { return r.hosts.Close() }

// jobRun is one run of a job: what of it stays, and its record. What it finds goes
// from stage to stage, as a replicate.View and what is decided by that.
type jobRun struct {
	*Runner
	job     *replicate.Job
	scope   *replicate.Scope
	store   *statedir.Store
	source  *side
	targets []*side
	run     *statedir.Run
	// coming are the snapshots that a preview has arrive, by side and full name, as the
	// source has them; a run has none.
	coming map[string]map[string]string
	// unproved is why snapshots that were taken are not what they were to be: consistent.
	unproved error
	// shared is held for state and run while several targets are served.
	shared sync.Mutex
	state  *statedir.State
}

func (r *Runner) work(j *replicate.Job, store *statedir.Store) (w *jobRun, err error) {
	w = &jobRun{Runner: r, job: j, store: store,
		run: &statedir.Run{Job: j.Name, Source: j.Source, Started: r.Now().UTC().Truncate(time.Second), Targets: []*statedir.TargetRun{}}}
	if w.scope, err = j.Scope(); err != nil {
		return nil, fault.Usagef("", "job %q: %w", j.Name, err)
	}
	if w.state, err = store.State(); err != nil {
		return nil, err
	}
	if w.source, err = newSide(r.hosts, replicate.SourceSide, j.Source, &j.Transfer); err != nil {
		return nil, err
	}
	for i := range j.Targets {
		t := &j.Targets[i]
		s, err := newSide(r.hosts, t.Name, t.To, j.TransferTo(t))
		if err != nil {
			return nil, err
		}
		s.target = t
		w.targets = append(w.targets, s)
		w.run.Targets = append(w.run.Targets, &statedir.TargetRun{Target: t.Name, To: t.To})
	}
	return w, nil
}

// locked begins what changes the records of a job. If something else holds the lock of the
// job, locked waits for its end, or without wait fails with record.ErrRunning
// (fault.Refused), which names the command.
func (r *Runner) locked(ctx context.Context, j *replicate.Job, wait bool, hint string) (w *jobRun, unlock func(), err error) {
	store, err := statedir.Open(r.StateDir, j.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("state directory: %w", err)
	}
	waited := r.reporter(j.Name, "").Activity(j.Name + ": waiting for the end of " + cmp.Or(store.Holder(), "the run in progress"))
	unlock, err = store.Lock(ctx, wait)
	waited()
	switch {
	case errors.Is(err, statedir.ErrRunning):
		return nil, nil, fault.Refusef(hint, "job %q: %w", j.Name, err)
	case errors.Is(err, context.Canceled):
		return nil, nil, fault.Interrupt("", fmt.Errorf("job %q: interrupted while it waited for %s: %w", j.Name, cmp.Or(store.Holder(), "the run in progress"), err))
	case err != nil:
		return nil, nil, err
	}
	if w, err = r.work(j, store); err != nil {
		unlock()
	}
	return w, unlock, err
}

// Run runs a job once. The record is returned, as far as it got, with an error
// too, and is in the log by then. Where the job runs already, Run waits for its
// end, or with wait false fails with record.ErrRunning (fault.Refused).
func (r *Runner) Run(ctx context.Context, j *replicate.Job, wait bool) (*statedir.Run, error) {
	w, unlock, err := r.locked(ctx, j, wait, "wait for its end: "+r.command("run --wait "+j.Name))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err = w.before(ctx); err == nil {
		err = w.move(ctx)
	}
	if err == nil && ctx.Err() == nil {
		w.lookForDamage(ctx)
	} else {
		w.run.Damaged = w.damagedBefore(func(*statedir.Damage) bool { return true })
	}
	w.run.Conclude(w.Now().UTC().Truncate(time.Second), err, ctx.Err() != nil)
	w.state.LastRun = w.run.Brief()
	switch {
	case w.job.DrillSchedule() == "":
		w.state.DrillSince = time.Time{}
	case w.state.DrillSince.IsZero():
		w.state.DrillSince = w.run.Started
	}
	if stored := errors.Join(w.store.Append(w.run), w.store.Save(w.state)); stored != nil {
		err = errors.Join(err, fmt.Errorf("job %q: its record could not be stored: %w", j.Name, stored))
	}
	w.after(ctx)
	return w.run, w.run.Verdict(err)
}

// Hold keeps a job from running, until it is unlocked. Where it runs it fails with
// record.ErrRunning (fault.Refused).
func (r *Runner) Hold(ctx context.Context, j *replicate.Job) (unlock func(), err error) {
	_, unlock, err = r.locked(ctx, j, false, "wait for its end, then the same command")
	return unlock, err
}

// move does the work between the hooks. Its error concerns the whole run.
func (w *jobRun) move(ctx context.Context) error {
	defer w.warm(ctx)()
	settled := w.store.Settled(w.job)
	v, err := w.surveyChanged(ctx, settled)
	if err != nil {
		return err
	}
	defer func() { v.Forget() }() // of the last look
	v, missed, snapErr := w.takeSnapshots(ctx, v)
	if errors.Is(snapErr, errNotFrozen) && w.run.Snapshots == 0 {
		return snapErr
	}
	// What there is, is sent all the same.
	for i, b := range w.send(ctx, v) {
		w.run.Targets[i] = b.record(len(v.UnchangedAt(b.name)))
		b.learn(v, missed)
		v.Targets = append(v.Targets, b.seen())
	}
	w.lookAside(ctx, v)
	d := w.decide(ctx, v)
	for _, h := range d.HoldChanges { // what arrived is to be held also where the run was interrupted
		w.hold(context.WithoutCancel(ctx), h)
	}
	var pruneErr error
	if ctx.Err() == nil {
		pruneErr = w.prune(ctx, d)
	}
	if len(w.targets) == 0 {
		v.EndLocal(missed, cmp.Or(pruneErr, ctx.Err()))
	}
	if ctx.Err() == nil && snapErr == nil {
		settled.Datasets = replicate.Settle(v, d.Prunings, settled.Datasets)
		if err := w.store.SaveSettled(settled); err != nil {
			w.note("what is up to date could not be remembered: %v", err)
		}
	}
	return errors.Join(snapErr, pruneErr, w.unproved)
}

// warm reaches the targets while the source is looked at. What goes wrong whoever needs
// one is told.
func (w *jobRun) warm(ctx context.Context) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, t := range w.targets {
		all.Go(func() { _, _ = t.host.Facts(ctx) })
	}
	return func() { cancel(); all.Wait() }
}

// decide returns what is to be done by all that was seen. What decides about
// retention and is in no listing is asked for.
func (w *jobRun) decide(ctx context.Context, v *replicate.RunState) *replicate.Decision {
	v.Now = w.Now()
	d := replicate.Decide(v)
	if len(d.Ask) > 0 {
		v.Created, v.QueryErrors = map[string]map[string]map[string]time.Time{}, map[string]error{}
		for name, snapshots := range d.Ask {
			v.Created[name], v.QueryErrors[name] = w.created(ctx, name, snapshots)
		}
		d = replicate.Decide(v)
	}
	for _, p := range d.Prunings {
		if p.Refused && p.Mirror {
			p.Hint = "look what became of the source; what would go: " + w.command("prune -n "+w.job.Name) +
				"\nto remove it, once: " + w.command("prune --beyond-limit "+w.job.Name)
		} else if p.Refused {
			p.Hint = "the job's retention or adopt was changed, or something is wrong; look: " + w.command("prune -n "+w.job.Name) +
				"\nto remove them, once: " + w.command("prune --beyond-limit "+w.job.Name)
		}
	}
	return d
}

// created asks a side when snapshots were taken; the source of those that a preview
// only has arrive.
func (w *jobRun) created(ctx context.Context, side string, snapshots []string) (map[string]map[string]time.Time, error) {
	var there, coming []string
	for _, n := range snapshots {
		if of := w.coming[side][n]; of != "" {
			coming = append(coming, of)
		} else {
			there = append(there, n)
		}
	}
	out, err := w.side(side).created(ctx, there)
	if err != nil || len(coming) == 0 {
		return out, err
	}
	at, err := w.source.created(ctx, coming)
	for name, of := range w.coming[side] {
		dataset, snapshot, _ := strings.Cut(of, "@")
		if created, ok := at[dataset][snapshot]; ok {
			dataset, snapshot, _ = strings.Cut(name, "@")
			if out[dataset] == nil {
				out[dataset] = map[string]time.Time{}
			}
			out[dataset][snapshot] = created
		}
	}
	return out, err
}

// side is the one of that name.
func (w *jobRun) side(name string) *side {
	for _, t := range w.targets {
		if t.name == name {
			return t
		}
	}
	return w.source
}

// reporter is who is told of a job's target, "" for what concerns none.
func (r *Runner) reporter(name, target string) job.Reporter {
	if r.Reporter != nil {
		if rep := r.Reporter(name, target); rep != nil {
			return rep
		}
	}
	return quiet{log: r.Log}
}

// doing tells that something is under way, until done is called.
func (w *jobRun) doing(format string, args ...any) (done func()) {
	return w.reporter(w.job.Name, "").Activity(w.job.Name + ": " + fmt.Sprintf(format, args...))
}

// note is something that went wrong without making the run fail.
func (w *jobRun) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.run.Notes = append(w.run.Notes, text)
	w.Log(w.job.Name + ": " + text)
}
