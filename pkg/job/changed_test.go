package job

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// A refusal tells that nothing was changed: once something was, it is a failure.
func TestNothingIsRefusedOnceSomethingWasChanged(t *testing.T) {
	t.Parallel()
	forbidden := fault.Refusef("ask the administrator", "the policy forbids it")
	t.Run("a dataset behind one that arrived", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
		w.before = failing("receive dst/a/b", forbidden)
		r, err := RunSend(t.Context(), request(nil), hosts.New(w), silent{})
		require.ErrorContains(t, err, "the policy forbids it")
		require.Equal(t, []string{"receive dst/a@x"}, w.did)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
		require.Equal(t, "failed", r.Outcome)
		require.Equal(t, "ask the administrator", r.Hint)
	})
	t.Run("the first dataset", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.before = failing("receive", forbidden)
		_, err := RunSend(t.Context(), request(nil), hosts.New(w), silent{})
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.Empty(t, w.did)
	})
	t.Run("all datasets, those included that wait for another", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "src/a/b/d": {"x"}, "src/a/c": {"x"}, "dst": nil})
		w.host.Copy("src/a", "dst/a", "x")
		w.before = failing("receive", forbidden)
		_, err := RunSend(t.Context(), request(nil), hosts.New(w), silent{})
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.Empty(t, w.did)
	})
	t.Run("beside one that was interrupted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "src/a/c": {"x"}, "dst": nil})
		w.host.Copy("src/a", "dst/a", "x")
		cut, refused := failing("receive dst/a/b", tcp.ErrCut), failing("receive", forbidden)
		w.before = func(op string) error { return cmp.Or(cut(op), refused(op)) }
		_, err := RunSend(t.Context(), request(nil), hosts.New(w), silent{})
		require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	})
	t.Run("a hold on what arrived", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.before = failing("hold", forbidden)
		_, err := RunSend(t.Context(), request(func(s *Send) { s.Hold = "keep" }), hosts.New(w), silent{})
		require.ErrorContains(t, err, "the data arrived")
		require.Equal(t, []string{"receive dst/a@x"}, w.did)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	})
	t.Run("a stream behind what was discarded for it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
		w.host.Copy("src/a", "dst/a", "x")
		w.host.Set("dst/a", "receive_resume_token", "1-no-token")
		w.before = failing("receive", forbidden)
		_, err := RunSend(t.Context(), request(nil), hosts.New(w), silent{})
		require.ErrorContains(t, err, "the policy forbids it")
		require.Equal(t, []string{"discard dst/a"}, w.did)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	})
	t.Run("a hold on the target behind that on the source", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.host.Copy("src/a", "dst/a", "x")
		w.before = failing("hold dst/a@x", forbidden)
		_, err := RunSend(t.Context(), request(func(s *Send) { s.Hold = "keep" }), hosts.New(w), silent{})
		require.ErrorContains(t, err, "the policy forbids it")
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	})
	t.Run("a plan behind the snapshot that was taken", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		w.before = func(op string) error {
			if op == "snapshot src/a@new" {
				w.host.Create("dst/a", map[string]string{"type": "volume"})
			}
			return nil
		}
		req := request(func(s *Send) { s.TakeSnapshot, s.Plan.Snapshot = "new", "new" })
		_, err := RunSend(t.Context(), req, hosts.New(w), silent{})
		require.ErrorContains(t, err, "is a volume")
		require.Equal(t, []string{"snapshot src/a@new"}, w.did)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	})
}

// A survey may be shared by several batches.
func TestABatchLeavesItsSurveyAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	b := w.batch(t, func(s *Send) { s.Plan.CarryNamed = []string{"org.example:note"} })
	w.host.Set("src/a", "org.example:note", "yes")
	before := maps.Clone(b.Survey.Datasets[0].Properties)
	res, err := RunBatch(t.Context(), b, hosts.New(w), silent{})
	require.NoError(t, err)
	require.NoError(t, res.Datasets[0].Err)
	require.Equal(t, "yes", res.Report.Plan.Datasets[0].Steps[0].Receive.Set["org.example:note"])
	require.Equal(t, before, b.Survey.Datasets[0].Properties)
}

// A dataset whose snapshot is gone by now does not keep the others.
func TestABatchEstimatesEachForItself(t *testing.T) {
	t.Parallel()
	gone := &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpEstimate, Subject: "src/a/b@x"}
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "src/a/c": {"x"}, "dst": nil})
	estimate, receive := failing("estimate src/a/b", gone), failing("receive dst/a/b", gone)
	w.before = func(op string) error { return cmp.Or(estimate(op), receive(op)) }
	res, err := RunBatch(t.Context(), w.batch(t, nil), hosts.New(w), silent{})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"receive dst/a@x", "receive dst/a/c@x"}, w.did)
	for _, d := range res.Datasets {
		if d.Source == "src/a/b" {
			require.ErrorIs(t, d.Err, gone)
		} else {
			require.NoError(t, d.Err)
		}
	}

	w.before = failing("estimate", errors.New("the host is gone"))
	_, err = RunBatch(t.Context(), w.batch(t, nil), hosts.New(w), silent{})
	require.Error(t, err, "a source that cannot be asked")
}

// What is itself half received cannot be snapshotted; it is skipped.
func TestSnapshotsAreNotTakenOfWhatIsHalfReceived(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": nil, "src/a/half": nil, "dst": nil})
	w.host.Set("src/a/half", "inconsistent", "1")
	req := request(func(s *Send) { s.TakeSnapshot, s.Plan.Snapshot = "new", "new" })
	_, err := RunSend(t.Context(), req, hosts.New(w), silent{})
	require.NoError(t, err)
	require.Equal(t, []string{"snapshot src/a@new", "receive dst/a@new"}, w.did)
}

// What --no-resume promises is done also where nothing has to be sent.
func TestNoResumeDiscardsWhereNothingIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	w.host.Copy("src/a", "dst/a", "x")
	w.host.Set("dst/a", "receive_resume_token", "1-no-token")
	r, err := RunSend(t.Context(), request(func(s *Send) { s.Plan.NoResume = true }), hosts.New(w), silent{})
	require.NoError(t, err)
	require.Equal(t, []string{"zfs receive -A dst/a"}, r.Commands)
	require.Equal(t, []string{"discard dst/a"}, w.did)
}

// A connection that is lost after all has arrived is no failure of what did.
func TestTheLastLookOfABatchIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{1, 3, 9} {
		w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		b := w.batch(t, func(s *Send) { s.Retries = 2 })
		w.before = func(op string) error {
			if !strings.HasPrefix(op, "list") || len(w.did) == 0 || lost == 0 {
				return nil
			}
			lost--
			return fmt.Errorf("beta: %w", hosts.ErrLost)
		}
		res, err := RunBatch(t.Context(), b, hosts.New(w), silent{})
		require.Equal(t, []string{"receive dst/a@x"}, w.did)
		if lost > 0 {
			require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
			require.Equal(t, "dst/a", res.Target.Root, "what was seen before is all that is known")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "x", res.Datasets[0].There)
	}
}

// A small stream has small blocks and rings, and no compressor: each end makes its own
// for every stream.
func TestSmallStreamsTakeLittle(t *testing.T) {
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
