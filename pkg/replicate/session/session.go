// Package session opens a job: its lock, its records, and a connection to each of its hosts.
package session

import (
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// Session is a job with its hosts and its records, for one command. Most commands lock the job first.
type Session struct {
	Env *Env
	// Written is the job as in the job file, Job the one that runs: in the direction of State.
	Written *replicate.Job
	Job     *replicate.Job
	Scope   *replicate.Scope
	Store   *statedir.Store
	State   *statedir.State
	Source  *Side
	Targets []*Side // in the order of the job file
}

// Open reads the records of a job. It does not connect. An invalid scope is a fault.Usage.
func (e *Env) Open(j *replicate.Job, store *statedir.Store) (s *Session, err error) {
	st, err := store.State()
	if err != nil {
		return nil, err
	}
	if st.Place != "" && j.Target(st.Place) == nil { // it was deleted from the job file
		st.Turn("", time.Time{})
	}
	now, err := jobfile.From(j, st.Place)
	if err != nil {
		return nil, err
	}
	return (&Session{Env: e, Written: j, Store: store, State: st}).With(now)
}

// Turn returns the session of the job in the direction in which the copy on target place is the source, "" = as in
// the job file. It turns the state. since is when the roles changed.
func (s *Session) Turn(place string, since time.Time) (*Session, error) {
	j, err := jobfile.From(s.Written, place)
	if err != nil {
		return nil, err
	}
	s.State.Turn(place, since)
	now, err := s.With(j)
	if err != nil {
		return nil, err
	}
	for i, t := range now.Targets { // a disk watches its side
		if was := s.Side(t.Name); was.Name == t.Name && was.At == t.At {
			was.Target, was.Transfer, now.Targets[i] = t.Target, t.Transfer, was
		}
	}
	return now, nil
}

// With returns a session of another form of the job with the same records.
func (s *Session) With(j *replicate.Job) (_ *Session, err error) {
	e := s.Env
	s = &Session{Env: e, Written: s.Written, Job: j, Store: s.Store, State: s.State}
	if s.Scope, err = j.Scope(); err != nil {
		return nil, fault.Usagef("", "job %q: %w", j.Name, err)
	}
	if s.Source, err = NewSide(e.Hosts, replicate.SourceSide, j.Source, &j.Transfer); err != nil {
		return nil, err
	}
	for i := range j.Targets {
		t := &j.Targets[i]
		side, err := NewSide(e.Hosts, t.Name, t.To, j.TransferTo(t))
		if err != nil {
			return nil, err
		}
		side.Target = t
		s.Targets = append(s.Targets, side)
	}
	return s, nil
}

// Side returns the target with that name, or the source.
func (s *Session) Side(name string) *Side {
	for _, t := range s.Targets {
		if t.Name == name {
			return t
		}
	}
	return s.Source
}

// Activity reports an activity until done is called.
func (s *Session) Activity(format string, args ...any) (done func()) {
	return s.Env.ReportTo(s.Job.Name, "").Activity(s.Job.Name + ": " + fmt.Sprintf(format, args...))
}

// HealCommand returns the command that heals the source of the job from its copies, and the copies
// from the source, with the connections of the job.
func (s *Session) HealCommand() string {
	return zfs.CommandLine([]string{"zxfer", "heal", "--job", s.Job.Name}) + s.Env.Flags
}

// Root returns the dataset of the job on a side.
func (s *Session) Root(side *Side) endpoint.Endpoint {
	e := side.At
	if side.Target != nil {
		e.Name = side.Target.CopyOf(s.Source.At.Name, s.Source.At.Name)
	}
	return e
}

// Copies returns the copies of the job for zxfer heal.
func (s *Session) Copies() ([]heal.Copy, error) { return CopiesOf(s.Job) }

// CopiesOf returns the copies that a job keeps, one for each target, for zxfer heal.
func CopiesOf(j *replicate.Job) (all []heal.Copy, err error) {
	source, err := endpoint.Parse(j.Source)
	if err != nil {
		return nil, err
	}
	for n := range j.Targets {
		target, err := endpoint.Parse(j.Targets[n].To)
		if err != nil {
			return nil, err
		}
		if target.Name, err = plan.TargetName(source.Name, target.Name); err != nil {
			return nil, err
		}
		same := func(c heal.Copy) bool { return j.Targets[n].Disk != nil && c.Target == target }
		if slices.ContainsFunc(all, same) { // two disks of one target, at most one of which is imported
			continue
		}
		all = append(all, heal.Copy{Source: source, Target: target, Recursive: j.Recursive, Job: j.Name, Settings: j.TransferTo(&j.Targets[n]).Settings})
	}
	return all, nil
}
