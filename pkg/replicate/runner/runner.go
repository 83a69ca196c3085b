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

// Runner runs jobs. Its runs share connections.
type Runner struct {
	StateDir string
	// Now returns the current time for schedules, snapshot names and records.
	Now func() time.Time
	// Log receives messages for people. It may be called concurrently.
	Log func(string)
	// Flags holds the flags that name a job file and a state directory other than the defaults,
	// such as " --config FILE". Hints append it to commands.
	Flags string
	// Reporter returns the reporter for transfers to a target, or for everything else if target is
	// "". If Reporter or its result is nil, messages go to Log.
	Reporter func(job, target string) job.Reporter

	hosts *hosts.Set
}

// New returns a Runner.
func New(stateDir string, open hosts.Opener, now func() time.Time, log func(string)) *Runner {
	inKeys := func(message string) { log(replicate.Keys(message)) }
	return &Runner{StateDir: stateDir, Now: now, Log: inKeys, hosts: hosts.New(open)}
}

// Close closes all connections.
func (r *Runner) Close() error { return r.hosts.Close() }

// jobRun holds the parts of a run that last, such as its record. Observations and decisions pass
// from stage to stage as replicate.Survey, replicate.RunState and replicate.Decision.
type jobRun struct {
	*Runner
	job     *replicate.Job
	scope   *replicate.Scope
	store   *statedir.Store
	source  *side
	targets []*side
	run     *statedir.Run
	// expected maps the snapshots that a preview expects to arrive to their snapshots on the source,
	// by side. Names are full. It is nil in a run.
	expected map[string]map[string]string
	// freezeErr joins the errors of snapshots that were taken without the required freeze.
	freezeErr error
	// shared guards state and run while several targets are served.
	shared sync.Mutex
	state  *statedir.State
}

// Run runs a job once and appends its record to the log. It returns the record even with an error.
// If the job is already running, Run waits or, unless wait is set, fails with statedir.ErrRunning
// (fault.Refused).
func (r *Runner) Run(ctx context.Context, j *replicate.Job, wait bool) (*statedir.Run, error) {
	w, unlock, err := r.lockRun(ctx, j, wait, "wait for its end: "+r.command("run --wait "+j.Name))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err = w.hooksBefore(ctx); err == nil {
		err = w.execute(ctx)
	}
	if err == nil && ctx.Err() == nil {
		w.checkDamage(ctx)
	} else {
		w.run.Damaged = w.previousDamage(func(*statedir.Damage) bool { return true })
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
	w.hooksAfter(ctx)
	return w.run, w.run.Verdict(err)
}

// lockRun locks the job and prepares a run. If another command holds the lock, locked waits for it
// or, unless wait is set, fails with statedir.ErrRunning (fault.Refused).
func (r *Runner) lockRun(ctx context.Context, j *replicate.Job, wait bool, hint string) (w *jobRun, unlock func(), err error) {
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
	if w, err = r.newRun(j, store); err != nil {
		unlock()
	}
	return w, unlock, err
}

func (r *Runner) newRun(j *replicate.Job, store *statedir.Store) (w *jobRun, err error) {
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

// command returns a command line of zxfer replicate for hints.
func (r *Runner) command(words string) string { return "zxfer replicate " + words + r.Flags }

// Hold prevents runs of a job until unlock is called. If the job is running, it fails with
// statedir.ErrRunning (fault.Refused).
func (r *Runner) Hold(ctx context.Context, j *replicate.Job) (unlock func(), err error) {
	_, unlock, err = r.lockRun(ctx, j, false, "wait for its end, then the same command")
	return unlock, err
}

// execute does the work between the hooks. Its error concerns the whole run.
func (w *jobRun) execute(ctx context.Context) error {
	defer w.connectTargets(ctx)()
	settled := w.store.Settled(w.job)
	v, err := w.surveyChanged(ctx, settled)
	if err != nil {
		return err
	}
	defer func() { v.Forget() }() // v is reassigned below
	v, missed, snapErr := w.takeSnapshots(ctx, v)
	if errors.Is(snapErr, errNotFrozen) && w.run.Snapshots == 0 {
		return snapErr
	}
	// A failure to take some snapshots does not stop the transfer.
	after := &replicate.RunState{Survey: v}
	for i, b := range w.send(ctx, v) {
		w.run.Targets[i] = b.record(len(v.UnchangedAt(b.name)))
		b.updateState(v, missed)
		after.Targets = append(after.Targets, b.targetState())
	}
	w.checkLeftCopies(ctx, after)
	d := w.decide(ctx, after)
	for _, h := range d.HoldChanges { // arrived snapshots need their holds even if the run was interrupted
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
		settled.Datasets = replicate.Settle(after, d.Prunings, settled.Datasets)
		if err := w.store.SaveSettled(settled); err != nil {
			w.note("what is up to date could not be remembered: %v", err)
		}
	}
	return errors.Join(snapErr, pruneErr, w.freezeErr)
}

// connectTargets connects to the targets while the source is listed. It ignores errors, because the first
// user of a connection reports them.
func (w *jobRun) connectTargets(ctx context.Context) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, t := range w.targets {
		all.Go(func() { _, _ = t.host.Facts(ctx) })
	}
	return func() { cancel(); all.Wait() }
}

// decide returns the decision for the state v. It queries snapshot dates that retention needs and
// no listing holds.
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

// created returns the creation times of snapshots by dataset and name. For snapshots that a
// preview expects to arrive, it queries the source.
func (w *jobRun) created(ctx context.Context, side string, snapshots []string) (map[string]map[string]time.Time, error) {
	var existing, coming []string
	for _, n := range snapshots {
		if of := w.expected[side][n]; of != "" {
			coming = append(coming, of)
		} else {
			existing = append(existing, n)
		}
	}
	out, err := w.side(side).created(ctx, existing)
	if err != nil || len(coming) == 0 {
		return out, err
	}
	at, err := w.source.created(ctx, coming)
	for name, of := range w.expected[side] {
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

// side returns the target with that name, or the source.
func (w *jobRun) side(name string) *side {
	for _, t := range w.targets {
		if t.name == name {
			return t
		}
	}
	return w.source
}

// reporter returns the reporter for a target of a job, or for the job itself if target is "".
func (r *Runner) reporter(name, target string) job.Reporter {
	if r.Reporter != nil {
		if rep := r.Reporter(name, target); rep != nil {
			return rep
		}
	}
	return logReporter{log: r.Log}
}

// activity reports an activity until done is called.
func (w *jobRun) activity(format string, args ...any) (done func()) {
	return w.reporter(w.job.Name, "").Activity(w.job.Name + ": " + fmt.Sprintf(format, args...))
}

// note records and logs a problem that does not make the run fail.
func (w *jobRun) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.run.Notes = append(w.run.Notes, text)
	w.Log(w.job.Name + ": " + text)
}
