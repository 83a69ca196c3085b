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

// Settle turns a cancellation error into an interrupted error if ctx has ended. Stored data is
// kept. It returns other errors unchanged.
func Settle(ctx context.Context, err error) error {
	if ctx.Err() != nil && fault.ClassOf(err) == fault.Failed && errors.Is(err, context.Canceled) {
		return fault.Interrupt("the same command resumes", err)
	}
	return err
}
