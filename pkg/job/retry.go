package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// retrier repeats an operation after interruptions, until retries consecutive tries made no
// progress.
type retrier struct {
	name    string // prefix of messages; "" if they name the object themselves
	retries int
	log     func(string)
	// try does the remaining work. tries counts the preceding tries without progress.
	try func(ctx context.Context, tries int) error
	// progress inspects what remains after a failed try, and reports whether the try advanced. It
	// is nil if each try does everything. Unless its error is permanent, it counts as another
	// failed try.
	progress func(ctx context.Context) (advanced bool, err error)
	// curable reports whether another try may succeed after err. previous is the error of the try
	// before, nil if it advanced.
	curable func(err, previous error) bool
}

func (e *retrier) run(ctx context.Context) error {
	var previous error
	for tries := 0; ; {
		err := e.try(ctx, tries)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return e.interrupted()
		case !e.curable(err, previous):
			return e.wrap(err)
		}
		previous = err
		for looked := false; !looked; {
			if tries >= e.retries {
				return fault.Interrupt(resumes, e.wrap(err))
			}
			tries++
			pause := hosts.Backoff(tries)
			e.log(fmt.Sprintf("%v; try %d of %d in %s", e.wrap(err), tries, e.retries, pause.Round(100*time.Millisecond)))
			if !hosts.Sleep(ctx, pause) {
				return e.interrupted()
			}
			var advanced bool
			if advanced, err = e.inspect(ctx); advanced {
				tries, previous = 0, nil
			}
			switch {
			case err == nil:
				looked = true
			case errors.As(err, new(*permanentError)):
				return e.wrap(err)
			case ctx.Err() != nil:
				return e.interrupted()
			}
		}
	}
}

func (e *retrier) inspect(ctx context.Context) (advanced bool, err error) {
	if e.progress == nil {
		return false, nil
	}
	return e.progress(ctx)
}

func (e *retrier) interrupted() error {
	return fault.Interrupt(resumes, e.wrap(errors.New("interrupted")))
}

func (e *retrier) wrap(err error) error {
	if e.name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", e.name, err)
}

// resumes is the hint of an interrupted operation.
const resumes = "the same command resumes"

// permanentError is an error that retries cannot change.
type permanentError struct{ error }

func (d *permanentError) Unwrap() error { return d.error }

// transient reports whether another try may succeed without the user's help.
func transient(err error) bool {
	if errors.Is(err, tcp.ErrTampered) {
		return false
	}
	for _, kind := range append(staleTargetKinds(), zfs.Killed, zfs.Incomplete, zfs.Busy) {
		if errors.Is(err, &zfs.Error{Kind: kind}) {
			return true
		}
	}
	return errors.Is(err, tcp.ErrCut) || errors.Is(err, hosts.ErrLost)
}

// staleTargetKinds returns the errors of a receive whose target changed after the plan: the old
// receive is still ending, or another one brought the same data. A new plan decides.
func staleTargetKinds() []zfs.Kind {
	return []zfs.Kind{zfs.Exists, zfs.PartialState, zfs.NoState, zfs.BadToken}
}

// repeated reports whether the same stale-target error occurred twice in a row. Once may be an
// after-effect of the interruption, twice is a real conflict. The same applies to an unplanned
// stream.
func repeated(previous, err error) bool {
	for _, kind := range append(staleTargetKinds(), zfs.Unplanned) {
		if e := (&zfs.Error{Kind: kind}); errors.Is(previous, e) && errors.Is(err, e) {
			return true
		}
	}
	return false
}
