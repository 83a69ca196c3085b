package send

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
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

func TestTransient(t *testing.T) {
	t.Parallel()
	for _, err := range []error{tcp.ErrConnectionLost, hosts.ErrLost, &zfs.Error{Kind: zfs.Killed}, &zfs.Error{Kind: zfs.Busy}, &zfs.Error{Kind: zfs.Incomplete}} {
		require.True(t, ends.Transient(fmt.Errorf("x: %w", err)), "%v", err)
	}
	for _, err := range []error{tcp.ErrTampered, tcp.ErrDial, &zfs.Error{Kind: zfs.NoSpace}, &zfs.Error{Kind: zfs.Permission}, context.Canceled,
		errors.Join(tcp.ErrTampered, tcp.ErrConnectionLost)} {
		require.False(t, ends.Transient(fmt.Errorf("x: %w", err)), "%v", err)
	}
}

// TestLoop expects that an operation ends with an error that names its object. If the retries are
// exhausted, the error's class and hint state that the same command resumes.
func TestLoop(t *testing.T) {
	t.Parallel()
	cut, never := fmt.Errorf("in the middle: %w", tcp.ErrConnectionLost), errors.New("no space")
	for _, tt := range []struct {
		name  string
		tries []error
		class fault.Class
		says  string
		log   []string
	}{
		{"succeeds immediately", nil, 0, "", nil},
		{"lost once", []error{cut}, 0, "", []string{"try 1 of 2"}},
		{"lost permanently", []error{cut, cut, cut}, fault.Interrupted, "pool/a: in the middle", []string{"try 1 of 2", "try 2 of 2"}},
		{"incurable error", []error{cut, never}, fault.Failed, "pool/a: no space", []string{"try 1 of 2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said []string
				l := ends.NewLoop("pool/a", 2, func(s string) { said = append(said, s) })
				l.Try = func(context.Context, int) (err error) {
					if len(tt.tries) > 0 {
						err, tt.tries = tt.tries[0], tt.tries[1:]
					}
					return err
				}
				l.Retryable = func(err, _ error) bool { return ends.Transient(err) }
				err := l.Run(t.Context())
				require.Len(t, said, len(tt.log))
				for i, number := range tt.log {
					require.Regexp(t, "^pool/a: in the middle: .*; "+number+" in ", said[i])
				}
				if tt.class == 0 {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, tt.says)
				require.Equal(t, tt.class, fault.ClassOf(err))
				require.Equal(t, tt.class == fault.Interrupted, fault.HintOf(err) == ends.Resumes)
			})
		})
	}
}

// TestRetriesAreInterrupted expects that a cancelled operation is not retried, and that its error
// is resumable.
func TestRetriesAreInterrupted(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"try", "pause", "look"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			tries := 0
			log := func(string) {
				if at == "pause" {
					stop()
				}
			}
			l := ends.NewLoop("pool/a", 9, log)
			l.Try = func(context.Context, int) error {
				if tries++; at == "try" {
					stop()
				}
				return tcp.ErrConnectionLost
			}
			l.Retryable = func(error, error) bool { return true }
			l.Progress = func(context.Context) (bool, error) { stop(); return false, ctx.Err() }
			err := l.Run(ctx)
			require.EqualError(t, err, "pool/a: interrupted", at)
			require.Equal(t, fault.Interrupted, fault.ClassOf(err))
			require.Equal(t, ends.Resumes, fault.HintOf(err))
			require.Equal(t, 1, tries)
		})
	}
}

// TestIncurableErrorIsNotRetried expects that an incurable error is neither retried nor reported as
// an interruption. Examples are an unplanned snapshot on the target twice in a row, and a new
// conflict.
func TestIncurableErrorIsNotRetried(t *testing.T) {
	t.Parallel()
	retries := func(s *Request) { s.Retries, s.Plan.Recursive = 6, false }
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	tries := 0
	w.Before = func(op string) error {
		if op != "receive dst/a" {
			return nil
		}
		tries++
		return &zfs.Error{Kind: zfs.Exists, Op: zfs.OpReceive, Subject: "dst/a"}
	}
	_, err := Run(t.Context(), sendRequest(retries), hosts.New(w), Quiet{})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Exists})
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.Equal(t, 2, tries)

	tries = 0
	w.Before = func(op string) error {
		if op != "receive dst/a" {
			return nil
		}
		tries++
		return cmp.Or(w.Memory.Snapshot(t.Context(), []string{"dst/a@theirs"}), tcp.ErrConnectionLost)
	}
	_, err = Run(t.Context(), sendRequest(retries), hosts.New(w), Quiet{})
	require.ErrorContains(t, err, "@theirs")
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.Equal(t, 1, tries)
}

// TestStreamCompletedByOtherCommand expects success if another command resumes the same stream first.
// The resume token is then invalid, and the data is complete.
func TestStreamCompletedByOtherCommand(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	w.Before = func(op string) error {
		if op == "receive dst/a" {
			w.Memory.Copy("src/a", "dst/a", "x", "y")
			return &zfs.Error{Kind: zfs.BadToken, Op: zfs.OpReceive, Subject: "dst/a"}
		}
		return nil
	}
	_, err := Run(t.Context(), sendRequest(func(s *Request) { s.Retries, s.Plan.Recursive = 6, false }), hosts.New(w), Quiet{})
	require.NoError(t, err)
}

// TestUnplannedStreamIsRetriedOnce expects one retry if the source deviates from the planned
// stream.
func TestUnplannedStreamIsRetriedOnce(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("%w; target: %w", &zfs.Error{Kind: zfs.Killed}, &zfs.Error{Kind: zfs.Unplanned})
	require.True(t, ends.Transient(err))
	require.False(t, ends.Repeated(nil, err))
	require.True(t, ends.Repeated(err, err))
}
