package statedir

import (
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
)

// Run is a line of the log of runs.
type Run struct {
	Job       string       `json:"job"`
	Source    string       `json:"source"`
	Started   time.Time    `json:"started"`
	Ended     time.Time    `json:"ended"`
	Outcome   string       `json:"outcome"`
	Error     string       `json:"error,omitempty"` // of the whole run
	Hint      string       `json:"hint,omitempty"`
	Datasets  int          `json:"datasets"`  // on the source
	Snapshots int          `json:"snapshots"` // taken
	Pruned    int          `json:"pruned"`    // snapshots and bookmarks destroyed on the source
	Targets   []*TargetRun `json:"targets"`
	Notes     []string     `json:"notes,omitempty"`
	// Frozen are the applications to freeze for the snapshots.
	Frozen []Frozen `json:"frozen,omitempty"`
	// Damaged are the job's pools with data errors.
	Damaged []*Damage `json:"damaged,omitempty"`
}

// Frozen is the result of freezing an application.
type Frozen struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Datasets int    `json:"datasets"`
	freeze.Outcome
}

// Damage lists the data errors of a pool.
type Damage struct {
	Target string `json:"target,omitempty"` // name of the target, "" = the source
	Pool   string `json:"pool"`
	Errors uint64 `json:"errors"` // approximately the number that zpool status shows
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
}

// TargetRun is the result of a run for one target.
type TargetRun struct {
	Target    string            `json:"target"` // name of the target
	To        string            `json:"to"`
	Outcome   string            `json:"outcome"`
	Error     string            `json:"error,omitempty"`
	Hint      string            `json:"hint,omitempty"`
	Bytes     uint64            `json:"bytes"`
	Seconds   float64           `json:"seconds"`
	Sent      int               `json:"sent"`
	Unchanged int               `json:"unchanged"`
	Failed    int               `json:"failed"`
	Pruned    int               `json:"pruned"`
	Removed   int               `json:"removed_datasets,omitempty"` // destroyed orphans
	Datasets  []outcome.Dataset `json:"datasets,omitempty"`         // without datasets that had nothing to send
}

// Brief returns a copy without datasets.
func (r *Run) Brief() *Run {
	brief := *r
	brief.Targets = nil
	for _, t := range r.Targets {
		short := *t
		short.Datasets = nil
		brief.Targets = append(brief.Targets, &short)
	}
	return &brief
}

// Conclude sets the end and the outcome from the outcomes of the targets and from err, the error
// of the whole run. stopped means that zxfer was asked to stop.
func (r *Run) Conclude(ended time.Time, err error, stopped bool) {
	r.Ended, r.Outcome = ended, outcome.UpToDate
	if r.Snapshots > 0 || r.Pruned > 0 {
		r.Outcome = outcome.Done
	}
	for _, t := range r.Targets {
		r.Outcome = outcome.Worst(r.Outcome, t.Outcome)
	}
	if err != nil {
		r.Outcome, r.Error, r.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
	}
	if stopped && r.Outcome == outcome.Failed {
		r.Outcome = outcome.Interrupted
		for _, t := range r.Targets { // except for failures that the stop does not explain
			for _, d := range t.Datasets {
				r.Outcome = outcome.Worst(r.Outcome, d.Outcome)
			}
		}
	}
}

// Succeeded reports whether the complete run succeeded.
func (r *Run) Succeeded() bool { return r.Outcome == outcome.Done || r.Outcome == outcome.UpToDate }

// Verdict returns the error of the run, or nil if it succeeded. err is the error of the whole run.
// An interrupted run has class Interrupted. Otherwise, the class is that of err, or Failed.
func (r *Run) Verdict(err error) error {
	switch {
	case err != nil:
		err = OfJob(fmt.Errorf("job %q: %w", r.Job, err))
	case r.Succeeded():
		return nil
	default:
		var errs []error
		for _, f := range r.Failures() {
			errs = append(errs, fault.Failf(f.Hint, "job %q to %s: %s", r.Job, f.Target, f.Error))
		}
		err = &fault.Error{Class: fault.Failed, Err: errors.Join(errs...)}
	}
	if r.Outcome == outcome.Interrupted {
		err = fault.Interrupt("the next run, or the same command, resumes", err)
	}
	return err
}

// FirstError returns the error of the whole run, or else the first error of a target or dataset,
// or "".
func (r *Run) FirstError() string {
	if all := r.Failures(); r.Error == "" && len(all) > 0 {
		return all[0].Target + ": " + all[0].Error
	}
	return r.Error
}

// Failure is the error of a target, or of a dataset on a target.
type Failure struct{ Target, Source, Error, Hint string }

// Failures returns the errors of all targets and datasets.
func (r *Run) Failures() []Failure {
	var out []Failure
	for _, t := range r.Targets {
		if t.Error != "" {
			out = append(out, Failure{t.Target, "", t.Error, t.Hint})
		}
		for _, d := range t.Datasets {
			if d.Error != "" {
				out = append(out, Failure{t.Target, d.Source, d.Error, d.Hint})
			}
		}
	}
	return out
}

// OfJob changes the class of a usage error, such as a name that is too long, to Failed: the
// command line is correct.
func OfJob(err error) error {
	if err == nil || fault.ClassOf(err) != fault.Usage {
		return err
	}
	return &fault.Error{Class: fault.Failed, Err: err}
}

// State is the state of a job after its last run.
type State struct {
	Job string `json:"job"`
	// LastRun has no datasets.
	LastRun *Run `json:"last_run,omitempty"`
	// Drills has its own file, because drills and runs may be concurrent.
	Drills Drills `json:"-"`
	// DrillSince is the start of the first run with a schedule of drills. The first drill is due
	// after it.
	DrillSince time.Time `json:"drill_since,omitzero"`
	replicate.State
}
