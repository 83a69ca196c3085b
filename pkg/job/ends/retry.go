package ends

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/retry"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Resumes is the hint of an interrupted operation.
const Resumes = "the same command resumes"

// NewLoop returns a loop that ends if that many consecutive tries made no progress. name prefixes
// errors and messages; "" if they name the object themselves. The caller adds Try and Retryable.
func NewLoop(name string, retries int, log func(string)) retry.Loop {
	return retry.Loop{
		Pause: func(err error, n int) (pause time.Duration, more bool) {
			if n > retries {
				return 0, false
			}
			pause = retry.Backoff(n)
			log(fmt.Sprintf("%v; try %d of %d in %s", withName(name, err), n, retries, pause.Round(100*time.Millisecond)))
			return pause, true
		},
		Fail: func(err error, end retry.End) error {
			switch end {
			case retry.Canceled:
				return Interrupted(name)
			case retry.Exhausted:
				err = fault.Interrupt(Resumes, err)
			}
			return withName(name, err)
		},
	}
}

// Changed turns a refusal into a failure, because something was already changed.
func Changed(err error) error {
	switch fault.ClassOf(err) {
	case fault.Refused, fault.Usage:
		return &fault.Error{Class: fault.Failed, Hint: fault.HintOf(err), Err: err}
	}
	return err
}

// Unchanged classifies an error before any change. A failed query is still a failure (exit 1),
// not a refusal.
func Unchanged(err error) error {
	if errors.Is(err, context.Canceled) {
		return fault.Interrupt("nothing was changed; run the same command again", errors.New("interrupted"))
	}
	return err
}

// ErrInterrupted is the error of an operation that the user interrupted.
var ErrInterrupted = errors.New("interrupted")

// Interrupted returns the error of an operation that the user interrupted. name prefixes it, unless it is "".
func Interrupted(name string) error {
	return fault.Interrupt(Resumes, withName(name, ErrInterrupted))
}

func withName(name string, err error) error {
	if name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

// Transient reports whether another try may succeed without the user's help.
func Transient(err error) bool {
	if errors.Is(err, tcp.ErrTampered) {
		return false
	}
	for _, kind := range append(staleTargetKinds(), zfs.Killed, zfs.Incomplete, zfs.Busy) {
		if errors.Is(err, &zfs.Error{Kind: kind}) {
			return true
		}
	}
	return errors.Is(err, tcp.ErrConnectionLost) || errors.Is(err, hosts.ErrLost)
}

// staleTargetKinds returns the errors of a receive whose target changed after the plan: the old
// receive is still ending, or another one brought the same data. A new plan decides.
func staleTargetKinds() []zfs.Kind {
	return []zfs.Kind{zfs.Exists, zfs.PartialState, zfs.NoState, zfs.BadToken}
}

// Repeated reports whether the same stale-target error occurred twice in a row. Once may be an
// after-effect of the interruption, twice is a real conflict. The same applies to an unplanned
// stream.
func Repeated(previous, err error) bool {
	for _, kind := range append(staleTargetKinds(), zfs.Unplanned) {
		if e := (&zfs.Error{Kind: kind}); errors.Is(previous, e) && errors.Is(err, e) {
			return true
		}
	}
	return false
}
