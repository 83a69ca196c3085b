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

// Run is one run of a job: a line of the log.
type Run struct {
	Job       string       `json:"job"`
	Source    string       `json:"source"`
	Started   time.Time    `json:"started"`
	Ended     time.Time    `json:"ended"`
	Outcome   string       `json:"outcome"`
	Error     string       `json:"error,omitempty"` // of what concerned the whole run
	Hint      string       `json:"hint,omitempty"`
	Datasets  int          `json:"datasets"`  // of the source
	Snapshots int          `json:"snapshots"` // that the run took
	Pruned    int          `json:"pruned"`    // snapshots and bookmarks destroyed on the source
	Targets   []*TargetRun `json:"targets"`
	Notes     []string     `json:"notes,omitempty"`
	// Frozen are the applications that were to stand still for the snapshots.
	Frozen []Frozen `json:"frozen,omitempty"`
	// Damaged are the pools of the job that have data errors.
	Damaged []*Damage `json:"damaged,omitempty"`
}

// Frozen is an application that was to stand still for the snapshots of its datasets.
type Frozen struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Datasets int    `json:"datasets"`
	freeze.Outcome
}

// Damage are the data errors of a pool.
type Damage struct {
	Target string `json:"target,omitempty"` // the target's name, "" = the source
	Pool   string `json:"pool"`
	Errors uint64 `json:"errors"` // about as many as zpool status counts
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
}

// TargetRun is a run's part for one target.
type TargetRun struct {
	Target    string       `json:"target"` // its name in the job file
	To        string       `json:"to"`
	Outcome   string       `json:"outcome"`
	Error     string       `json:"error,omitempty"`
	Hint      string       `json:"hint,omitempty"`
	Bytes     uint64       `json:"bytes"`
	Seconds   float64      `json:"seconds"`
	Sent      int          `json:"sent"`
	Unchanged int          `json:"unchanged"`
	Failed    int          `json:"failed"`
	Pruned    int          `json:"pruned"`
	Removed   int          `json:"removed_datasets,omitempty"` // copies whose originals are gone
	Datasets  []DatasetRun `json:"datasets,omitempty"`         // without those that had nothing to send
}

// DatasetRun is a run's part for one dataset.
type DatasetRun struct {
	Source   string  `json:"source"`
	Target   string  `json:"target"`
	Snapshot string  `json:"snapshot,omitempty"` // that arrived, or was to
	Streams  int     `json:"streams,omitempty"`
	Full     int     `json:"full,omitempty"` // of the streams, those without a base
	Bytes    uint64  `json:"bytes,omitempty"`
	Seconds  float64 `json:"seconds,omitempty"`
	Outcome  string  `json:"outcome"`
	Conflict string  `json:"conflict,omitempty"`  // id, where the plan refused it
	Aside    string  `json:"set_aside,omitempty"` // the name that the copy before it has since
	Error    string  `json:"error,omitempty"`
	Hint     string  `json:"hint,omitempty"`
}

// State is what is known of a job after its last run.
type State struct {
	Job string `json:"job"`
	// LastRun is the last run as a whole, without its datasets.
	LastRun *Run `json:"last_run,omitempty"`
	// Drills are in a file of their own: a drill may end while a run goes on.
	Drills Drills `json:"-"`
	// DrillSince is the begin of the first run that knew of a schedule of drills: from when
	// one is waited for.
	DrillSince time.Time `json:"drill_since,omitzero"`
	replicate.State
}

// Brief is the run as a whole, without its datasets.
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

// Conclude makes the run's outcome of those of its targets, and of an error of the
// whole. stopped tells that it was told to end.
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
		for _, t := range r.Targets { // but what no stop explains
			for _, d := range t.Datasets {
				r.Outcome = outcome.Worst(r.Outcome, d.Outcome)
			}
		}
	}
}

// Succeeded tells that nothing of the run failed.
func (r *Run) Succeeded() bool { return r.Outcome == outcome.Done || r.Outcome == outcome.UpToDate }

// Failure is why a target, or a dataset at one, failed.
type Failure struct{ Target, Source, Error, Hint string }

// Failures are those of the run's parts.
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

// FirstError is why a run failed: the run's own error, else that of the first
// target or dataset that has one.
func (r *Run) FirstError() string {
	if all := r.Failures(); r.Error == "" && len(all) > 0 {
		return all[0].Target + ": " + all[0].Error
	}
	return r.Error
}

// Verdict is the run as an error, err that of the whole: nil, Interrupted where
// only that happened, Refused where nothing was tried, else Failed.
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

// OfJob makes a failure of what a single command would call wrong usage, as a name
// that is too long: the command line named none of it.
func OfJob(err error) error {
	if err == nil || fault.ClassOf(err) != fault.Usage {
		return err
	}
	return &fault.Error{Class: fault.Failed, Err: err}
}
