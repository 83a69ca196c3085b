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
	session *session.Session
	unlock  func()
	pause   *decide.Pause // permits no transfers, or nil
}

// lock locks and opens a job. l is nil if the run ends there: refused, failed or, with a record, skipped because
// of a pause.
func (r *Runner) lock(ctx context.Context, j *replicate.Job, wait bool) (l *locked, skipped *statedir.Run, err error) {
	store, unlock, err := r.Env.LockStore(ctx, j, wait, "wait until it ends: "+r.Env.Command("run --wait "+j.Name))
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if l == nil {
			unlock()
		}
	}()
	pause, extent, err := r.checkPause(j) // before the state is read, which may be damaged
	switch {
	case err != nil && fault.ClassOf(err) == fault.Refused:
		return nil, nil, err
	case err != nil:
		return nil, nil, r.recordFailure(j, store, err)
	case extent == decide.RunNothing:
		skipped, err = r.skip(j, store, pause)
		return nil, skipped, err
	}
	s, err := r.Env.Open(j, store)
	if err != nil {
		return nil, nil, r.recordFailure(j, store, err)
	}
	if extent != decide.RunSource || len(s.Targets) == 0 {
		pause = nil
	}
	return &locked{s, unlock, pause}, nil, nil
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
