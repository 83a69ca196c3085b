package send

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/plan"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// TestNoResumeDiscardsWithNothingToSend expects that --no-resume discards partially received state
// also if nothing is sent.
func TestNoResumeDiscardsWithNothingToSend(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	w.Memory.Set("dst/a", "receive_resume_token", "1-no-token")
	r, err := Run(t.Context(), sendRequest(func(s *Request) { s.Plan.NoResume = true }), hosts.New(w), Quiet{})
	require.NoError(t, err)
	require.Equal(t, []string{"zfs receive -A dst/a"}, r.Commands)
	require.Equal(t, []string{"discard dst/a"}, w.Changes)
}

// TestSmallStreamsUseSmallBuffers expects that a small stream gets small blocks and buffers and no
// compressor, because each end allocates them for every stream.
func TestSmallStreamsUseSmallBuffers(t *testing.T) {
	t.Parallel()
	const ring = 16 << 20
	for _, tt := range []struct {
		bytes uint64
		asked transfer.Options
		want  transfer.Options
	}{
		{0, transfer.Options{Compress: "auto"}, transfer.Options{Compress: "auto"}},
		{1, transfer.Options{Compress: "auto"}, transfer.Options{Compress: "off", Block: 64 << 10, Buffer: ring}},
		{1, transfer.Options{Compress: "zstd:9"}, transfer.Options{Compress: "zstd:9", Block: 64 << 10, Buffer: ring}},
		{100_000, transfer.Options{Compress: "auto", Buffer: 1 << 20}, transfer.Options{Compress: "auto", Block: 100_000, Buffer: 1 << 20}},
		{transfer.DefaultBlock, transfer.Options{Compress: "auto"}, transfer.Options{Compress: "auto"}},
	} {
		require.Equal(t, tt.want, smallStreamOptions(tt.asked, tt.bytes), "%d bytes", tt.bytes)
	}
}

// TestPlainBelowEncryptedReplicaAfterInterruption expects that an unencrypted dataset below an encrypted
// replica is planned the same way after an interruption, although the replica's key is not on the
// target.
func TestPlainBelowEncryptedReplicaAfterInterruption(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/plain": {"x", "y"}, "dst": nil})
	w.Memory.Set("src/a", "encryption", "aes-256-gcm")
	w.Memory.Set("src/a/plain", "encryption", "off")
	cuts := 0
	w.Before = func(op string) error {
		if op == "receive dst/a/plain" {
			if cuts++; cuts%2 == 1 { // interrupt each stream once
				return tcp.ErrConnectionLost
			}
		}
		return nil
	}
	_, err := Run(t.Context(), sendRequest(func(s *Request) { s.Retries = 2 }), hosts.New(w), Quiet{})
	require.NoError(t, err)
	require.Equal(t, []string{"receive dst/a@x", "receive dst/a/plain@x", "receive dst/a/plain@y"}, w.Changes)
	require.Equal(t, "off", w.Memory.Get("dst/a/plain", "encryption"))
}

// TestKnownCauseOfFailure expects that a failed stream's hint begins with its known cause, which
// depends on the flags and on both listings.
func TestKnownCauseOfFailure(t *testing.T) {
	t.Parallel()
	stall := fmt.Errorf("%w for 1m0s: zfs receive dst/a accepted no data", transfer.ErrStall)
	const refused = "cannot receive incremental stream: invalid backup stream"
	for _, tt := range []struct {
		name    string
		failure error
		set     func(w *jobtest.World)
		want    []string // of the hint
	}{
		{"refused record", &zfs.Error{Kind: zfs.BadStream, Op: zfs.OpReceive, Detail: refused}, nil,
			[]string{"may be openzfs#18685", "zfs send", "src/a@x | zstream dump"}},
		{"refused record with a hint", &zfs.Error{Kind: zfs.BadStream, Op: zfs.OpReceive, Detail: refused, Hint: "own hint"}, nil,
			[]string{"may be openzfs#18685", "| grep bonustype\nown hint"}},
		{"no known cause", &zfs.Error{Kind: zfs.NoSpace, Op: zfs.OpReceive, Detail: "out of space", Hint: "own hint"}, nil, []string{"own hint"}},
		{"stall of an encrypted target", stall, func(w *jobtest.World) { w.Memory.Set("dst", "encryption", "aes-256-gcm") }, []string{"may be openzfs#16623"}},
		{"stall of a plain target", stall, nil, nil},
	} {
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		if tt.set != nil {
			tt.set(w)
		}
		w.Before = func(op string) error {
			if op == "receive dst/a" {
				return tt.failure
			}
			return nil
		}
		_, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
		require.ErrorIs(t, err, tt.failure, tt.name)
		hint := fault.HintOf(err)
		if tt.want == nil {
			require.NotContains(t, hint, "openzfs#", tt.name)
		}
		for _, part := range tt.want {
			require.Contains(t, hint, part, tt.name)
		}
	}
}

// TestAdvanced expects that the count of retries restarts only if the target stored data.
func TestAdvanced(t *testing.T) {
	t.Parallel()
	step := func(guid, done uint64) plan.Step { return plan.Step{ToGUID: guid, Done: done} }
	with := func(steps ...plan.Step) *plan.Dataset { return &plan.Dataset{Steps: steps} }
	require.False(t, advanced(with(step(1, 0)), with(step(1, 0))))
	require.False(t, advanced(with(step(1, 10)), with(step(1, 10))))
	require.True(t, advanced(with(step(1, 0)), with(step(1, 10))), "more of the stream is stored")
	require.True(t, advanced(with(step(1, 0), step(2, 0)), with(step(2, 0))), "the next stream is due")
	require.True(t, advanced(with(step(1, 0)), with()), "nothing is left")
}

// TestGateIsFair expects that a job with much to send does not delay one with little at a common gate.
func TestGateIsFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		outer := NewGate(2)
		gates := map[string]Gate{"busy": within(outer, NewGate(2)), "small": within(outer, NewGate(2))}
		var order []string
		next, all := make(chan struct{}), sync.WaitGroup{}
		want := func(job string) {
			all.Go(func() {
				release, err := gates[job](t.Context())
				require.NoError(t, err)
				<-next
				order = append(order, job)
				release()
			})
			synctest.Wait()
		}
		for range 9 {
			want("busy")
		}
		want("small")
		for range 10 {
			next <- struct{}{}
			synctest.Wait()
		}
		all.Wait()
		require.Less(t, slices.Index(order, "small"), 4, "%v", order)
	})
}

// TestGateCancelled expects that a dataset that waits at a common gate leaves both gates if its job is cancelled.
func TestGateCancelled(t *testing.T) {
	t.Parallel()
	outer, inner := NewGate(1), NewGate(1)
	release, err := outer(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		_, err = within(outer, inner)(ctx)
		require.ErrorIs(t, err, context.Canceled)
	}
	release()
	release, err = within(outer, inner)(t.Context())
	require.NoError(t, err)
	release()
}
