// Package retry repeats operations that failed for a cause that may pass.
//
//   - Loop: an operation and its policy: which errors another try may cure, how often, after which pause
//   - try: one call of the operation
//   - progress: part of the work that a failed try has done
//
// It does not know what is retried. The callers decide which errors are transient.
package retry

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Loop is an operation and the policy for repeating it.
type Loop struct {
	// Try does the remaining work. tries counts the preceding tries without progress.
	Try func(ctx context.Context, tries int) error
	// Retryable reports whether another try may succeed after err. previous is the error of the try
	// before, nil if that one made progress.
	Retryable func(err, previous error) bool
	// Progress inspects what remains after a failed try, and reports whether the try advanced. It
	// is nil if each try does everything. Its error counts as another failed try, unless it is
	// Permanent.
	Progress func(ctx context.Context) (advanced bool, err error)
	// Pause is called before retry n since the last progress, counted from 1, and returns the
	// pause. more is false if there is no such retry.
	Pause func(err error, n int) (pause time.Duration, more bool)
	// Fail, if not nil, returns the error of Run for the last error and the end of the loop.
	Fail func(err error, end End) error
}

// End is the way in which a loop failed.
type End int

// The ends.
const (
	NotRetryable End = iota // no try can cure the error
	Exhausted               // no retry is left
	Canceled                // the context ended
)

// Permanent is an error of Progress that retries cannot change.
type Permanent struct{ Err error }

func (p *Permanent) Error() string { return p.Err.Error() }

// Unwrap returns the cause.
func (p *Permanent) Unwrap() error { return p.Err }

// Run tries until a try succeeds, its error is not curable, or no retry is left. If ctx ends during a
// call, the last error comes from the call. If ctx ends during a pause, it is the cause of ctx.
func (l *Loop) Run(ctx context.Context) error {
	var previous error
	for n := 0; ; {
		err := l.Try(ctx, n)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return l.fail(err, Canceled)
		case !l.Retryable(err, previous):
			return l.fail(err, NotRetryable)
		}
		previous = err
		for err != nil {
			n++
			pause, more := l.Pause(err, n)
			if !more {
				return l.fail(err, Exhausted)
			}
			if !Sleep(ctx, pause) {
				return l.fail(context.Cause(ctx), Canceled)
			}
			if err = nil; l.Progress != nil {
				var advanced bool
				if advanced, err = l.Progress(ctx); advanced {
					n, previous = 0, nil
				}
			}
			switch {
			case errors.As(err, new(*Permanent)):
				return l.fail(err, NotRetryable)
			case err != nil && ctx.Err() != nil:
				return l.fail(err, Canceled)
			}
		}
	}
}

func (l *Loop) fail(err error, end End) error {
	if l.Fail == nil {
		return err
	}
	return l.Fail(err, end)
}

// Once returns a Pause for one retry.
func Once(pause time.Duration) func(err error, n int) (time.Duration, bool) {
	return func(_ error, n int) (time.Duration, bool) { return pause, n == 1 }
}

// Backoff returns the pause before retry n, counted from 1. It doubles from half a second to half a
// minute. Its jitter spreads operations that were interrupted together.
func Backoff(n int) time.Duration {
	const first, longest = 500 * time.Millisecond, 30 * time.Second
	d := min(longest, first<<min(n-1, 16))
	return d/2 + rand.N(d/2+1)
}

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
