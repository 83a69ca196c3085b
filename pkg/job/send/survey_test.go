package send

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// listedZFS is an in-memory ZFS that records its listings. edit, if set, changes a listing.
type listedZFS struct {
	*zfsmem.Host
	mu      sync.Mutex
	queries []zfs.ListQuery
	edit    func(zfs.ListQuery, *zfs.Listing) error
}

func (h *listedZFS) List(ctx context.Context, q zfs.ListQuery) (zfs.Listing, error) {
	l, err := h.Host.List(ctx, q)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queries = append(h.queries, q)
	if err == nil && h.edit != nil {
		err = h.edit(q, &l)
	}
	return l, err
}

// of returns the queries for the datasets of a pool that list whole histories.
func (h *listedZFS) of(pool string) (histories []zfs.ListQuery) {
	for _, q := range h.queries {
		if q.Versions && !q.Newest && zfs.PoolOf(q.Dataset) == pool {
			histories = append(histories, q)
		}
	}
	return histories
}

// listedWorld returns a world whose listings are recorded.
func listedWorld(t *testing.T, datasets map[string][]string) (*jobtest.World, *listedZFS) {
	t.Helper()
	w := jobtest.NewWorld(t, datasets)
	listed := &listedZFS{Host: w.Memory}
	w.Local = hosts.On(listed, "test", func(string) {})
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w, listed
}

// TestSurveyListsNeededHistories sends a tree in which one dataset has changed. It expects a listing of
// all snapshots only for that dataset, and none if nothing has changed.
func TestSurveyListsNeededHistories(t *testing.T) {
	t.Parallel()
	w, listed := listedWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "src/a/b": {"x", "y"}, "src/a/c": {"x", "y"}, "dst": nil})
	send := func(change func(*Request)) *Report {
		listed.queries = nil
		r, err := Run(t.Context(), sendRequest(change), hosts.New(w), Quiet{})
		require.NoError(t, err)
		return r
	}
	require.Equal(t, 6, send(nil).Plan.Steps(), "the first transfer")
	require.Len(t, listed.of("src"), 1)
	require.True(t, listed.of("src")[0].Recursive)

	require.Zero(t, send(nil).Plan.Steps())
	require.Empty(t, listed.of("src"), "nothing changed")
	require.Empty(t, listed.of("dst"))

	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"src/a/b@z"}))
	r := send(nil)
	require.Equal(t, 1, r.Plan.Steps())
	require.Equal(t, []string{"src/a/b"}, listed.of("src")[0].Only)
	require.True(t, listed.of("src")[0].Identity)
	require.Len(t, listed.of("src"), 1)

	for name, change := range map[string]func(*Request){
		"selection":        func(s *Request) { s.Plan.ExcludeSnapshots = []string{"q*"} },
		"snapshot to take": func(s *Request) { s.TakeSnapshot = "taken" },
		"bookmark":         func(s *Request) { s.Bookmark = true },
		"remote source":    func(s *Request) { s.Source.Host = "alpha" },
	} {
		send(change)
		require.True(t, listed.of("src")[0].Recursive, name)
		require.False(t, listed.of("src")[0].Identity, name)
	}
}

// TestRecreatedDatasetIsNotContinued recreates a dataset between both listings of the source. It expects
// that its new history does not become that of the old dataset.
func TestRecreatedDatasetIsNotContinued(t *testing.T) {
	t.Parallel()
	w, listed := listedWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
	_, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
	require.NoError(t, err)
	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"src/a/b@y"}))
	w.Changes = nil
	listed.edit = func(q zfs.ListQuery, l *zfs.Listing) error {
		if q.Identity {
			l.Datasets[0].GUID++
		}
		return nil
	}
	_, err = Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
	require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
	require.Empty(t, w.Changes)

	listed.edit = func(q zfs.ListQuery, _ *zfs.Listing) error {
		if q.Identity {
			return errors.New("the pool is suspended")
		}
		return nil
	}
	_, err = Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
	require.ErrorContains(t, err, "the pool is suspended")
}

// TestShortSurveyMakesSamePlan compares the plan of a survey that lists only needed histories with the
// plan of a whole survey.
func TestShortSurveyMakesSamePlan(t *testing.T) {
	t.Parallel()
	snapshot := func(h *zfsmem.Host, names ...string) { require.NoError(t, h.Snapshot(t.Context(), names)) }
	destroy := func(h *zfsmem.Host, names ...string) { require.NoError(t, h.Destroy(t.Context(), names)) }
	cases := map[string]func(h *zfsmem.Host){
		"up to date":       func(*zfsmem.Host) {},
		"one new":          func(h *zfsmem.Host) { snapshot(h, "src/a@z") },
		"several new":      func(h *zfsmem.Host) { snapshot(h, "src/a@z"); snapshot(h, "src/a/b@z"); snapshot(h, "src/a/b@zz") },
		"new dataset":      func(h *zfsmem.Host) { h.Create("src/a/d", nil); snapshot(h, "src/a/d@x") },
		"without snapshot": func(h *zfsmem.Host) { h.Create("src/a/d", nil) },
		"target ahead":     func(h *zfsmem.Host) { snapshot(h, "dst/a/b@theirs") },
		"diverged":         func(h *zfsmem.Host) { snapshot(h, "dst/a/b@theirs"); snapshot(h, "src/a/b@z") },
		"newest destroyed": func(h *zfsmem.Host) { destroy(h, "src/a/b@y") },
		"target behind":    func(h *zfsmem.Host) { destroy(h, "dst/a/b@y") },
		"name taken": func(h *zfsmem.Host) {
			destroy(h, "src/a/b@x")
			snapshot(h, "src/a/b@x")
		},
		"bookmark only": func(h *zfsmem.Host) {
			require.NoError(t, h.Bookmark(t.Context(), map[string]string{"src/a/b#y": "src/a/b@y"}))
			destroy(h, "src/a/b@y", "src/a/b@x")
			snapshot(h, "src/a/b@z")
		},
		"clone of an old snapshot": func(h *zfsmem.Host) { h.Clone("src/a/b@x", "src/a/e"); snapshot(h, "src/a/e@z") },
		"renamed snapshot": func(h *zfsmem.Host) {
			h.Edit(func(all map[string]*zfs.Dataset) { all["dst/a/b"].Versions[1].Name = "other" })
		},
		"extra dataset": func(h *zfsmem.Host) { h.Create("dst/a/extra", nil) },
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, listed := listedWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "src/a/b": {"x", "y"}, "src/a/c": {"x", "y"}, "dst": nil})
			_, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
			require.NoError(t, err)
			cases[name](w.Memory)
			req := sendRequest(nil)
			for _, rollback := range []bool{false, true} {
				req.Plan.Rollback = rollback
				made := func(short bool) plan.Plan {
					e := ends.New(hosts.New(w), req.Source, req.Target, &req.Settings)
					state, err := Survey(t.Context(), e, req.Plan, short)
					require.NoError(t, err)
					p, err := makePlan(t.Context(), e, req.Plan, &state, nil)
					require.NoError(t, err)
					return p
				}
				whole := made(false)
				listed.queries = nil
				short := made(true)
				require.Equal(t, whole, short)
				for _, q := range listed.of("src") {
					require.True(t, q.Identity)
				}
			}
		})
	}
}
