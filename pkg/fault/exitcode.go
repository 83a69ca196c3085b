package fault

import "errors"

// Class is the kind of an error. Its value is the exit code.
type Class int

// The classes and their exit codes. Success exits with 0. A monitoring plugin has the exit codes of
// status.Severity instead.
const (
	Failed      Class = 1 // tried and failed
	Usage       Class = 2 // invalid request
	Refused     Class = 3 // by a check or rule; nothing was changed
	Interrupted Class = 4 // stored data is kept; the same command resumes
)

// ClassOf returns the class of the outermost Error in err's tree, Failed if there is none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Failed
}

// ExitCode returns the exit code of a command that ends with an error of class c.
func (c Class) ExitCode() int { return int(c) }
