package statedir

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/size"
)

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

// Err returns the error of the run, or nil if it succeeded. err is the error of the whole run.
// An interrupted run has class Interrupted. Otherwise, the class is that of err, or Failed.
func (r *Run) Err(err error) error {
	switch {
	case err != nil:
		err = UsageToFailed(fmt.Errorf("job %q: %w", r.Job, err))
	case r.Succeeded():
		return nil
	default:
		var errs []error
		for _, f := range r.failures(!r.Stopped) {
			errs = append(errs, fault.Failf(f.Hint, "job %q to %s: %s", r.Job, f.Target, f.Error))
		}
		class := fault.Failed
		if r.refusedDisks() {
			class = fault.Refused
		}
		err = &fault.Error{Class: class, Err: errors.Join(errs...)}
	}
	if r.Outcome == outcome.Interrupted {
		hint := ""
		for _, t := range r.Targets {
			if t.Disk != "" && t.Hint != "" { // how to get the disk back
				hint += t.Hint + "\n"
			}
		}
		err = fault.Interrupt(hint+"the next run, or the same command, resumes", err)
	}
	return err
}

// refusedDisks reports whether nothing failed except that disks were refused.
func (r *Run) refusedDisks() bool {
	return len(r.Failures()) > 0 && !slices.ContainsFunc(r.Targets, func(t *TargetRun) bool {
		return !t.RefusedDisk && (t.Error != "" || t.Failed > 0)
	})
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
func (r *Run) Failures() []Failure { return r.failures(true) }

// failures returns the errors of all targets and datasets. Without each, one error counts the interrupted
// datasets of a target.
func (r *Run) failures(each bool) []Failure {
	var out []Failure
	for _, t := range r.Targets {
		if t.Error != "" {
			out = append(out, Failure{t.Target, "", t.Error, t.Hint})
		}
		interrupted := 0
		for _, d := range t.Datasets {
			switch {
			case d.Error == "":
			case !each && d.Outcome == outcome.Interrupted:
				interrupted++
			default:
				out = append(out, Failure{t.Target, d.Source, d.Error, d.Hint})
			}
		}
		if interrupted > 0 {
			out = append(out, Failure{Target: t.Target, Error: fmt.Sprintf("interrupted: %d of %s sent, %s", t.Sent,
				english.Plural(t.Sent+t.Failed, "dataset", ""), size.Text(t.Bytes))})
		}
	}
	return out
}

// UsageToFailed changes the class of a usage error, such as a name that is too long, to Failed: the
// command line is correct.
func UsageToFailed(err error) error {
	if err == nil || fault.ClassOf(err) != fault.Usage {
		return err
	}
	return &fault.Error{Class: fault.Failed, Err: err}
}

// Unverified is the outcome of a copy that could not be checked, for example because its key was not
// loaded or it could not be cloned.
const Unverified = "not proved"

// NotFinished is the outcome of a copy, and of a drill, that the deadline ended.
const NotFinished = "not finished"

// ErrDeadline is the error of a drill that its deadline ended. It proves nothing about a copy.
var ErrDeadline = errors.New("the drill passed its deadline")

// Conclude sets the end and the outcome from the outcomes of the copies and from err, the error of
// the whole drill. stopped means that zxfer was asked to stop.
func (d *Drill) Conclude(ended time.Time, err error, stopped bool) {
	d.Ended, d.Outcome = ended, outcome.Done
	has := func(ended string) bool {
		return slices.ContainsFunc(d.Copies, func(c *DrillResult) bool { return c.Outcome == ended })
	}
	if err != nil {
		d.Outcome, d.Error, d.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
	}
	switch {
	case has(outcome.Failed): // takes precedence
		d.Outcome = outcome.Failed
	case stopped, err == nil && has(outcome.Interrupted):
		d.Outcome = outcome.Interrupted
	case errors.Is(err, ErrDeadline):
		d.Outcome = NotFinished
	case err == nil && has(Unverified):
		d.Outcome = Unverified
	}
}

// Err returns the drill's error, or nil if all copies are good. err is the error of the whole
// drill.
func (d *Drill) Err(err error) error {
	var errs []error
	if err != nil {
		errs = append(errs, UsageToFailed(fmt.Errorf("job %q: %w", d.Job, err)))
	}
	for _, c := range d.Copies {
		if c.Outcome != outcome.Done {
			errs = append(errs, fault.Failf(c.Hint, "job %q: %s: %s of %s is %s: %s", d.Job, c.To, c.Target, c.Source, c.DisplayOutcome(), c.Error))
		}
	}
	err = outcome.Join(errs...)
	if d.Outcome == outcome.Interrupted {
		return fault.Interrupt("to drill again, run the same command", err)
	}
	return err
}

// FirstError returns the first error of the drill, or "" if all copies are good.
func (d *Drill) FirstError() string {
	if d.Error != "" {
		return d.Error
	}
	for _, c := range d.Copies {
		if c.Outcome != outcome.Done {
			return c.To + ": " + c.Target + " is " + c.DisplayOutcome() + ": " + c.Error
		}
	}
	return ""
}
