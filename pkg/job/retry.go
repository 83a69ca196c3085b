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

// retrier is something that is tried again after a cut, until as many tries in a
// row as retries have brought nothing.
type retrier struct {
	name    string // of what is done: messages begin with it; "" where they name it themselves
	retries int
	log     func(string)
	// try does what is left; tries are those before that brought nothing.
	try func(ctx context.Context, tries int) error
	// look finds out what is left after a try that failed, and whether that
	// brought anything; nil where each try does all. Its error is one more try
	// that failed, unless it is decided.
	look func(ctx context.Context) (advanced bool, err error)
	// curable tells whether another try may succeed after one that failed;
	// before is the error of the one before it, where that brought nothing.
	curable func(err, before error) bool
}

func (e *retrier) run(ctx context.Context) error {
	var before error
	for tries := 0; ; {
		err := e.try(ctx, tries)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return e.interrupted()
		case !e.curable(err, before):
			return e.of(err)
		}
		before = err
		for looked := false; !looked; {
			if tries >= e.retries {
				return fault.Interrupt(resumes, e.of(err))
			}
			tries++
			pause := hosts.Backoff(tries)
			e.log(fmt.Sprintf("%v; try %d of %d in %s", e.of(err), tries, e.retries, pause.Round(100*time.Millisecond)))
			if !hosts.Sleep(ctx, pause) {
				return e.interrupted()
			}
			var advanced bool
			if advanced, err = e.inspect(ctx); advanced {
				tries, before = 0, nil
			}
			switch {
			case err == nil:
				looked = true
			case errors.As(err, new(*permanentError)):
				return e.of(err)
			case ctx.Err() != nil:
				return e.interrupted()
			}
		}
	}
}

func (e *retrier) inspect(ctx context.Context) (advanced bool, err error) {
	if e.look == nil {
		return false, nil
	}
	return e.look(ctx)
}

func (e *retrier) of(err error) error {
	if e.name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", e.name, err)
}

// resumes is the hint of what was interrupted.
const resumes = "the same command resumes"

func (e *retrier) interrupted() error {
	return fault.Interrupt(resumes, e.of(errors.New("interrupted")))
}

// permanentError is what a look found, and no further try changes.
type permanentError struct{ error }

func (d *permanentError) Unwrap() error { return d.error }

// transient tells whether another try may succeed without anybody's help.
func transient(err error) bool {
	if errors.Is(err, tcp.ErrTampered) {
		return false
	}
	for _, kind := range append(overtaken(), zfs.Killed, zfs.Incomplete, zfs.Busy) {
		if errors.Is(err, &zfs.Error{Kind: kind}) {
			return true
		}
	}
	return errors.Is(err, tcp.ErrCut) || errors.Is(err, hosts.ErrLost)
}

// overtaken are what a receive hears where the target changed since the plan: of
// one that still winds down after a cut, or of another that brought the same
// meanwhile. Planning anew decides.
func overtaken() []zfs.Kind {
	return []zfs.Kind{zfs.Exists, zfs.PartialState, zfs.NoState, zfs.BadToken}
}

// settled tells that an error is no echo of a cut any more: that the target has what
// was not there when the way was planned may be such once, not twice in a row. Nor may
// a stream be another than the planned one twice, however the source explains it.
func settled(before, err error) bool {
	for _, kind := range append(overtaken(), zfs.Unplanned) {
		if e := (&zfs.Error{Kind: kind}); errors.Is(before, e) && errors.Is(err, e) {
			return true
		}
	}
	return false
}
