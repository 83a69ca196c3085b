package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

const tenDays = calendar.Grace(10 * 24 * time.Hour)

// mirrorReplica returns a replica with copies of @s1 to @s5 of both datasets, for a job with mirror.
func mirrorReplica(t *testing.T, m replicate.Mirror) *replica {
	t.Helper()
	r := newReplica(t, adopting())
	r.job.Retention, r.job.Targets[0].Retention, r.job.Targets[0].Mirror = nil, nil, &m
	for i := range 5 {
		r.take(fmt.Sprint("s", i+1))
	}
	r.run(t)
	return r
}

func (r *replica) drop(dataset string, names ...string) {
	for _, n := range names {
		r.destroy(dataset + "@" + n)
	}
}

// TestMirrorFollowsTheSource expects that a mirror destroys only snapshots that no longer exist on
// the source.
func TestMirrorFollowsTheSource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(r *replica)
		left   []string // remaining snapshots of dst/copy/a
		fails  string
	}{
		"nothing":               {func(*replica) {}, []string{"s1", "s2", "s3", "s4", "s5"}, ""},
		"some":                  {func(r *replica) { r.drop("src/a", "s1", "s3") }, []string{"s2", "s4", "s5"}, ""},
		"held":                  {func(r *replica) { r.drop("src/a", "s1", "s3"); r.hold("dst/copy/a@s3") }, []string{"s2", "s3", "s4", "s5"}, ""},
		"cloned":                {func(r *replica) { r.drop("src/a", "s1", "s3"); r.Clone("dst/copy/a@s1", "dst/clone") }, []string{"s1", "s2", "s4", "s5"}, ""},
		"foreign":               {func(r *replica) { r.drop("src/a", "s1", "s2"); r.renameSnapshot("dst/copy/a", "s2", "mine") }, []string{"mine", "s3", "s4", "s5"}, ""},
		"too many":              {func(r *replica) { r.drop("src/a", "s1", "s2", "s3", "s4") }, []string{"s1", "s2", "s3", "s4", "s5"}, "mirror.limit is 3 per run"},
		"all except a bookmark": {func(r *replica) { r.unhold("src/a@s5"); r.drop("src/a", "s1", "s2", "s3", "s4", "s5") }, []string{"s1", "s2", "s3", "s4", "s5"}, ""},
		"after the common snapshot": {func(r *replica) {
			r.drop("src/a", "s1")
			r.snapshot("dst/copy/a", "s6")
		}, []string{"s2", "s3", "s4", "s5", "s6"}, ""},
		"moved by a promotion": {func(r *replica) {
			r.Clone("src/a@s3", "src/b")
			r.promote("src/b")
		}, []string{"s1", "s2", "s3", "s4", "s5"}, ""},
		"partially received": {func(r *replica) {
			r.drop("src/a", "s1")
			r.Edit(func(all map[string]*zfs.Dataset) { all["src/a"].Properties["inconsistent"] = zfs.Property{Value: "1"} })
		}, []string{"s1", "s2", "s3", "s4", "s5"}, ""},
		"restored": {func(r *replica) {
			r.Edit(func(all map[string]*zfs.Dataset) {
				all["src/a"].GUID = 777
				all["src/a"].Properties["guid"] = zfs.Property{Value: "777", Source: "-"}
			})
			r.drop("src/a", "s1")
		}, []string{"s1", "s2", "s3", "s4", "s5"}, "recreated or restored"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			three := 3
			r := mirrorReplica(t, replicate.Mirror{Limit: &three})
			c.change(r)
			r.now += 100
			before := r.state()
			p, err := r.runner(t).Preview(t.Context(), r.job)
			require.NoError(t, err)
			require.Equal(t, before, r.state())
			at := p.Prunings[0]
			require.True(t, at.Mirror)
			if c.fails == "" {
				require.Len(t, at.Remove, len(r.names("dst/copy/a"))-len(c.left), "%v", at.KeepReasons)
			}
			for range 2 { // later runs destroy nothing more
				run, _ := r.run(t)
				if c.fails != "" {
					require.Regexp(t, "^mirror: .*"+c.fails, run.Targets[0].Error)
					require.Contains(t, run.Targets[0].Hint, "prune --beyond-limit j")
				} else if name != "partially received" {
					require.Contains(t, []string{outcome.Done, outcome.UpToDate}, run.Outcome, "%v", run.Failures())
				}
				require.Equal(t, c.left, r.names("dst/copy/a"))
				r.now += 100
			}
			require.Len(t, r.names("dst/copy"), 5)
			if c.fails != "" { // once, after an explicit command
				had := r.names("src/a")
				_, err = r.runner(t).Prune(t.Context(), r.job, false, true)
				require.NoError(t, err)
				require.Equal(t, had, r.names("dst/copy/a"))
				run, _ := r.run(t)
				require.Equal(t, outcome.UpToDate, run.Outcome)
			}
		})
	}
}

func (r *replica) hold(snapshot string) {
	require.NoError(r.t, r.Host.Hold(r.t.Context(), "mine", []string{snapshot}))
}

func (r *replica) unhold(snapshot string) {
	require.NoError(r.t, r.Host.Release(r.t.Context(), replicate.Tag("j", "t"), []string{snapshot}))
}

// passDays runs the job once per day.
func (r *replica) passDays(t *testing.T, days int) (last *statedir.Run) {
	t.Helper()
	for range days {
		r.now += 24 * 3600
		last, _ = r.run(t)
	}
	return last
}

// TestOrphanIsDestroyedAfterGracePeriod expects that an orphan is destroyed only after its time, and reported until
// then.
func TestOrphanIsDestroyedAfterGracePeriod(t *testing.T) {
	t.Parallel()
	r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
	r.unhold("src/a@s5")
	r.Remove("src/a")
	r.passDays(t, 10)
	require.NotEmpty(t, r.Versions("dst/copy/a"))
	st := status.Of([]*replicate.Job{r.job}, r.dir, r.runner(t).Env.Now(), nil)
	require.Equal(t, "dst/copy/a", st.Jobs[0].Orphans[0].Target)
	require.Equal(t, r.now+24*3600, st.Jobs[0].Orphans[0].Due.Unix())
	require.Contains(t, r.metrics(t), `zxfer_replicate_gone{job="j",target="t"} 1`)
	held, err := holds.List(t.Context(), r.runner(t).Env, &replicate.File{Jobs: []replicate.Job{*r.job}}, true)
	require.NoError(t, err)
	for _, h := range held {
		require.False(t, h.Stale, "its host knows the copy by %s", h.Snapshot)
	}

	r.now += 24 * 3600
	p, err := r.runner(t).Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.Equal(t, []string{"dst/copy/a"}, p.Prunings[0].Datasets)
	require.NotEmpty(t, r.Versions("dst/copy/a"))
	run, _ := r.run(t)
	require.Equal(t, 1, run.Targets[0].Removed, "%v", run.Notes)
	require.NotContains(t, r.datasets("dst"), "dst/copy/a")
	require.Contains(t, r.datasets("dst"), "dst/copy")
	require.Empty(t, r.stateOf(t).Orphans)
}

func TestKeptOrphans(t *testing.T) {
	t.Parallel()
	destroyed := func(r *replica) { r.unhold("src/a@s5"); r.Remove("src/a") }
	for name, c := range map[string]struct {
		mirror replicate.Mirror
		change func(r *replica)
		told   string // in the notes, "" = nothing
	}{
		"kept":                   {replicate.Mirror{}, destroyed, ""},
		"with foreign snapshots": {replicate.Mirror{Gone: tenDays}, func(r *replica) { destroyed(r); r.snapshot("dst/copy/a", "mine") }, ""},
		"with foreign datasets":  {replicate.Mirror{Gone: tenDays}, func(r *replica) { destroyed(r); r.Create("dst/copy/a/mine", nil) }, ""},
		"with a foreign hold":    {replicate.Mirror{Gone: tenDays}, func(r *replica) { destroyed(r); r.hold("dst/copy/a@s2") }, "is held (mine)"},
		"cloned":                 {replicate.Mirror{Gone: tenDays}, func(r *replica) { destroyed(r); r.Clone("dst/copy/a@s1", "dst/clone") }, "has the clone dst/clone"},
		"mounted":                {replicate.Mirror{Gone: tenDays}, func(r *replica) { destroyed(r); r.Set("dst/copy/a", "mounted", "yes") }, "it is mounted"},
		"without the job's hold": {replicate.Mirror{Gone: tenDays}, func(r *replica) {
			destroyed(r)
			r.unhold("dst/copy/a@s5")
		}, "on the source: dst/copy/a is kept: the job"},
		"another dataset of the same name": {replicate.Mirror{Gone: tenDays}, func(r *replica) {
			destroyed(r)
			r.run(t)
			r.Remove("dst/copy/a")
			r.Create("dst/copy/a", nil)
			r.snapshot("dst/copy/a", "s9")
		}, ""},
		"renamed on the source":      {replicate.Mirror{Gone: tenDays}, func(r *replica) { r.rename("src/a", "src/b") }, ""},
		"no longer selected":         {replicate.Mirror{Gone: tenDays}, func(r *replica) { r.job.Exclude = []string{"a"} }, ""},
		"no longer below the source": {replicate.Mirror{Gone: tenDays}, func(r *replica) { r.job.Recursive = false }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := mirrorReplica(t, c.mirror)
			c.change(r)
			had := r.names("dst/copy/a")
			last := r.passDays(t, 12)
			require.Equal(t, had, r.names("dst/copy/a"), "the copy is kept")
			require.Zero(t, last.Targets[0].Removed)
			if c.told == "" {
				require.Empty(t, last.Notes)
			} else {
				require.Contains(t, fmt.Sprint(last.Notes), c.told)
			}
		})
	}
}

// TestMirrorDestroysOnlyListed expects that nothing is destroyed without a listing or because of a wrong
// clock.
func TestMirrorDestroysOnlyListed(t *testing.T) {
	t.Parallel()
	t.Run("unreachable source", func(t *testing.T) {
		t.Parallel()
		r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
		for _, op := range []string{zfs.OpList, zfs.OpGet} {
			r.fail(op, "src", errors.New("no route to host"))
			r.passDays(t, 8)
		}
		r.fail("", "", nil)
		require.Empty(t, r.stateOf(t).Orphans)
	})
	t.Run("missing root", func(t *testing.T) {
		t.Parallel()
		r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
		r.unhold("src@s5")
		r.unhold("src/a@s5")
		r.job.Source = "src"
		r.Remove("src")
		r.Create("other", nil)
		run := r.passDays(t, 12)
		require.Equal(t, outcome.Refused, run.Outcome, "nothing was changed")
		require.Contains(t, run.Error, "no such pool: src")
		require.Regexp(t, `zpool import\nto restore it: zxfer restore`, run.Hint, "the pool may only be exported")
		require.Contains(t, r.datasets("dst"), "dst/copy/a")
	})
	t.Run("root exists again", func(t *testing.T) {
		t.Parallel()
		r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
		r.unhold("src/a@s5")
		r.Remove("src/a")
		r.passDays(t, 8)
		r.Create("src/a", nil)
		r.passDays(t, 1)
		require.Empty(t, r.stateOf(t).Orphans)
	})
	t.Run("wrong clock", func(t *testing.T) {
		t.Parallel()
		r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
		r.unhold("src/a@s5")
		r.Remove("src/a")
		now := r.now
		r.now = 1000
		r.run(t)
		r.now = now
		r.passDays(t, 2)
		require.Contains(t, r.datasets("dst"), "dst/copy/a")
	})
	t.Run("unreachable target", func(t *testing.T) {
		t.Parallel()
		r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
		r.unhold("src/a@s5")
		r.Remove("src/a")
		r.passDays(t, 1)
		r.away = "dst"
		r.passDays(t, 12)
		r.away = ""
		r.passDays(t, 3)
		require.Contains(t, r.datasets("dst"), "dst/copy/a", "only inspected datasets count")
	})
	t.Run("failed destroy", func(t *testing.T) {
		t.Parallel()
		r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
		r.unhold("src/a@s5")
		r.Remove("src/a")
		r.passDays(t, 10)
		r.fail(zfs.OpDestroy, "dst/copy/a", errors.New("I/O error"))
		run := r.passDays(t, 1)
		require.Equal(t, outcome.Failed, run.Outcome)
		require.Contains(t, run.Targets[0].Error, "deleted on the source: I/O error")
		r.fail("", "", nil)
		require.Equal(t, 1, r.passDays(t, 1).Targets[0].Removed)
	})
	t.Run("more than the limit", func(t *testing.T) {
		t.Parallel()
		none := 0
		r := mirrorReplica(t, replicate.Mirror{Gone: tenDays, Limit: &none})
		r.unhold("src/a@s5")
		r.Remove("src/a")
		run := r.passDays(t, 12)
		require.Contains(t, run.Targets[0].Error, "mirror.limit is 0 per run")
		_, err := r.runner(t).Prune(t.Context(), r.job, false, true)
		require.NoError(t, err)
		require.NotContains(t, r.datasets("dst"), "dst/copy/a")
	})
}

// TestRetentionAndOrphans expects that retention decides which snapshots are kept, and that orphans
// are destroyed regardless of it.
func TestRetentionAndOrphans(t *testing.T) {
	t.Parallel()
	r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
	r.job.Targets[0].Retention = &retention.Grid{Last: 4}
	r.drop("src", "s4")
	r.unhold("src/a@s5")
	r.Remove("src/a")
	run := r.passDays(t, 11)
	require.Equal(t, 1, run.Targets[0].Removed)
	require.Equal(t, []string{"s2", "s3", "s4", "s5"}, r.names("dst/copy"))
}

// TestCopiesOfRecreatedSourceAreKept expects that if the root of the source was recreated, the copies
// of its former descendants are kept.
func TestCopiesOfRecreatedSourceAreKept(t *testing.T) {
	t.Parallel()
	for name, snapshots := range map[string][]string{"empty": nil, "with a snapshot": {"s9"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
			r.unhold("src@s5")
			r.unhold("src/a@s5")
			r.Remove("src/a")
			r.Edit(func(all map[string]*zfs.Dataset) {
				all["src"].GUID, all["src"].Versions = 777, nil
				all["src"].Properties["guid"] = zfs.Property{Value: "777", Source: "-"}
			})
			for _, s := range snapshots {
				r.snapshot("src", s)
			}
			r.passDays(t, 12)
			require.Contains(t, r.datasets("dst"), "dst/copy/a")
		})
	}
}

// TestModifiedCopyIsKept expects that a copy that was written to is kept.
func TestModifiedCopyIsKept(t *testing.T) {
	t.Parallel()
	r := mirrorReplica(t, replicate.Mirror{Gone: tenDays})
	r.unhold("src/a@s5")
	r.Remove("src/a")
	r.passDays(t, 2)
	r.Set("dst/copy/a", "written", "4096")
	r.passDays(t, 12)
	require.Contains(t, r.datasets("dst"), "dst/copy/a")
	r.Set("dst/copy/a", "written", "0")
	r.passDays(t, 1)
	require.NotContains(t, r.datasets("dst"), "dst/copy/a")
}

// TestNewMirrorRecognizesRestoredSource expects that a new mirror does not mistake a restored
// source for the origin of the copy.
func TestNewMirrorRecognizesRestoredSource(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]bool{"known": false, "without records": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, adopting())
			r.job.Retention, r.job.Targets[0].Retention = nil, nil
			for i := range 5 {
				r.take(fmt.Sprint("s", i+1))
			}
			r.run(t)
			r.Edit(func(all map[string]*zfs.Dataset) {
				all["src/a"].GUID = 777
				all["src/a"].Properties["guid"] = zfs.Property{Value: "777", Source: "-"}
			})
			r.drop("src/a", "s1", "s2", "s3", "s4")
			if forget {
				require.NoError(t, os.Remove(filepath.Join(r.dir, "j", "state.json")))
			}
			r.job.Targets[0].Mirror = &replicate.Mirror{}
			r.now += 100
			run, _ := r.run(t)
			require.NotEqual(t, "done", run.Outcome)
			require.Len(t, r.names("dst/copy/a"), 5)
		})
	}
}
