package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/damage"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// newRecord returns the record of a run that starts now.
func newRecord(j *replicate.Job, now time.Time) *statedir.Run {
	rec := &statedir.Run{Job: j.Name, Source: j.Source, Started: now.UTC().Truncate(time.Second), Targets: []*statedir.TargetRun{}}
	for i := range j.Targets {
		rec.Targets = append(rec.Targets, &statedir.TargetRun{Target: j.Targets[i].Name, To: j.Targets[i].To})
	}
	return rec
}

// journal adds notes to the record of a run, and logs. Several goroutines may use it.
type journal struct {
	log func(string)
	mu  sync.Mutex
	run *statedir.Run // its notes are guarded by mu
}

// Log logs a message about the job.
func (j *journal) Log(format string, args ...any) {
	j.log(j.run.Job + ": " + fmt.Sprintf(format, args...))
}

// Note records and logs a problem that does not make the run fail.
func (j *journal) Note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	j.mu.Lock()
	j.run.Notes = append(j.run.Notes, text)
	j.mu.Unlock()
	j.log(j.run.Job + ": " + text)
}

// conclude ends the record of a run, and stores the state and then the record. If one cannot be stored, the run
// counts as failed, and the record says so. err is the error of the whole run, which conclude returns with its
// own.
func conclude(ctx context.Context, p *pass, err error) error {
	rec, st, stopped := p.rec, p.s.State, ctx.Err() != nil
	rec.Conclude(p.s.Env.Now().UTC().Truncate(time.Second), err, stopped)
	rec.Stopped = stopped && rec.Outcome == outcome.Interrupted
	st.LastRun = rec.WithoutDatasets()
	switch {
	case p.s.Job.DrillSchedule() == "":
		st.DrillSince = time.Time{}
	case st.DrillSince.IsZero():
		st.DrillSince = rec.Started
	}
	for _, store := range []func() error{
		func() error { return p.s.Store.Save(st) },
		func() error { return p.s.Store.Append(rec) },
	} {
		if failed := store(); failed != nil {
			err = errors.Join(err, fmt.Errorf("cannot store the record of the run: %w", failed))
			rec.Conclude(rec.Ended, err, stopped)
		}
	}
	return err
}

// amend calls report for a stored record, and stores the notes that it adds. If zxfer is killed meanwhile, the
// record stays without them.
func amend(s *session.Session, rec *statedir.Run, report func()) {
	notes := len(rec.Notes)
	report()
	if len(rec.Notes) == notes {
		return
	}
	s.State.LastRun = rec.WithoutDatasets()
	if err := errors.Join(s.Store.Save(s.State), s.Store.Amend(rec)); err != nil {
		s.Env.Log(fmt.Sprintf("%s: cannot add notes to the record of the run: %v", rec.Job, err))
	}
}

// recordFailure records a run that failed before it opened the job. It changes no state that cannot be read.
func (r *Runner) recordFailure(j *replicate.Job, store *statedir.Store, err error) error {
	rec := newRecord(j, r.Env.Now())
	rec.Conclude(rec.Started, err, false)
	var failed error
	if st, unreadable := store.State(); unreadable == nil {
		kept := damage.Keep(&session.Session{State: st})
		rec.Damaged, st.Pools, st.LastRun = kept.Damaged, kept.Pools, rec
		failed = store.Save(st)
	}
	return errors.Join(err, failed, store.Append(rec))
}
