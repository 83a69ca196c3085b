package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
)

// Env holds the files, the clock, the messages and the connections of a command of zxfer replicate.
type Env struct {
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
	Reporter func(job, target string) send.Reporter
	Hosts    *hosts.Set
}

// NewEnv returns an Env whose messages name keys of the job file instead of options. Its caller closes it.
func NewEnv(stateDir string, open hosts.Opener, now func() time.Time, log func(string)) *Env {
	return &Env{StateDir: stateDir, Now: now, Hosts: hosts.New(open), Log: func(message string) { log(replicate.Keys(message)) }}
}

// Close closes all connections.
func (e *Env) Close() error { return e.Hosts.Close() }

// Command returns a command line of zxfer replicate for hints.
func (e *Env) Command(words string) string { return "zxfer replicate " + words + e.Flags }

// ReportTo returns the reporter for a target of a job, or for the job itself if target is "".
func (e *Env) ReportTo(job, target string) send.Reporter {
	if e.Reporter != nil {
		if rep := e.Reporter(job, target); rep != nil {
			return rep
		}
	}
	return logReporter{log: e.Log}
}

// logReporter is a send.Reporter that reports only log messages.
type logReporter struct {
	send.Quiet
	log func(string)
}

// Log implements send.Reporter.
func (q logReporter) Log(message string) { q.log(message) }

// LockStore locks a job. It reads no records. If another command holds the lock, LockStore waits for it or,
// unless wait is set, fails with statedir.ErrRunning (fault.Refused) and the hint.
func (e *Env) LockStore(ctx context.Context, j *replicate.Job, wait bool, hint string) (store *statedir.Store, unlock func(), err error) {
	if store, err = statedir.Open(e.StateDir, j.Name); err != nil {
		return nil, nil, fmt.Errorf("state directory: %w", err)
	}
	waited := e.ReportTo(j.Name, "").Activity(j.Name + ": waiting for the end of " + cmp.Or(store.Holder(), "the run in progress"))
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

// LockJob prevents runs of a job until unlock is called. If the job is running, it fails with
// statedir.ErrRunning (fault.Refused).
func (e *Env) LockJob(ctx context.Context, j *replicate.Job) (unlock func(), err error) {
	_, unlock, err = e.LockStore(ctx, j, false, "wait until it ends, then run the same command again")
	return unlock, err
}

// ResumeCommand returns the command that ends a pause.
func (e *Env) ResumeCommand(j *replicate.Job, p *decide.Pause) string {
	if p.All {
		return e.Command("resume --all")
	}
	return e.Command("resume " + j.Name)
}

// Stamp writes a time for messages and records: to the minute, in the time zone of the host.
func Stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }
