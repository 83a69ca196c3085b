// Package fault gives errors the two things a user needs beside their text:
// a class, which decides the exit code, and a hint, which names the remedy.
//
// It does not print anything and never ends the process; cmd/zxfer does both.
package fault

import (
	"errors"
	"fmt"
)

// Class says what an error means for the caller; it is also the exit code.
type Class int

// The classes are the exit codes of every verb.
const (
	Failed      Class = 1 // the action was tried and failed
	Usage       Class = 2 // the request itself is wrong
	Refused     Class = 3 // a check or safety rule said no; nothing was changed
	Interrupted Class = 4 // stopped with its state kept; the same command resumes
)

// Error is an error with a class and, optionally, a hint.
type Error struct {
	Class Class
	Hint  string // the remedy, without the "hint: " prefix; may hold several lines
	Err   error
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

// Interrupt marks err as having left resumable state behind.
func Interrupt(hint string, err error) error {
	return &Error{Class: Interrupted, Hint: hint, Err: err}
}

// ClassOf returns the class of the outermost classified error in err's tree,
// Failed when there is none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Failed
}

// Hinter is implemented by errors of other packages that know a remedy.
type Hinter interface{ HintText() string }

// HintText returns the hint of e.
func (e *Error) HintText() string { return e.Hint }

// HintOf returns the outermost non-empty hint in err's chain, or "".
func HintOf(err error) string {
	for err != nil {
		if h, ok := err.(Hinter); ok && h.HintText() != "" {
			return h.HintText()
		}
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range many.Unwrap() {
				if h := HintOf(e); h != "" {
					return h
				}
			}
			return ""
		}
		err = errors.Unwrap(err)
	}
	return ""
}
