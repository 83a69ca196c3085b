package send

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/transport/tcp"
)

// TestRefusalAfterChangeBecomesFailure expects that after a change, a refusal becomes a
// failure. A refusal means that nothing was changed.
func TestRefusalAfterChangeBecomesFailure(t *testing.T) {
	t.Parallel()
	forbidden := fault.Refusef("ask the administrator", "the policy forbids it")
	t.Run("dataset after one that arrived", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
		w.Before = jobtest.FailOn("receive dst/a/b", forbidden)
		r, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
		require.ErrorContains(t, err, "the policy forbids it")
		require.Equal(t, []string{"receive dst/a@x"}, w.Changes)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
		require.Equal(t, "failed", r.Outcome)
		require.Equal(t, "ask the administrator", r.Hint)
	})
	t.Run("the first dataset", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.Before = jobtest.FailOn("receive", forbidden)
		_, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.Empty(t, w.Changes)
	})
	t.Run("all datasets, including dependents", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "src/a/b/d": {"x"}, "src/a/c": {"x"}, "dst": nil})
		w.Memory.Copy("src/a", "dst/a", "x")
		w.Before = jobtest.FailOn("receive", forbidden)
		_, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.Empty(t, w.Changes)
	})
	t.Run("next to an interrupted dataset", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "src/a/c": {"x"}, "dst": nil})
		w.Memory.Copy("src/a", "dst/a", "x")
		cut, refused := jobtest.FailOn("receive dst/a/b", tcp.ErrConnectionLost), jobtest.FailOn("receive", forbidden)
		w.Before = func(op string) error { return cmp.Or(cut(op), refused(op)) }
		_, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
		require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	})
	t.Run("hold on a received snapshot", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.Before = jobtest.FailOn("hold", forbidden)
		_, err := Run(t.Context(), sendRequest(func(s *Request) { s.Hold = "keep" }), hosts.New(w), Quiet{})
		require.ErrorContains(t, err, "the data was received")
		require.Equal(t, []string{"receive dst/a@x"}, w.Changes)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	})
	t.Run("bookmark before the first stream", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.Before = jobtest.FailOn("bookmark", forbidden)
		_, err := Run(t.Context(), sendRequest(func(s *Request) { s.Bookmark = true }), hosts.New(w), Quiet{})
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.Empty(t, w.Changes)
		w.Before = jobtest.FailOn("receive", tcp.ErrConnectionLost)
		_, err = Run(t.Context(), sendRequest(func(s *Request) { s.Bookmark = true }), hosts.New(w), Quiet{})
		require.Error(t, err)
		require.Contains(t, fmt.Sprint(w.Memory.Versions("src/a")), "{# x ")
	})
	t.Run("stream after a discarded receive", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
		w.Memory.Copy("src/a", "dst/a", "x")
		w.Memory.Set("dst/a", "receive_resume_token", "1-no-token")
		w.Before = jobtest.FailOn("receive", forbidden)
		_, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
		require.ErrorContains(t, err, "the policy forbids it")
		require.Equal(t, []string{"discard dst/a"}, w.Changes)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	})
	t.Run("target hold after the source hold", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.Memory.Copy("src/a", "dst/a", "x")
		w.Before = jobtest.FailOn("hold dst/a@x", forbidden)
		_, err := Run(t.Context(), sendRequest(func(s *Request) { s.Hold = "keep" }), hosts.New(w), Quiet{})
		require.ErrorContains(t, err, "the policy forbids it")
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	})
	t.Run("plan after the new snapshot", func(t *testing.T) {
		t.Parallel()
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.Before = func(op string) error {
			if op == "snapshot src/a@new" {
				w.Memory.Create("dst/a", map[string]string{"type": "volume"})
			}
			return nil
		}
		req := sendRequest(func(s *Request) { s.TakeSnapshot, s.Plan.Snapshot = "new", "new" })
		_, err := Run(t.Context(), req, hosts.New(w), Quiet{})
		require.ErrorContains(t, err, "is a volume")
		require.Equal(t, []string{"snapshot src/a@new"}, w.Changes)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	})
}

// TestSnapshotSkipsPartiallyReceived expects that partially received datasets cannot be
// snapshotted and are skipped.
func TestSnapshotSkipsPartiallyReceived(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": nil, "src/a/half": nil, "dst": nil})
	w.Memory.Set("src/a/half", "inconsistent", "1")
	req := sendRequest(func(s *Request) { s.TakeSnapshot, s.Plan.Snapshot = "new", "new" })
	_, err := Run(t.Context(), req, hosts.New(w), Quiet{})
	require.NoError(t, err)
	require.Equal(t, []string{"snapshot src/a@new", "receive dst/a@new"}, w.Changes)
}

// TestExistingSnapshotNameIsRefused expects that a snapshot name in use is refused before any
// change, with the conflicting snapshots and a hint.
func TestExistingSnapshotNameIsRefused(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x", "new"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	req := sendRequest(func(s *Request) { s.TakeSnapshot, s.Plan.Snapshot = "new", "new" })
	_, err := Run(t.Context(), req, hosts.New(w), Quiet{})
	require.ErrorContains(t, err, "{{snapshot new}} takes a new snapshot, but that name exists: src/a/b@new")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "{{snapshot =}}")
	require.Contains(t, fault.HintOf(err), "the same command with src/a@new as source and without {{snapshot}}")
	require.Empty(t, w.Changes)
}

// TestHintResumesFromNewSnapshot expects that if a job with a new snapshot is interrupted, the
// hint resumes from that snapshot.
func TestHintResumesFromNewSnapshot(t *testing.T) {
	t.Parallel()
	for _, during := range []string{"transfer", "second survey"} {
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": nil, "dst": nil})
		ctx, stop := context.WithCancel(t.Context())
		var taken atomic.Bool // both sides are listed concurrently
		w.Before = func(op string) error {
			switch {
			case strings.HasPrefix(op, "receive"):
				return tcp.ErrConnectionLost
			case taken.Load() && during == "second survey":
				stop()
				return ctx.Err()
			case op == "snapshot src/a@new":
				taken.Store(true)
			}
			return nil
		}
		req := sendRequest(func(s *Request) { s.TakeSnapshot, s.Plan.Snapshot = "new", "new" })
		_, err := Run(ctx, req, hosts.New(w), Quiet{})
		stop()
		require.Equal(t, []string{"snapshot src/a@new"}, w.Changes)
		require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%s: %v", during, err)
		require.Equal(t, "the same command resumes, with src/a@new as source and without {{snapshot}}", fault.HintOf(err), during)
	}
}

// TestMissingDatasetsAreRefused expects that a missing pool is refused like a missing dataset.
func TestMissingDatasetsAreRefused(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	for name, change := range map[string]func(*Request){
		"no such dataset: src/none": func(s *Request) { s.Source.Name, s.Plan.Source = "src/none", "src/none" },
		"no such pool: none":        func(s *Request) { s.Source.Name, s.Plan.Source = "none/a", "none/a" },
		"no such pool: beta":        func(s *Request) { s.Target, s.Plan.Target = endpoint.Endpoint{Name: "beta"}, "beta" },
	} {
		_, err := Run(t.Context(), sendRequest(change), hosts.New(w), Quiet{})
		require.ErrorContains(t, err, name)
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.NotEmpty(t, fault.HintOf(err))
	}
	require.Empty(t, w.Changes)
}

// TestIllegalTargetsAreUsageErrors plans invalid target names, and expects usage errors.
func TestIllegalTargetsAreUsageErrors(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	for target, says := range map[string]string{"dst/a%b": "a%b", "dst/" + strings.Repeat("x", 252): "255"} {
		_, err := Run(t.Context(), sendRequest(func(s *Request) { s.Target.Name, s.Plan.Target = target, target }), hosts.New(w), Quiet{})
		require.ErrorContains(t, err, says)
		require.Equal(t, fault.Usage, fault.ClassOf(err))
	}
	require.Empty(t, w.Changes)
}
