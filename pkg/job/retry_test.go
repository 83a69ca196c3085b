package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

func TestTransient(t *testing.T) {
	t.Parallel()
	for _, err := range []error{tcp.ErrCut, hosts.ErrLost, &zfs.Error{Kind: zfs.Killed}, &zfs.Error{Kind: zfs.Busy}, &zfs.Error{Kind: zfs.Incomplete}} {
		require.True(t, transient(fmt.Errorf("x: %w", err)), "%v", err)
	}
	for _, err := range []error{tcp.ErrTampered, tcp.ErrDial, &zfs.Error{Kind: zfs.NoSpace}, &zfs.Error{Kind: zfs.Permission}, context.Canceled,
		errors.Join(tcp.ErrTampered, tcp.ErrCut)} {
		require.False(t, transient(fmt.Errorf("x: %w", err)), "%v", err)
	}
}

// runRetrier runs a retrier with the given results of tries and progress checks. It returns the
// number of tries and the log.
func runRetrier(t *testing.T, e retrier, tries, looks []error, advance map[int]bool) (n int, said []string, err error) {
	t.Helper()
	next := func(all *[]error) (err error) {
		if len(*all) > 0 {
			err, *all = (*all)[0], (*all)[1:]
		}
		return err
	}
	e.log = func(s string) { said = append(said, s) }
	e.try = func(context.Context, int) error { n++; return next(&tries) }
	if advance != nil {
		e.progress = func(context.Context) (bool, error) { return advance[n], next(&looks) }
	}
	if e.curable == nil {
		e.curable = func(err, _ error) bool { return transient(err) }
	}
	synctest.Test(t, func(t *testing.T) { err = e.run(t.Context()) })
	return n, said, err
}

// A retrier ends on success, on an incurable error, or after the maximum of tries without
// progress.
func TestEffort(t *testing.T) {
	t.Parallel()
	cut, away, never := fmt.Errorf("in the middle: %w", tcp.ErrCut), errors.New("no route"), errors.New("no space")
	for _, tt := range []struct {
		name    string
		retries int
		tries   []error
		looks   []error
		advance map[int]bool
		want    int // number of tries
		class   fault.Class
		says    string
	}{
		{"done at once", 0, nil, nil, nil, 1, 0, ""},
		{"cut once", 1, []error{cut}, nil, nil, 2, 0, ""},
		{"cut, and no more tries", 0, []error{cut}, nil, nil, 1, fault.Interrupted, "pool/a: in the middle"},
		{"cut for good", 2, []error{cut, cut, cut, cut}, nil, nil, 3, fault.Interrupted, "pool/a: in the middle"},
		{"an error that no try cures", 5, []error{never}, nil, nil, 1, fault.Failed, "pool/a: no space"},
		{"such an error after a cut", 5, []error{cut, never}, nil, nil, 2, fault.Failed, "pool/a: no space"},
		{"each try brings something", 1, []error{cut, cut, cut, cut}, nil, map[int]bool{1: true, 2: true, 3: true, 4: true}, 5, 0, ""},
		{"the second brings nothing", 1, []error{cut, cut, cut}, nil, map[int]bool{1: true}, 3, fault.Interrupted, ""},
		{"the host is away for a while", 3, []error{cut}, []error{away, away}, map[int]bool{}, 2, 0, ""},
		{"the host is away for good", 3, []error{cut}, []error{away, away, away, away}, map[int]bool{}, 1, fault.Interrupted, "pool/a: no route"},
		{"what a look finds decides", 3, []error{cut}, []error{&permanentError{fault.Failf("", "another disk")}}, map[int]bool{}, 1, fault.Failed, "pool/a: another disk"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, _, err := runRetrier(t, retrier{name: "pool/a", retries: tt.retries}, tt.tries, tt.looks, tt.advance)
			require.Equal(t, tt.want, n)
			if tt.class == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.says)
			require.Equal(t, tt.class, fault.ClassOf(err))
		})
	}
	_, said, _ := runRetrier(t, retrier{name: "pool/a", retries: 2}, []error{cut, cut, cut}, nil, nil)
	require.Len(t, said, 2)
	require.Regexp(t, "^pool/a: in the middle: .*; try 1 of 2 in ", said[0])
	require.Regexp(t, "^pool/a: in the middle: .*; try 2 of 2 in ", said[1])
}

// A cancelled retrier makes no further try, and its error is resumable.
func TestAnEffortIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"try", "pause", "look"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			e := retrier{name: "pool/a", retries: 9, curable: func(error, error) bool { return true }}
			e.try = func(context.Context, int) error {
				if at == "try" {
					stop()
				}
				return tcp.ErrCut
			}
			e.log = func(string) {
				if at == "pause" {
					stop()
				}
			}
			e.progress = func(context.Context) (bool, error) { stop(); return false, ctx.Err() }
			err := e.run(ctx)
			require.EqualError(t, err, "pool/a: interrupted", at)
			require.Equal(t, fault.Interrupted, fault.ClassOf(err))
			require.Equal(t, resumes, fault.HintOf(err))
		})
	}
}

// An incurable error is neither retried nor reported as an interruption: an unplanned snapshot on
// the target twice in a row, or a new conflict.
func TestWhatNoTryCuresIsAFailure(t *testing.T) {
	t.Parallel()
	retries := func(s *Send) { s.Retries, s.Plan.Recursive = 6, false }
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
	w.host.Copy("src/a", "dst/a", "x")
	tries := 0
	w.before = func(op string) error {
		if op != "receive dst/a" {
			return nil
		}
		tries++
		return &zfs.Error{Kind: zfs.Exists, Op: zfs.OpReceive, Subject: "dst/a"}
	}
	_, err := RunSend(t.Context(), sendRequest(retries), hosts.New(w), silent{})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Exists})
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.Equal(t, 2, tries)

	tries = 0
	w.before = func(op string) error {
		if op != "receive dst/a" {
			return nil
		}
		tries++
		return cmp.Or(w.host.Snapshot(t.Context(), []string{"dst/a@theirs"}), tcp.ErrCut)
	}
	_, err = RunSend(t.Context(), sendRequest(retries), hosts.New(w), silent{})
	require.ErrorContains(t, err, "@theirs")
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.Equal(t, 1, tries)
}

// Another command resumed the same stream first: its resume token is invalid and the data is
// complete.
func TestARivalCompletesTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
	w.host.Copy("src/a", "dst/a", "x")
	w.before = func(op string) error {
		if op == "receive dst/a" {
			w.host.Copy("src/a", "dst/a", "x", "y")
			return &zfs.Error{Kind: zfs.BadToken, Op: zfs.OpReceive, Subject: "dst/a"}
		}
		return nil
	}
	_, err := RunSend(t.Context(), sendRequest(func(s *Send) { s.Retries, s.Plan.Recursive = 6, false }), hosts.New(w), silent{})
	require.NoError(t, err)
}

// A source may explain a deviation from the planned stream once.
func TestAnUnplannedStreamIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("%w; the target says: %w", &zfs.Error{Kind: zfs.Killed}, &zfs.Error{Kind: zfs.Unplanned})
	require.True(t, transient(err))
	require.False(t, repeated(nil, err))
	require.True(t, repeated(err, err))
}
