// Package outcome names the result of a job, run or part of one, and combines results.
//
// Nouns:
//   - outcome: one word for a result, such as "done" or "refused"
//   - part: a dataset or stage whose outcome contributes to the total
//
// It is pure. Package fault lists the exit codes (exitcode.go).
package outcome

import (
	"context"
	"errors"
	"slices"

	"zxfer/pkg/fault"
)

// The outcomes, as in JSON and records.
const (
	UpToDate    = "up-to-date" // nothing to do
	Planned     = "planned"    // only planned, as requested
	Done        = "done"
	Interrupted = "interrupted" // the same command, or the next run, resumes
	Refused     = "refused"     // by a check or rule; nothing was changed
	Failed      = "failed"
)

// ranks returns the outcomes in ascending order of importance. A failure outranks an
// interruption, because nothing resumes it.
func ranks() []string { return []string{UpToDate, Planned, Done, Interrupted, Refused, Failed} }

// Worst returns the most important of the outcomes. It panics without arguments.
func Worst(parts ...string) string {
	return slices.MaxFunc(parts, func(a, b string) int {
		return slices.Index(ranks(), a) - slices.Index(ranks(), b)
	})
}

// Of returns the outcome that belongs to a non-nil error.
func Of(err error) string {
	switch fault.ClassOf(err) {
	case fault.Interrupted:
		return Interrupted
	case fault.Refused, fault.Usage:
		return Refused
	}
	if errors.Is(err, context.Canceled) {
		return Interrupted
	}
	return Failed
}

// Join joins errors and gives them the class of the worst. nil errors are ignored; without others
// it returns nil.
func Join(errs ...error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(errs) <= 1 {
		return errors.Join(errs...)
	}
	worst := errs[0]
	for _, err := range errs[1:] {
		if Of(err) != Of(worst) && Worst(Of(worst), Of(err)) == Of(err) {
			worst = err
		}
	}
	return &fault.Error{Class: fault.ClassOf(worst), Err: errors.Join(errs...)}
}

// Conclusion is the end of a job in its report.
type Conclusion struct {
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

// Conclude returns the conclusion of a job that ended with err. Without an error the outcome is success.
func Conclude(err error, success string) Conclusion {
	if err == nil {
		return Conclusion{Outcome: success}
	}
	return Conclusion{Outcome: Of(err), Error: err.Error(), Hint: fault.HintOf(err)}
}

// Concluded returns c, for reports that embed it.
func (c *Conclusion) Concluded() *Conclusion { return c }

// Dataset is the result of the transfer of one dataset.
type Dataset struct {
	Source    string  `json:"source"`
	Target    string  `json:"target"`
	Snapshot  string  `json:"snapshot,omitempty"` // last one sent, or to send
	Streams   int     `json:"streams,omitempty"`  // planned
	Full      int     `json:"full,omitempty"`     // number of full sends among Streams
	Bytes     uint64  `json:"bytes,omitempty"`
	Seconds   float64 `json:"seconds,omitempty"` // total duration of the streams
	Outcome   string  `json:"outcome"`
	Conflict  string  `json:"conflict,omitempty"`  // ID of the plan's conflict that refused it
	RenamedTo string  `json:"set_aside,omitempty"` // new name of the diverged copy
	Error     string  `json:"error,omitempty"`
	Hint      string  `json:"hint,omitempty"`
}

// WithResult returns d with the outcome that belongs to err, which may be nil.
func (d Dataset) WithResult(err error) Dataset {
	c := Conclude(err, Done)
	d.Outcome, d.Error, d.Hint = c.Outcome, c.Error, c.Hint
	return d
}

// Settle turns a cancellation error into an interrupted error if ctx has ended. Stored data is
// kept. It returns other errors unchanged.
func Settle(ctx context.Context, err error) error {
	if ctx.Err() != nil && fault.ClassOf(err) == fault.Failed && errors.Is(err, context.Canceled) {
		return fault.Interrupt("the same command resumes", err)
	}
	return err
}
