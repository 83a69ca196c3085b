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
	"zxfer/pkg/job/send"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/notify"
	"zxfer/pkg/replicate/statedir"
)

// Runner runs jobs. Its runs share connections.
type Runner struct {
	StateDir string
	// Now returns the current time for schedules, snapshot names and records.
	Now func() time.Time
	// Log receives messages for people. It may be called concurrently.
	Log func(string)
	// Scheduled means that a timer started the runs. IgnorePause makes them ignore pauses and closed
	// bandwidth windows.
	Scheduled, IgnorePause bool
	// NoMail means that another command sends the mail about the runs: MailLast.
	NoMail bool
	// Agent is the User-Agent of pings. PingLimits, if not nil, replaces notify.DefaultLimits.
	Agent      string
	PingLimits *notify.Limits
	// Flags holds the flags that name a job file and a state directory other than the defaults,
	// such as " --config FILE". Hints append it to commands.
	Flags string
	// Reporter returns the reporter for transfers to a target, or for everything else if target is
	// "". If Reporter or its result is nil, messages go to Log.
	Reporter func(job, target string) send.Reporter

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
	// pause is the pause that permits no transfers, or nil.
	pause *decide.Pause
	// only is the target of a switch: the others are held. "" = all are sent to.
	only string
	// promoted reports that a fail over made the source the source of all copies.
	promoted bool
	// heldAtStart has the targets whose bandwidth window was closed when the run started, with the reason.
	// They stay held if the window opens, because the run has not checked their roles.
	heldAtStart map[string]string
	// disks are the disks of targets, by target name.
	disks map[string]*diskRun
	// shared guards state, run, held and bookmarks while several targets are served.
	shared sync.Mutex
	state  *statedir.State
	// held and bookmarks are what protect placed on the source; held by tag.
	held      map[string][]string
	bookmarks []replicate.StepBookmark
	damage    *earlyDamage // nil before the end of the transfers
}

// lockRun locks the job and prepares a run. If another command holds the lock, locked waits for it
// or, unless wait is set, fails with statedir.ErrRunning (fault.Refused).
func (r *Runner) lockRun(ctx context.Context, j *replicate.Job, wait bool, hint string) (w *jobRun, unlock func(), err error) {
	store, unlock, err := r.lockStore(ctx, j, wait, hint)
	if err != nil {
		return nil, nil, err
	}
	if w, err = r.newRun(j, store); err != nil {
		unlock()
	}
	return w, unlock, err
}

// lockStore locks the job, as lockRun does. It reads no records.
func (r *Runner) lockStore(ctx context.Context, j *replicate.Job, wait bool, hint string) (store *statedir.Store, unlock func(), err error) {
	if store, err = statedir.Open(r.StateDir, j.Name); err != nil {
		return nil, nil, fmt.Errorf("state directory: %w", err)
	}
	waited := r.reporter(j.Name, "").Activity(j.Name + ": waiting for the end of " + cmp.Or(store.Holder(), "the run in progress"))
	unlock, err = store.Lock(ctx, wait)
	waited()
	switch {
	case errors.Is(err, statedir.ErrRunning):
		return nil, nil, fault.Refusef(hint, "job %q: %w", j.Name, err)
	case errors.Is(err, context.Canceled):
		return nil, nil, fault.Interrupt("", fmt.Errorf("job %q: interrupted while waiting for %s: %w", j.Name, cmp.Or(store.Holder(), "the run in progress"), err))
	}
	return store, unlock, err
}

func (r *Runner) newRun(j *replicate.Job, store *statedir.Store) (w *jobRun, err error) {
	w = &jobRun{Runner: r, job: j, store: store, held: map[string][]string{},
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

// LockJob prevents runs of a job until unlock is called. If the job is running, it fails with
// statedir.ErrRunning (fault.Refused).
func (r *Runner) LockJob(ctx context.Context, j *replicate.Job) (unlock func(), err error) {
	_, unlock, err = r.lockRun(ctx, j, false, "wait until it ends, then run the same command again")
	return unlock, err
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
func (r *Runner) reporter(name, target string) send.Reporter {
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

// logReporter is a send.Reporter that reports only log messages.
type logReporter struct {
	send.Quiet
	log func(string)
}

func (q logReporter) Log(message string) { q.log(message) }
