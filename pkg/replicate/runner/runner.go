package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/site"
	"zxfer/pkg/way"
	"zxfer/pkg/zfs"
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

// work is one run of a job.
type work struct {
	*Runner
	job   *replicate.Job
	scope *replicate.Scope
	store *record.Store
	state *record.State
	run   *record.Run

	source endpoint.Endpoint
	all    zfs.Listing // the source, as it was found
	// listing has the datasets that the job selects, but for those in idle.
	listing zfs.Listing
	// selected are the names of all that the job selects.
	selected map[string]bool
	targets  []*targetWork
	// settled is what earlier runs found nothing to do for, idle what of it is
	// as it was then, by name: this run leaves it out.
	settled *record.Settled
	idle    map[string]bool
	// beyond tells that there is no limit to what one run may remove.
	beyond bool
	// unsnapped is why no snapshot was taken of datasets that needed one.
	unsnapped map[string]error
	// pruneFailed is why retention on the source did.
	pruneFailed error
	// shared is held for state and run while several targets are served.
	shared sync.Mutex
}

// targetWork is the part of a run that is one target's.
type targetWork struct {
	*replicate.Target
	to       endpoint.Endpoint
	transfer *replicate.Transfer
	run      *record.TargetRun
	result   *job.BatchResult // nil until there is one
	cut      map[string]bool  // source datasets whose streams were cut in this run
}

func (r *Runner) work(j *replicate.Job, store *record.Store) (w *work, err error) {
	w = &work{Runner: r, job: j, store: store, run: &record.Run{Job: j.Name, Source: j.Source, Started: r.Now().UTC().Truncate(time.Second), Targets: []*record.TargetRun{}}, idle: map[string]bool{}, unsnapped: map[string]error{}}
	if w.scope, err = j.Scope(); err != nil {
		return nil, fault.Usagef("", "job %q: %w", j.Name, err)
	}
	if w.source, err = endpoint.Parse(j.Source); err != nil {
		return nil, err
	}
	if w.state, err = store.State(); err != nil {
		return nil, err
	}
	for i := range j.Targets {
		t := &targetWork{Target: &j.Targets[i], transfer: j.TransferTo(&j.Targets[i]), cut: map[string]bool{}}
		if t.to, err = endpoint.Parse(t.To); err != nil {
			return nil, err
		}
		t.run = &record.TargetRun{Target: t.Name, To: t.To}
		w.targets = append(w.targets, t)
		w.run.Targets = append(w.run.Targets, t.run)
	}
	return w, nil
}

// Run runs a job once. The record is returned, as far as it got, with an error
// too, and is in the log by then. Where the job runs already, Run waits for its
// end, or with wait false fails with record.ErrRunning (fault.Refused).
func (r *Runner) Run(ctx context.Context, j *replicate.Job, wait bool) (*record.Run, error) {
	store, err := record.Open(r.StateDir, j.Name)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	unlock, err := store.Lock(ctx, wait)
	if errors.Is(err, record.ErrRunning) {
		return nil, fault.Refusef("wait for its end: "+r.command("run --wait "+j.Name), "job %q: %w", j.Name, err)
	}
	if errors.Is(err, context.Canceled) {
		return nil, fault.Interrupt("", fmt.Errorf("job %q: interrupted while it waited for the run under way: %w", j.Name, err))
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	w, err := r.work(j, store)
	if err != nil {
		return nil, err
	}
	err = w.before(ctx)
	if err == nil {
		err = w.move(ctx)
	}
	w.conclude(ctx, err)
	if stored := w.remember(); stored != nil {
		err = errors.Join(err, fmt.Errorf("job %q: its record could not be stored: %w", j.Name, stored))
	}
	w.after(ctx)
	return w.run, w.verdict(err)
}

// move does the work between the hooks. Its error concerns the whole run.
func (w *work) move(ctx context.Context) error {
	if err := w.surveyChanged(ctx); err != nil {
		return err
	}
	snapErr := w.takeSnapshots(ctx) // what there is, is sent all the same
	w.send(ctx)
	d := w.decide(ctx)
	for _, h := range d.Holdings { // what arrived is to be held also where the run was interrupted
		w.hold(context.WithoutCancel(ctx), w.target(h.Target), h)
	}
	if ctx.Err() == nil {
		w.prune(ctx, d.Prunings)
		w.forget(ctx, d.Bookmarks)
	}
	if len(w.targets) == 0 {
		w.updateAlone(ctx)
	}
	if ctx.Err() == nil && snapErr == nil {
		w.settle(d.Prunings)
	}
	return errors.Join(snapErr, w.pruneFailed)
}

// sourceHost is reached by the job's own settings.
func (w *work) sourceHost() *hosts.Host { return w.hosts.At(w.source.Host, &w.job.Transfer.Way) }

// onSource does at the source what may be done twice. What records, hooks and JSON
// are told of its errors names the keys of the job file, as for onTarget.
func (w *work) onSource(ctx context.Context, f func(site.Site) error) error {
	return replicate.InKeys(w.sourceHost().Again(ctx, f))
}

func (w *work) onTarget(ctx context.Context, t *targetWork, f func(site.Site) error) error {
	return replicate.InKeys(w.hosts.At(t.to.Host, &t.transfer.Way).Again(ctx, f))
}

// survey lists the source, once.
func (w *work) survey(ctx context.Context) error {
	return w.list(ctx, site.ListQuery{Dataset: w.source.Name, Recursive: w.job.Recursive, Versions: true, Changed: true})
}

func (w *work) list(ctx context.Context, q site.ListQuery) error {
	err := w.onSource(ctx, func(st site.Site) (err error) {
		w.all, err = st.List(ctx, q)
		return err
	})
	if err != nil {
		return err
	}
	if len(w.all.Datasets) == 0 {
		return w.missingSource(ctx)
	}
	w.listing = w.all
	w.listing.Datasets, w.selected = nil, map[string]bool{}
	for _, d := range w.all.Datasets {
		if w.job.Selects(w.source.Name, d.Name) {
			w.listing.Datasets = append(w.listing.Datasets, d)
			w.selected[d.Name] = true
		}
	}
	w.state.Follow(w.listing.Datasets)
	w.run.Datasets = len(w.listing.Datasets)
	if w.run.Datasets == 0 {
		return fault.Refusef("look at include and exclude", "%s: include and exclude leave none of its %s over", w.source, english.Plural(len(w.all.Datasets), "dataset", ""))
	}
	return nil
}

// request is the batch for one target.
func (w *work) request(t *targetWork, g *gate) job.Batch {
	tr := t.transfer
	retries := way.Retries
	if w.job.Retries != nil {
		retries = *w.job.Retries
	}
	b := job.Batch{Survey: w.listing, Send: job.Send{
		Source: w.source, Target: t.to,
		Plan: plan.Request{
			Source: w.source.Name, Target: t.to.Name, Recursive: w.job.Recursive,
			LatestOnly: w.job.Snapshots.LatestOnly, IncludeSnapshots: w.scope.Patterns(), Decrypt: tr.Decrypt,
			CarryProperties: t.Properties.Carry, Set: t.Properties.Set, Exclude: t.Properties.Exclude,
		},
		Way: tr.Way, Clock: w.Now, Retries: retries, SkipChecks: tr.SkipChecks,
	}}
	if len(w.idle) > 0 {
		b.Copies = replicate.Decide(w.view()).Copies[t.Name]
	}
	if g != nil {
		b.Gate = g.of(t.Name)
	}
	b.Review = func(p *plan.Plan, st plan.State) { w.review(t, p, st) }
	return b
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// before runs the hooks that come first.
func (w *work) before(ctx context.Context) error {
	for i := range w.job.Before {
		h := &w.job.Before[i]
		err := runHook(ctx, h, HookEnvironment("before", w.job, w.run), nil)
		switch {
		case err != nil && h.OnFailure == "continue":
			w.note("hook before the run: %v", err)
		case err != nil:
			return fault.Refusef(`on_failure = "continue" would go on`, "hook before the run: %w", err)
		}
	}
	return nil
}

// after runs the hooks that come last, and the alert where there is need.
// They run also when the run was interrupted.
func (w *work) after(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	text, err := json.Marshal(w.run)
	if err != nil {
		w.note("record for the hooks: %v", err)
		return
	}
	for i := range w.job.After {
		if err := runHook(ctx, &w.job.After[i], HookEnvironment("after", w.job, w.run), bytes.NewReader(text)); err != nil {
			w.note("hook after the run: %v", err)
		}
	}
	if w.job.Alert == nil || w.run.Outcome == outcome.Done || w.run.Outcome == outcome.UpToDate {
		return
	}
	if err := runHook(ctx, w.job.Alert, HookEnvironment("alert", w.job, w.run), bytes.NewReader(text)); err != nil {
		w.note("alert: %v", err)
	}
}

// note is something that went wrong without making the run fail.
func (w *work) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.run.Notes = append(w.run.Notes, text)
	w.Log(w.job.Name + ": " + text)
}
