// Package fault adds a class and a hint to errors.
//
// Nouns:
//   - class: the kind of an error; exitcode.go lists the classes and their exit codes
//   - hint: the remedy, shown after the error message
//
// It does not print or exit; cmd/zxfer does both.
package fault

import (
	"errors"
	"fmt"

	"zxfer/pkg/remedy"
)

// Error is an error with a class and an optional hint.
type Error struct {
	Class Class
	// Hint is what to do, without the "hint: " prefix: one or more lines. An operation that another
	// host may run marks the commands (see package remedy).
	Hint string
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error that was classified.
func (e *Error) Unwrap() error { return e.Err }

// Refusef returns a Refused error; hint may be empty.
func Refusef(hint, format string, args ...any) error {
	return &Error{Class: Refused, Hint: hint, Err: fmt.Errorf(format, args...)}
}

// Usagef returns a Usage error; hint may be empty.
func Usagef(hint, format string, args ...any) error {
	return &Error{Class: Usage, Hint: hint, Err: fmt.Errorf(format, args...)}
}

// Failf returns a Failed error that carries a hint.
func Failf(hint, format string, args ...any) error {
	return &Error{Class: Failed, Hint: hint, Err: fmt.Errorf(format, args...)}
}

// Interrupt returns an Interrupted error: stored data allows to resume.
func Interrupt(hint string, err error) error {
	return &Error{Class: Interrupted, Hint: hint, Err: err}
}

// Hinter is an error that has a hint.
type Hinter interface{ HintText() string }

// HintText returns the hint of e.
func (e *Error) HintText() string { return e.Hint }

// OnHost returns err with its hint as written for the host on which its marked commands act.
func OnHost(err error, h remedy.Host) error {
	if hint := MarkedHint(err); remedy.Marked(hint) {
		return &hinted{err, h.On(hint)}
	}
	return err
}

// hinted is an error with another hint.
type hinted struct {
	error
	hint string
}

func (e *hinted) HintText() string { return e.hint }

func (e *hinted) Unwrap() error { return e.error }

// HintOf returns the outermost non-empty hint in err's tree for display, or "".
func HintOf(err error) string { return remedy.Here(MarkedHint(err)) }

// MarkedHint is HintOf with the marks of package remedy.
func MarkedHint(err error) string {
	for err != nil {
		if h, ok := err.(Hinter); ok && h.HintText() != "" {
			return h.HintText()
		}
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range many.Unwrap() {
				if h := MarkedHint(e); h != "" {
					return h
				}
			}
			return ""
		}
		err = errors.Unwrap(err)
	}
	return ""
}
