package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// runUntilUnchanged runs the job until no run lists a dataset.
func (r *replica) runUntilUnchanged(t *testing.T) {
	t.Helper()
	for range 4 {
		r.now += 10
		if _, looked := r.run(t); looked == nil {
			return
		}
	}
	require.Fail(t, "the datasets do not settle")
}

func adopting() replicate.Job {
	return replicate.Job{Snapshots: replicate.Snapshots{Adopt: []string{"s*"}}, Retention: &retention.Grid{Last: 3}}
}

// unchangedReplica returns a replica whose datasets are all up to date: src, src/a … src/h, each
// with two snapshots.
func unchangedReplica(t *testing.T, j replicate.Job) *replica {
	t.Helper()
	r := newReplica(t, j)
	for _, n := range strings.Split("bcdefgh", "") {
		r.Create("src/"+n, nil)
	}
	for _, s := range []string{"s1", "s2"} {
		for _, n := range r.datasets("src") {
			r.snapshot(n, s)
		}
	}
	r.mark("src/b", "my:u", "yes")
	r.runUntilUnchanged(t)
	return r
}

// TestUnchangedInvalidation changes a dataset on either side, and expects that the next run lists
// only this one.
func TestUnchangedInvalidation(t *testing.T) {
	t.Parallel()
	both := []string{"dst/copy/c", "src/c"}
	var everything []string
	for _, n := range append([]string{""}, strings.Split("abcdefgh", "")...) {
		n = strings.TrimSuffix("/"+n, "/")
		everything = append(everything, "src"+n, "dst/copy"+n)
	}
	slices.Sort(everything)
	tests := []struct {
		name   string
		change func(r *replica)
		looked []string
	}{
		{"nothing", func(*replica) {}, nil},
		{"much later", func(r *replica) { r.now += 1e6 }, nil},
		{"written to, which is not snapshotted yet", func(r *replica) { r.Set("src/c", "written", "100") }, nil},
		{"bookmarked", func(r *replica) {
			require.NoError(t, r.Bookmark(t.Context(), map[string]string{"src/c#x": "src/c@s2"}))
		}, nil},
		{"additional snapshot", func(r *replica) { r.snapshot("src/c", "s3") }, both},
		{"a snapshot that does not concern the job", func(r *replica) { r.snapshot("src/c", "other") }, both},
		{"destroyed snapshot", func(r *replica) { r.destroy("src/c@s1") }, both},
		{"renamed snapshot", func(r *replica) { r.renameSnapshot("src/c", "s1", "s0") }, both},
		{"destroyed snapshot of the copy", func(r *replica) { r.destroy("dst/copy/c@s1") }, both},
		{"additional snapshot of the copy", func(r *replica) { r.snapshot("dst/copy/c", "own") }, both},
		{"an interrupted receive into the copy", func(r *replica) { r.Set("dst/copy/c", "receive_resume_token", "1-x") }, both},
		{"another encryption root", func(r *replica) { r.Set("dst/copy/c", "encryptionroot", "dst/copy/c") }, both},
		{"recreated", func(r *replica) {
			before := r.Get("src/c", zfs.ChangedProperty)
			r.Remove("src/c")
			r.Create("src/c", map[string]string{zfs.ChangedProperty: before})
		}, []string{"dst/copy", "src/c"}}, // there is nothing to send
		{"the clock was set back", func(r *replica) { r.now -= 1e5; r.snapshot("src/c", "s3") }, both},
		{"destroyed copy", func(r *replica) { r.Remove("dst/copy/c") }, nil},
		{"additional dataset", func(r *replica) { r.Create("src/i", nil); r.snapshot("src/i", "s1") }, nil},
		{"other settings", func(r *replica) { r.job.Targets[0].Retention.Last = 1 }, everything},
		{"a damaged file", func(r *replica) {
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "j", "settled.json"), []byte("{"), 0o600))
		}, everything},
		{"a file of another version", func(r *replica) {
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "j", "settled.json"), []byte(`{"version":99}`), 0o600))
		}, everything},
		{"no file", func(r *replica) { require.NoError(t, os.Remove(filepath.Join(r.dir, "j", "settled.json"))) }, everything},
		{"no records", func(r *replica) { require.NoError(t, os.Remove(filepath.Join(r.dir, "j", "state.json"))) }, everything},
		{"an older ZFS", func(r *replica) { r.Old = true }, everything},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := unchangedReplica(t, adopting())
			r.now += 10
			tt.change(r)
			run, looked := r.run(t)
			switch tt.name {
			case "destroyed copy", "additional dataset":
				// The result depends on other target datasets, so the run lists the whole target.
				require.NotContains(t, looked, "src/b")
				require.Contains(t, looked, "dst/copy/b")
				require.Equal(t, 1, run.Targets[0].Sent)
				require.Equal(t, run.Datasets-1, run.Targets[0].Unchanged)
			default:
				require.Equal(t, tt.looked, looked)
				require.Equal(t, 9, run.Datasets)
			}
		})
	}
}

// TestUnchangedPromotion expects that the next run notices a promotion. It changes no recorded
// property of the clone except the origin.
func TestUnchangedPromotion(t *testing.T) {
	t.Parallel()
	r := unchangedReplica(t, adopting())
	r.Clone("src/c@s1", "src/c2")
	r.snapshot("src/c2", "s3")
	r.runUntilUnchanged(t)
	before := r.Get("src/c2", zfs.ChangedProperty)
	r.now += 10
	r.promote("src/c2")
	require.Equal(t, before, r.Get("src/c2", zfs.ChangedProperty))
	_, looked := r.run(t)
	require.Equal(t, []string{"dst/copy/c", "dst/copy/c2", "src/c", "src/c2"}, looked)
}

// TestUnchangedHeld expects that a snapshot that retention cannot destroy is checked in every run,
// because the removal of a hold or clone does not change the dataset's properties.
func TestUnchangedHeld(t *testing.T) {
	t.Parallel()
	r := unchangedReplica(t, adopting())
	require.NoError(t, r.Hold(t.Context(), "mine", []string{"src/c@s1"}))
	for _, s := range []string{"s3", "s4"} {
		r.snapshot("src/c", s)
	}
	for range 3 {
		r.now += 10
		_, looked := r.run(t)
		require.Equal(t, []string{"dst/copy/c", "src/c"}, looked)
	}
	require.NoError(t, r.Release(t.Context(), "mine", []string{"src/c@s1"}))
	r.now += 10
	run, _ := r.run(t)
	require.Equal(t, 1, run.Pruned)
	r.runUntilUnchanged(t)
}

// TestUnchangedByHoldsAndBookmarks changes holds and bookmarks, which does not change the recorded properties.
// It expects that the dataset is skipped until there is something to do, and then treated as
// without a record.
func TestUnchangedByHoldsAndBookmarks(t *testing.T) {
	t.Parallel()
	const c, there = "src/c", "dst/copy/c"
	base, mark := replicate.Tag("j", "t"), c+"#"+replicate.Tag("j", "s2")
	type step struct {
		change func(r *replica)
		looked bool   // the run lists c and its copy, otherwise nothing
		result string // for c: number sent, pruned on source and target, or the conflict
	}
	hold := func(s string) func(r *replica) {
		return func(r *replica) { require.NoError(t, r.Hold(t.Context(), "mine", []string{s})) }
	}
	release := func(tag, s string) func(r *replica) {
		return func(r *replica) { require.NoError(t, r.Release(t.Context(), tag, []string{s})) }
	}
	snapshots := func(names ...string) func(r *replica) {
		return func(r *replica) {
			for _, s := range names {
				r.snapshot(c, s)
			}
		}
	}
	destroy := func(s string) func(r *replica) { return func(r *replica) { r.destroy(s) } }
	tests := map[string][]step{
		"held on the source": {
			{hold(c + "@s1"), false, "0 0 0"},
			{snapshots("s3", "s4"), true, "1 1 2"}, // s1 is held; the bookmark of s2 is destroyed
			{release("mine", c+"@s1"), true, "0 1 0"},
		},
		"held on the target": {
			{hold(there + "@s1"), false, "0 0 0"},
			{snapshots("s3"), true, "1 1 0"},
			{release("mine", there+"@s1"), true, "0 0 1"},
		},
		"incremental source not held": {
			{release(base, c+"@s2"), false, "0 0 0"},
			{snapshots("s3", "s4", "s5"), true, "1 3 3"},
		},
		"bookmark destroyed": {
			{destroy(mark), false, "0 0 0"},
			{snapshots("s3"), true, "1 0 1"},
		},
		"bookmark destroyed, then the incremental source": {
			{func(r *replica) { destroy(mark)(r); release(base, c+"@s2")(r) }, false, "0 0 0"},
			{destroy(c + "@s2"), true, "0 0 0"}, // the target has every snapshot of the source
			{snapshots("s3"), true, "diverged"},
		},
		"incremental source destroyed, bookmark kept": {
			{release(base, c+"@s2"), false, "0 0 0"},
			{func(r *replica) { destroy(c + "@s2")(r); snapshots("s3")(r) }, true, "1 1 1"},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quick, slow := unchangedReplica(t, adopting()), unchangedReplica(t, adopting())
			for i, s := range steps {
				for _, r := range []*replica{quick, slow} {
					r.now += 10
					s.change(r)
				}
				require.NoError(t, os.Remove(filepath.Join(slow.dir, "j", "settled.json")))
				was, looked := quick.run(t)
				is, _ := slow.run(t)
				var want []string
				if s.looked {
					want = []string{there, c}
				}
				require.Equal(t, want, looked, "step %d", i)
				require.Equal(t, summaryOf(is), summaryOf(was), "step %d", i)
				require.Equal(t, slow.state(), quick.state(), "step %d", i)
				of := was.Targets[0]
				got := fmt.Sprint(of.Sent, was.Pruned, of.Pruned)
				if of.Failed > 0 {
					got = of.Datasets[0].Conflict
				}
				require.Equal(t, s.result, got, "step %d", i)
			}
		})
	}
}

// TestUnchangedReleaseFails expects that a failed release of a hold is retried in every run, so its
// dataset is not skipped.
func TestUnchangedReleaseFails(t *testing.T) {
	t.Parallel()
	r := unchangedReplica(t, adopting())
	r.snapshot("src/c", "s3")
	r.before = func(op string, _ []string) error {
		if op == zfs.OpRelease {
			return errors.New("the pool is suspended")
		}
		return nil
	}
	for range 3 {
		r.now += 10
		run, looked := r.run(t)
		require.Equal(t, []string{"dst/copy/c", "src/c"}, looked)
		require.Contains(t, strings.Join(run.Notes, "\n"), "suspended")
	}
	r.before = nil
	r.now += 10
	r.run(t)
	for _, pool := range []string{"src/c", "dst/copy/c"} {
		require.Empty(t, r.held(pool+"@s2"))
		require.Equal(t, []string{replicate.Tag("j", "t")}, r.held(pool+"@s3"))
	}
	r.runUntilUnchanged(t)
}

// TestCommonSnapshotIsAlwaysHeld interrupts a run at every point, and expects that a common
// snapshot is held.
func TestCommonSnapshotIsAlwaysHeld(t *testing.T) {
	t.Parallel()
	r := unchangedReplica(t, adopting())
	r.snapshot("src/c", "s3")
	var done []string
	r.before = func(op string, names []string) error {
		if op == zfs.OpHold || op == zfs.OpRelease {
			done = append(done, op+" "+strings.Join(names, " "))
		}
		return nil
	}
	r.now += 10
	r.run(t)
	require.Equal(t, []string{zfs.OpHold + " src/c@s3", zfs.OpHold + " dst/copy/c@s3", zfs.OpRelease + " dst/copy/c@s2", zfs.OpRelease + " src/c@s2"}, done)
}

// TestUnchangedTwiceInASecond changes a dataset twice within a second, with a run in between. It
// expects that both changes are found on either side.
func TestUnchangedTwiceInASecond(t *testing.T) {
	t.Parallel()
	for name, snapshot := range map[string]func(r *replica, s string){
		"source": func(r *replica, s string) { r.snapshot("src/c", s) },
		"copy":   func(r *replica, s string) { r.snapshot("dst/copy/c", s) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := unchangedReplica(t, adopting())
			r.now += 10
			snapshot(r, "x3") // the job does not select it, so there is nothing to do
			run, _ := r.run(t)
			require.Equal(t, 9, run.Targets[0].Unchanged)
			snapshot(r, "s4")
			r.now += 10
			_, looked := r.run(t)
			require.Equal(t, []string{"dst/copy/c", "src/c"}, looked)
		})
	}
}

// TestSkipUnchanged expects that a job that takes a snapshot in every run skips no dataset, and
// that a job with skip_unchanged does.
func TestSkipUnchanged(t *testing.T) {
	t.Parallel()
	take := replicate.Job{Snapshots: replicate.Snapshots{Take: "z-%Y%m%d%H%M%S"}}
	r := newReplica(t, take)
	for range 3 {
		r.now += 10
		run, looked := r.run(t)
		require.Equal(t, 2, run.Snapshots)
		require.Contains(t, looked, "src/a")
	}
	take.Snapshots.SkipUnchanged = true
	r = newReplica(t, take)
	for _, n := range strings.Split("bcdefgh", "") {
		r.Create("src/"+n, nil)
	}
	r.runUntilUnchanged(t)
	r.Set("src/a", "written", "100")
	r.now += 10
	run, looked := r.run(t)
	require.Equal(t, 1, run.Snapshots)
	require.Equal(t, []string{"dst/copy/a", "src/a"}, looked)
	require.Equal(t, 1, run.Targets[0].Sent)
	require.Equal(t, 8, run.Targets[0].Unchanged)
	st, err := statedir.Peek(r.dir, "j").State()
	require.NoError(t, err)
	for name, d := range st.Datasets {
		require.Equal(t, run.Started, d.Targets["t"].Success, name)
	}
}
