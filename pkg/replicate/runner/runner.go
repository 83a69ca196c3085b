package runner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/damage"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/notify"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// Runner runs jobs. Its runs share connections.
type Runner struct {
	Env *session.Env
	// Scheduled means that a timer started the runs. IgnorePause makes them ignore pauses and closed
	// bandwidth windows.
	Scheduled, IgnorePause bool
	// NoMail means that another command sends the mail about the runs: MailLast.
	NoMail bool
	// Agent is the User-Agent of pings. PingLimits, if not nil, replaces notify.DefaultLimits.
	Agent      string
	PingLimits *notify.Limits
}

// New returns a Runner with an Env of its own, which the caller closes.
func New(stateDir string, open hosts.Opener, now func() time.Time, log func(string)) *Runner {
	return &Runner{Env: session.NewEnv(stateDir, open, now, log)}
}

// side is short for session.Side.
type side = session.Side

// jobRun holds the parts of a run that last, such as its record. Observations and decisions pass
// from stage to stage as replicate.Survey, replicate.RunState and replicate.Decision.
type jobRun struct {
	*Runner
	session *session.Session
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
	// disks are the disks of targets; nil = not searched for.
	disks *disk.Set
	// shared guards session.State, run, held and bookmarks while several targets are served.
	shared sync.Mutex
	// held and bookmarks are what protect placed on the source; held by tag.
	held      map[string][]string
	bookmarks []replicate.StepBookmark
	damage    *damage.Check // nil before the end of the transfers
}

// lockRun locks the job and prepares a run. If another command holds the lock, locked waits for it
// or, unless wait is set, fails with statedir.ErrRunning (fault.Refused).
func (r *Runner) lockRun(ctx context.Context, j *replicate.Job, wait bool, hint string) (w *jobRun, unlock func(), err error) {
	store, unlock, err := r.Env.LockStore(ctx, j, wait, hint)
	if err != nil {
		return nil, nil, err
	}
	if w, err = r.newRun(j, store); err != nil {
		unlock()
	}
	return w, unlock, err
}

func (r *Runner) newRun(j *replicate.Job, store *statedir.Store) (w *jobRun, err error) {
	w = &jobRun{Runner: r, held: map[string][]string{},
		run: &statedir.Run{Job: j.Name, Source: j.Source, Started: r.Env.Now().UTC().Truncate(time.Second), Targets: []*statedir.TargetRun{}}}
	if w.session, err = r.Env.Open(j, store); err != nil {
		return nil, err
	}
	for _, t := range w.session.Targets {
		w.run.Targets = append(w.run.Targets, &statedir.TargetRun{Target: t.Name, To: t.Target.To})
	}
	return w, nil
}

// note records and logs a problem that does not make the run fail.
func (w *jobRun) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.run.Notes = append(w.run.Notes, text)
	w.Env.Log(w.session.Job.Name + ": " + text)
}
