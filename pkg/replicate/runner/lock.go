package runner

import (
	"context"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// locked is a job that no other command may run.
type locked struct {
	store   *statedir.Store
	unlock  func()
	session *session.Session
	pause   *decide.Pause // permits no transfers, or nil
	skipped *statedir.Run // the record of a run that a pause skips, nil = it runs
}

// lock locks and opens a job.
func (r *Runner) lock(ctx context.Context, j *replicate.Job, wait bool) (l *locked, err error) {
	store, unlock, err := r.Env.LockStore(ctx, j, wait, "wait until it ends: "+r.Env.Command("run --wait "+j.Name))
	if err != nil {
		return nil, err
	}
	defer func() {
		if l == nil {
			unlock()
		}
	}()
	pause, extent, err := r.checkPause(j) // before the state is read, which may be damaged
	switch {
	case err != nil && fault.ClassOf(err) == fault.Refused:
		return nil, err
	case err != nil:
		return nil, r.recordFailure(j, store, err)
	case extent == decide.RunNothing:
		rec := newRecord(j, r.Env.Now())
		rec.Targets, rec.Paused, rec.Skipped = []*statedir.TargetRun{}, pause.Text(session.Stamp), true
		rec.Conclude(rec.Started, nil, false)
		return &locked{store: store, unlock: unlock, skipped: rec}, nil
	}
	s, err := r.Env.Open(j, store)
	if err != nil {
		return nil, r.recordFailure(j, store, err)
	}
	if extent != decide.RunSource || len(s.Targets) == 0 {
		pause = nil
	}
	return &locked{store: store, unlock: unlock, session: s, pause: pause}, nil
}

// order says what a run does, apart from the job.
type order struct {
	pause *decide.Pause // permits no transfers, or nil
	only  string        // the target of a switch: the run sends to no other one; "" = to all
}

// pass is one run of a job. Its stages add to the record, and change nothing else in it.
type pass struct {
	s       *session.Session
	ledger  *statedir.Ledger
	rec     *statedir.Run
	journal *journal
	order   order
	// ignoreWindows means that closed bandwidth windows stop no transfers.
	ignoreWindows bool
}

// turn makes the run go in another direction.
func (p *pass) turn(to session.Direction) error {
	s, err := p.s.Turn(to.Place, to.Since)
	if err != nil {
		return err
	}
	p.s, p.rec.Source, p.rec.Targets = s, s.Job.Source, newRecord(s.Job, p.rec.Started).Targets
	p.journal.Log("runs from %s, which became the source", s.Job.Source)
	return nil
}

// newPass returns a run that starts now.
func (r *Runner) newPass(s *session.Session, o order) *pass {
	rec, ledger := newRecord(s.Job, r.Env.Now()), s.Store.Ledger(s.State)
	if o.pause != nil {
		rec.Paused = o.pause.Text(session.Stamp)
	}
	return &pass{s: s, ledger: ledger, rec: rec, journal: &journal{run: rec, log: r.Env.Log}, order: o, ignoreWindows: r.IgnorePause}
}
