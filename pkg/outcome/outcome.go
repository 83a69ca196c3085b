// Package outcome says in one word what became of a job, a run or a part of
// one, and which of several counts for the whole.
//
// It is pure. What a word means for the exit code is the class of the error.
package outcome

import (
	"context"
	"errors"
	"slices"

	"zxfer/pkg/fault"
)

// The outcomes of what is moved, in JSON and in records.
const (
	UpToDate    = "up-to-date" // there was nothing to do
	Planned     = "planned"    // it was only asked what there is to do
	Done        = "done"
	Interrupted = "interrupted" // the same command, or the next run, resumes
	Refused     = "refused"     // a rule said no; nothing was changed
	Failed      = "failed"
)

// ranks are the outcomes, the one that counts for more last: a failure hides an
// interruption, as nothing resumes it.
func ranks() []string { return []string{UpToDate, Planned, Done, Interrupted, Refused, Failed} }

// Worst is the outcome of a whole whose parts had these.
func Worst(parts ...string) string {
	return slices.MaxFunc(parts, func(a, b string) int {
		return slices.Index(ranks(), a) - slices.Index(ranks(), b)
	})
}

// Of is the outcome of what ended with an error.
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

// Join is the error of a whole whose parts ended with these, of the class of the
// worst of them; nil where none did.
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

// Settle is the error of what ended in ctx: one that only says that it was
// cancelled was interrupted by the user, and what it had stored stays.
func Settle(ctx context.Context, err error) error {
	if ctx.Err() != nil && fault.ClassOf(err) == fault.Failed && errors.Is(err, context.Canceled) {
		return fault.Interrupt("the same command resumes", err)
	}
	return err
}
