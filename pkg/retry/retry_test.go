package retry

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// run runs a loop with the given results of tries and inspections, for errors that match errCut. It
// returns the number of tries and of pauses.
func run(t *testing.T, l Loop, tries, inspections []error, advance map[int]bool) (n, pauses int, err error) {
	t.Helper()
	next := func(all *[]error) (err error) {
		if len(*all) > 0 {
			err, *all = (*all)[0], (*all)[1:]
		}
		return err
	}
	policy := l.Pause
	l.Pause = func(err error, n int) (time.Duration, bool) {
		pause, more := policy(err, n)
		if more {
			pauses++
		}
		return pause, more
	}
	l.Try = func(context.Context, int) error { n++; return next(&tries) }
	if advance != nil {
		l.Progress = func(context.Context) (bool, error) { return advance[n], next(&inspections) }
	}
	l.Retryable = func(err, _ error) bool { return errors.Is(err, errCut) }
	l.Fail = func(err error, end End) error {
		if end == Exhausted {
			return fmt.Errorf("given up: %w", err)
		}
		return err
	}
	synctest.Test(t, func(t *testing.T) { err = l.Run(t.Context()) })
	return n, pauses, err
}

var errCut = errors.New("cut")

// TestLoop expects that a loop ends on success, on an incurable error, or after the maximum of
// tries without progress.
func TestLoop(t *testing.T) {
	t.Parallel()
	cut, away, never := errCut, errors.New("no route"), errors.New("no space")
	for _, tt := range []struct {
		name        string
		retries     int
		tries       []error
		inspections []error
		advance     map[int]bool
		want        int // number of tries
		pauses      int
		says        string
	}{
		{"succeeds immediately", 0, nil, nil, nil, 1, 0, ""},
		{"lost once", 1, []error{cut}, nil, nil, 2, 1, ""},
		{"lost, no tries left", 0, []error{cut}, nil, nil, 1, 0, "given up: cut"},
		{"lost permanently", 2, []error{cut, cut, cut, cut}, nil, nil, 3, 2, "given up: cut"},
		{"incurable error", 5, []error{never}, nil, nil, 1, 0, "no space"},
		{"incurable error after a lost connection", 5, []error{cut, never}, nil, nil, 2, 1, "no space"},
		{"each try makes progress", 1, []error{cut, cut, cut, cut}, nil, map[int]bool{1: true, 2: true, 3: true, 4: true}, 5, 4, ""},
		{"second try without progress", 1, []error{cut, cut, cut}, nil, map[int]bool{1: true}, 3, 2, "given up: cut"},
		{"host temporarily unreachable", 3, []error{cut}, []error{away, away}, map[int]bool{}, 2, 3, ""},
		{"host permanently unreachable", 3, []error{cut}, []error{away, away, away, away}, map[int]bool{}, 1, 3, "given up: no route"},
		{"an inspection decides", 3, []error{cut}, []error{&Permanent{errors.New("another disk")}}, map[int]bool{}, 1, 1, "another disk"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, pauses, err := run(t, Loop{Pause: func(_ error, n int) (time.Duration, bool) { return Backoff(n), n <= tt.retries }}, tt.tries, tt.inspections, tt.advance)
			require.Equal(t, []int{tt.want, tt.pauses}, []int{n, pauses})
			if tt.says == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tt.says)
		})
	}
	n, pauses, err := run(t, Loop{Pause: Once(time.Hour)}, []error{cut, cut, cut}, nil, nil)
	require.EqualError(t, err, "given up: cut")
	require.Equal(t, []int{2, 1}, []int{n, pauses})
}

// TestPauseIsInterrupted expects that a loop that is cancelled during a pause returns the cause.
func TestPauseIsInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		asked := errors.New("asked to stop")
		l := Loop{Try: func(context.Context, int) error { return errCut }, Retryable: func(error, error) bool { return true },
			Pause: func(error, int) (time.Duration, bool) { stop(asked); return time.Hour, true },
			Fail:  func(err error, end End) error { return fmt.Errorf("end %d: %w", end, err) }}
		require.EqualError(t, l.Run(ctx), "end 2: asked to stop")
	})
}

// TestBackoff expects that the pause grows up to half a minute.
func TestBackoff(t *testing.T) {
	t.Parallel()
	for try, most := range map[int]time.Duration{1: 500 * time.Millisecond, 2: time.Second, 5: 8 * time.Second, 7: 30 * time.Second, 1_000_000: 30 * time.Second} {
		for range 100 {
			d := Backoff(try)
			require.LessOrEqual(t, d, most)
			require.GreaterOrEqual(t, d, most/2)
		}
	}
}
