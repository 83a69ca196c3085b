package runner

import (
	"context"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
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

// jobRun is a locked job for a fail over.
type jobRun struct {
	*Runner
	session *session.Session
}

// lockRun locks and opens a job. If another command holds the lock, lockRun waits for it or, unless wait is set,
// fails with statedir.ErrRunning (fault.Refused).
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

func (r *Runner) newRun(j *replicate.Job, store *statedir.Store) (*jobRun, error) {
	s, err := r.Env.Open(j, store)
	return &jobRun{r, s}, err
}
