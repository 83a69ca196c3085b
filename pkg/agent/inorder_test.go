package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// inOrder returns requests for snapshots of tank/a with these names.
func inOrder(names ...string) (all []*hosts.Request) {
	for _, n := range names {
		all = append(all, hosts.OpSnapshot.Request([]string{"tank/a@" + n}, nil))
	}
	return all
}

// snapshotCall is the call with that ID, of a snapshot with the ID as name.
func snapshotCall(id, after uint64) *message {
	return &message{Kind: call, ID: id, Op: hosts.OpSnapshot.Name(), After: after, Body: json.RawMessage(fmt.Sprintf(`["tank/vm@%d"]`, id))}
}

// TestInOrderNeedsOneRoundTrip expects all requests at the agent before it answers the first one.
func TestInOrderNeedsOneRoundTrip(t *testing.T) {
	t.Parallel()
	var got []*message
	r := lyingAgent(t, func(m *message) (answers [][]byte) {
		if got = append(got, m); len(got) < 3 {
			return nil
		}
		for _, m := range got {
			answers = append(answers, answer(m, `{}`)...)
		}
		return answers
	})
	for _, err := range r.RunInOrder(t.Context(), inOrder("1", "2", "3")) {
		require.NoError(t, err)
	}
	require.Equal(t, []uint64{0, got[0].ID, got[1].ID}, []uint64{got[0].After, got[1].After, got[2].After})
	require.NoError(t, r.Close())
}

// TestLargeRequestsInOrderWait expects no request to be sent with a large one before it.
func TestLargeRequestsInOrderWait(t *testing.T) {
	t.Parallel()
	var afters []uint64
	r := lyingAgent(t, func(m *message) [][]byte { afters = append(afters, m.After); return answer(m, `{}`) })
	all := inOrder("1", "2", "3")
	names := []string{}
	for n := range maxBytesTogether / 10 {
		names = append(names, fmt.Sprint("tank/a@", n))
	}
	all[1] = hosts.OpSnapshot.Request(names, nil)
	for _, err := range r.RunInOrder(t.Context(), all) {
		require.NoError(t, err)
	}
	require.Equal(t, []uint64{0, 0, 0}, afters)
	require.NoError(t, r.Close())
}

// TestManyRequestsInOrder sends more requests than a restricted agent accepts at the same time, and expects
// all to run.
func TestManyRequestsInOrder(t *testing.T) {
	t.Parallel()
	var afters int
	r := lyingAgent(t, func(m *message) [][]byte {
		if m.After != 0 {
			afters++
		}
		return answer(m, `{}`)
	})
	for _, err := range r.RunInOrder(t.Context(), slices.Repeat(inOrder("1"), 2*maxCalls)) {
		require.NoError(t, err)
	}
	require.Equal(t, 2*maxCalls/maxCallsTogether*(maxCallsTogether-1), afters)
	require.NoError(t, r.Close())
}

// TestInOrderAfterFailure expects that the requests after a failed one do not run.
func TestInOrderAfterFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := 0
		g := start(t, newHost(func(context.Context) error {
			if n++; n == 2 {
				return &zfs.Error{Kind: zfs.Busy}
			}
			return nil
		}))
		errs := g.RunInOrder(t.Context(), inOrder("1", "2", "3", "4"))
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], &zfs.Error{Kind: zfs.Busy})
		require.ErrorIs(t, errs[2], hosts.ErrNotStarted)
		require.ErrorIs(t, errs[3], hosts.ErrNotStarted)
		require.Equal(t, 2, n)
		require.Empty(t, g.calls)
	})
}

// TestInOrderIsCancelled cancels requests during the first one.
func TestInOrderIsCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		g := start(t, newHost(func(ctx context.Context) error { n++; cancel(); <-ctx.Done(); return ctx.Err() }))
		errs := g.RunInOrder(ctx, inOrder("1", "2", "3"))
		require.ErrorIs(t, errs[0], context.Canceled)
		require.ErrorIs(t, errs[1], hosts.ErrNotStarted)
		require.ErrorIs(t, errs[2], hosts.ErrNotStarted)
		require.Equal(t, 1, n)
		for _, err := range g.RunInOrder(ctx, inOrder("1", "2")) {
			require.Error(t, err)
		}
		require.Equal(t, 1, n)
	})
}

// TestInOrderOverLostConnection expects the outcome of all sent requests to be unknown.
func TestInOrderOverLostConnection(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := lyingAgent(t, func(*message) [][]byte { return nil })
		time.AfterFunc(time.Second, func() { r.fail(errors.New("reset")) })
		for _, err := range r.RunInOrder(t.Context(), inOrder("1", "2")) {
			require.ErrorIs(t, err, hosts.ErrLost)
		}
		require.NoError(t, r.Close())
	})
}

// TestLaterAnswerBeforeLostConnection expects a request to have succeeded if its answer came before the
// connection was lost, although the answer of the previous one did not.
func TestLaterAnswerBeforeLostConnection(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := 0
		r := lyingAgent(t, func(m *message) [][]byte {
			if n++; n == 2 {
				return answer(m, `{}`)
			}
			return nil
		})
		time.AfterFunc(time.Second, func() { r.fail(errors.New("reset")) })
		errs := hosts.InOrder(t.Context(), func(_ context.Context, f func(hosts.Host) error) error { return f(r) }, inOrder("1", "2", "3")...)
		require.ErrorIs(t, errs[0], hosts.ErrLost)
		require.NoError(t, errs[1])
		require.ErrorIs(t, errs[2], hosts.ErrLost)
		require.NoError(t, r.Close())
	})
}

// TestInvalidRequestInOrder expects an invalid request to fail alone, after the ones before it.
func TestInvalidRequestInOrder(t *testing.T) {
	t.Parallel()
	r := lyingAgent(t, func(m *message) [][]byte { return answer(m, `{}`) })
	all := inOrder("1", "2", "3", "4")
	all[2] = hosts.OpTransfer.Request(hosts.Task{}, nil)
	errs := r.RunInOrder(t.Context(), all)
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	require.ErrorContains(t, errs[2], "a task requires two ends")
	require.ErrorIs(t, errs[3], hosts.ErrNotStarted)
	require.NoError(t, r.Close())
}

// TestInvalidPreviousCallEndsAgent expects that a call can only follow the call before it.
func TestInvalidPreviousCallEndsAgent(t *testing.T) {
	for name, calls := range map[string][]*message{
		"unknown": {snapshotCall(1, 0), snapshotCall(2, 9)}, "first": {snapshotCall(1, 9)}, "itself": {snapshotCall(1, 1)},
		"older": {snapshotCall(1, 0), snapshotCall(2, 0), snapshotCall(3, 1)}, "later": {snapshotCall(1, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := serveRaw(t.Context(), t, newHost(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
				r.hello()
				for _, m := range calls {
					r.send(m)
				}
				require.ErrorContains(t, <-r.served, "which is not the previous one")
			})
		})
	}
}

// TestWaitingCallsHaveNoTurn fills a restricted session with calls that wait for a running one, and expects
// other calls to run. Then it cancels the running one.
func TestWaitingCallsHaveNoTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, err := authz.Parse([]string{"send=tank/vm"}, nil, false)
		require.NoError(t, err)
		running := make(chan struct{})
		var n atomic.Int32
		s := newHost(func(ctx context.Context) error {
			if n.Add(1) == 1 {
				close(running)
				<-ctx.Done()
			}
			return ctx.Err()
		})
		r := serveGuarded(t.Context(), t, s, authz.NewGuard(p, newHost(nil), func(string) {}))
		r.hello()
		const waiting = maxCalls - 10
		for id := uint64(1); id <= waiting; id++ {
			r.send(snapshotCall(id, id-1))
		}
		<-running
		for id := uint64(1000); id < 1000+3*maxShort; id++ {
			r.send(snapshotCall(id, 0))
			m := r.receive()
			require.Equal(t, id, m.ID)
			require.Nil(t, m.Error)
		}
		before := n.Load()
		r.send(&message{Kind: cancel, ID: waiting})
		m := r.receive()
		require.EqualValues(t, waiting, m.ID)
		require.Equal(t, []string{"canceled", "unstarted"}, m.Error.Is)
		r.send(&message{Kind: cancel, ID: 1})
		for range waiting - 1 {
			m := r.receive()
			require.Contains(t, m.Error.Is, map[bool]string{true: "canceled", false: "unstarted"}[m.ID == 1])
		}
		require.Equal(t, before, n.Load(), "no waiting call ran")
		synctest.Wait()
		require.NoError(t, r.pipe.Close())
		require.NoError(t, <-r.served)
	})
}

// TestWaitingCallsEndWithClient expects that no waiting call starts after the client has died.
func TestWaitingCallsEndWithClient(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var n atomic.Int32
		r := serveRaw(t.Context(), t, newHost(func(ctx context.Context) error {
			n.Add(1)
			<-ctx.Done()
			return nil // it succeeded before it noticed
		}))
		r.hello()
		r.send(snapshotCall(1, 0))
		r.send(snapshotCall(2, 1))
		synctest.Wait()
		require.NoError(t, r.pipe.Close())
		require.NoError(t, <-r.served)
		require.EqualValues(t, 1, n.Load())
	})
}
