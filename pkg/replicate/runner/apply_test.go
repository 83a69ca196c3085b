package runner

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// grown returns a replica whose next run moves holds and destroys snapshots on both sides.
func grown(t *testing.T) *replica {
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Adopt: []string{"s*"}}, Retention: &retention.Grid{Last: 2}})
	for _, name := range []string{"s1", "s2"} {
		r.snapshot("src", name)
	}
	r.run(t)
	r.snapshot("src", "s3")
	r.now += 10
	return r
}

// operations records the operations of a run that change holds or snapshots, in order. fail returns the
// error of an operation, nil = none.
func (r *replica) operations(fail func(op, name string) error) *[]string {
	done := &[]string{}
	r.before = func(op string, names []string) error {
		if !slices.Contains([]string{zfs.OpHold, zfs.OpRelease, zfs.OpDestroy}, op) {
			return nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		*done = append(*done, op+" "+strings.Join(names, " "))
		return fail(op, names[0])
	}
	return done
}

// TestHoldsMoveDespiteInterruption interrupts a run while it places holds, and expects it to move the holds
// but not to destroy anything.
func TestHoldsMoveDespiteInterruption(t *testing.T) {
	t.Parallel()
	r := grown(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := r.operations(func(op, name string) error {
		if op == zfs.OpHold && below(name, "dst") && ctx.Err() == nil {
			cancel()
			return ctx.Err()
		}
		return nil
	})
	run, err := r.runner(t).Run(ctx, r.job, true)
	require.NoError(t, err, "everything arrived")
	require.Empty(t, run.Targets[0].Error)
	require.Equal(t, []string{"interrupted before retention, which the next run applies"}, run.Notes)
	require.NotContains(t, strings.Join(*done, "\n"), zfs.OpDestroy)
	for _, d := range []string{"src", "dst/copy"} {
		require.Empty(t, r.held(d+"@s2"), d)
		require.Equal(t, []string{replicate.Tag("j", "t")}, r.held(d+"@s3"), d)
		require.Equal(t, []string{"s1", "s2", "s3"}, r.names(d))
	}
}

// TestFailedHoldsStopOnlyReleases refuses holds on the target, and expects the other steps to run.
func TestFailedHoldsStopOnlyReleases(t *testing.T) {
	t.Parallel()
	r := grown(t)
	done := r.operations(func(op, name string) error {
		if op == zfs.OpHold && below(name, "dst") {
			return &zfs.Error{Kind: zfs.Permission, Op: op}
		}
		return nil
	})
	run, err := r.runner(t).Run(t.Context(), r.job, true)
	require.NoError(t, err)
	require.Len(t, run.Notes, 1)
	require.Equal(t, []string{"hold src@s3", "hold dst/copy@s3", "destroy dst/copy@s1", "release src@s2", "destroy src@s1", "destroy src#zxfer:j:s2"}, *done)
	require.Equal(t, []string{replicate.Tag("j", "t")}, r.held("dst/copy@s2"), "the former hold is kept")
	require.Equal(t, []string{"s2", "s3"}, r.names("dst/copy"))
}
