package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// takes returns changes that take snapshots of tank/a with these names.
func takes(names ...string) (all []hosts.Change) {
	for _, n := range names {
		all = append(all, hosts.OpSnapshot.Change([]string{"tank/a@" + n}))
	}
	return all
}

// TestChangesNeedOneExchange expects all changes and the query of a list in one request.
func TestChangesNeedOneExchange(t *testing.T) {
	t.Parallel()
	requests := 0
	r := lyingAgent(t, func(m *message) [][]byte { requests++; return answer(m, `{}`) })
	done, err := hosts.Apply(t.Context(), r, takes("1", "2", "3"))
	require.NoError(t, err)
	require.Equal(t, 3, done)
	require.Equal(t, 1, requests)
	require.NoError(t, r.Close())
}

// TestChangesAfterFailure expects that the changes after a failed one do not run, and that the client learns how
// many did.
func TestChangesAfterFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := 0
		g := start(t, newHost(func(context.Context) error {
			if n++; n == 2 {
				return &zfs.Error{Kind: zfs.Busy}
			}
			return nil
		}))
		done, err := hosts.Apply(t.Context(), g, takes("1", "2", "3", "4"))
		require.Equal(t, 1, done)
		require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Busy})
		require.Equal(t, 2, n)
		require.Empty(t, g.calls)
	})
}

// TestChangesAreCancelled cancels a list during its second change.
func TestChangesAreCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		g := start(t, newHost(func(ctx context.Context) error {
			if n++; n < 2 {
				return nil
			}
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}))
		done, err := hosts.Apply(ctx, g, takes("1", "2", "3"))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, done)
		require.Equal(t, 2, n)
		done, err = hosts.Apply(ctx, g, takes("1", "2"))
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, done)
		require.Equal(t, 2, n)
	})
}

// TestChangesOverLostConnection expects no change to count as done.
func TestChangesOverLostConnection(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := lyingAgent(t, func(*message) [][]byte { return nil })
		time.AfterFunc(time.Second, func() { r.fail(errors.New("reset")) })
		done, err := hosts.Apply(t.Context(), r, takes("1", "2"))
		require.ErrorIs(t, err, hosts.ErrLost)
		require.Zero(t, done)
		require.NoError(t, r.Close())
	})
}

// TestChangesEndWithClient expects that no further change starts after the client has died.
func TestChangesEndWithClient(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newHost(func(ctx context.Context) error {
			<-ctx.Done()
			return nil // it succeeded before it noticed
		})
		s.plainApply = true
		r := serveRaw(t.Context(), t, s)
		r.hello()
		body, err := json.Marshal(hosts.ChangeList{Changes: takes("1", "2")})
		require.NoError(t, err)
		r.send(&message{Kind: call, ID: 1, Op: hosts.OpApply.Name(), Body: body})
		synctest.Wait()
		require.NoError(t, r.pipe.Close())
		require.NoError(t, <-r.served)
		require.Len(t, s.all, 1)
	})
}

// TestRefusedChangeStopsWholeList expects that a restricted agent applies nothing of a list with a refused change,
// whatever its place.
func TestRefusedChangeStopsWholeList(t *testing.T) {
	t.Parallel()
	granted, other := hosts.OpSnapshot.Change([]string{"tank/vm@new"}), hosts.OpDestroy.Change([]string{"tank/a@x"})
	for _, all := range [][]hosts.Change{{granted, other}, {other, granted}, {granted, granted, other, granted}} {
		c, s, audit := restrictedSession(t, false, "send=tank/vm")
		body, err := json.Marshal(hosts.ChangeList{Changes: all})
		require.NoError(t, err)
		f := callSession(t, c, hosts.OpApply.Name(), string(body))
		require.NotNil(t, f)
		require.Contains(t, f.Is, "forbidden")
		require.Contains(t, f.Text, "tank/a@x")
		require.Zero(t, f.Done)
		require.Empty(t, s.all)
		require.Len(t, *audit, 1, fmt.Sprint(*audit))
	}
}

// TestStoppedListOfRestrictedKey expects the audit to say which change failed, and which did not start.
func TestStoppedListOfRestrictedKey(t *testing.T) {
	t.Parallel()
	c, s, audit := restrictedSession(t, false, "send=tank/vm")
	s.plainApply = true
	body, err := json.Marshal(hosts.ChangeList{Changes: []hosts.Change{hosts.OpSnapshot.Change([]string{"tank/vm@new"}),
		hosts.OpSnapshot.Change([]string{"tank/vm@x"}), hosts.OpDestroy.Change([]string{"tank/vm@x"})}})
	require.NoError(t, err)
	f := callSession(t, c, hosts.OpApply.Name(), string(body))
	require.NotNil(t, f)
	require.Equal(t, 1, f.Done)
	require.Len(t, *audit, 5)
	require.True(t, strings.HasPrefix((*audit)[3], "failed snapshot: "), *audit)
	require.Equal(t, `not started destroy: an earlier change failed: "tank/vm@x"`, (*audit)[4])
}
