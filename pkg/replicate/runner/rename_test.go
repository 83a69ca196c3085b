package runner

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// renameTree renames a dataset with its descendants.
func (r *replica) renameTree(from, to string) {
	one := zfs.RenamedCopy{Dataset: from, As: to}
	r.Edit(func(all map[string]*zfs.Dataset) { one.GUID, one.Base = all[from].GUID, all[from].Snapshots()[0].GUID })
	require.NoError(r.t, r.RenameCopies(r.t.Context(), []zfs.RenamedCopy{one}))
}

// renaming returns a replica with copies of src/a, src/a/x, src/b and src/b/z, and on_rename = "follow".
func renaming(t *testing.T) *replica {
	t.Helper()
	r := newReplica(t, adopting())
	r.job.Targets[0].Retention, r.job.Targets[0].OnRename = nil, "follow"
	for _, d := range []string{"src/a/x", "src/b", "src/b/z"} {
		r.Create(d, nil)
	}
	r.takeAll("s1")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	return r
}

// takeAll takes a snapshot of each dataset of the source.
func (r *replica) takeAll(name string) {
	r.now += 10
	for _, d := range r.datasets("src") {
		r.Write(d, []byte(name))
		r.snapshot(d, name)
	}
}

// requireCopies expects that the copies of the source have the names, snapshots and GUIDs of their
// sources, and that no other copies exist.
func (r *replica) requireCopies(t *testing.T) {
	t.Helper()
	want, got := map[string][]zfs.Version{}, map[string][]zfs.Version{}
	strip := func(all []zfs.Version) (out []zfs.Version) {
		for _, v := range all {
			if v.Kind == zfs.Snapshot {
				out = append(out, zfs.Version{Kind: v.Kind, Name: v.Name, GUID: v.GUID})
			}
		}
		return out
	}
	for _, d := range r.datasets("src") {
		want["dst/copy"+d[len("src"):]] = strip(r.Versions(d))
	}
	for _, d := range r.datasets("dst") {
		if d != "dst" {
			got[d] = strip(r.Versions(d))
		}
	}
	require.Equal(t, want, got)
}

// copyGUIDs returns the GUIDs of the copies by their first snapshot's GUID, which renames keep.
func (r *replica) copyGUIDs() map[uint64]uint64 {
	out := map[uint64]uint64{}
	r.Edit(func(all map[string]*zfs.Dataset) {
		for name, d := range all {
			if zfs.PoolOf(name) == "dst" && len(d.Versions) > 0 {
				out[d.Snapshots()[0].GUID] = d.GUID
			}
		}
	})
	return out
}

// follows are changes of names on the source.
func follows() map[string]func(*replica) {
	return map[string]func(*replica){
		"one":             func(r *replica) { r.renameTree("src/b", "src/c") },
		"with descendant": func(r *replica) { r.renameTree("src/a", "src/c") },
		"both":            func(r *replica) { r.renameTree("src/a", "src/c"); r.renameTree("src/c/x", "src/c/y") },
		"into another":    func(r *replica) { r.renameTree("src/b", "src/a/b") },
		"out of a parent": func(r *replica) { r.renameTree("src/a/x", "src/x"); r.renameTree("src/a", "src/c") },
		"chain":           func(r *replica) { r.renameTree("src/b", "src/c"); r.renameTree("src/a", "src/b") },
		"swap": func(r *replica) {
			r.renameTree("src/b", "src/z")
			r.renameTree("src/a", "src/b")
			r.renameTree("src/z", "src/a")
		},
		"swap, and a descendant": func(r *replica) {
			r.renameTree("src/b", "src/z")
			r.renameTree("src/a", "src/b")
			r.renameTree("src/z", "src/a")
			r.renameTree("src/b/x", "src/a/x2")
		},
		"and a new dataset": func(r *replica) { r.renameTree("src/b", "src/c"); r.Create("src/b", nil) },
	}
}

// TestFollowRenames expects that copies are renamed with their sources and then updated by increments,
// and that a preview shows the same without a change.
func TestFollowRenames(t *testing.T) {
	t.Parallel()
	for name, change := range follows() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := renaming(t)
			guids := r.copyGUIDs()
			change(r)
			r.takeAll("s2")
			before := r.state()
			p, err := r.runner(t).Preview(t.Context(), r.job)
			require.NoError(t, err)
			require.NoError(t, p.Err())
			require.NotEmpty(t, p.Targets[0].Renames)
			require.Equal(t, before, r.state())
			run, _ := r.run(t)
			require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
			require.Empty(t, run.Notes)
			r.requireCopies(t)
			for first, guid := range guids {
				require.Equal(t, guid, r.copyGUIDs()[first], "it was sent in full")
			}
			r.takeAll("s3")
			run, _ = r.run(t)
			require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
			r.requireCopies(t)
			for _, d := range r.datasets("src") {
				require.NotEmpty(t, r.held(d+"@s3"))
				require.Empty(t, r.held(d+"@s1"))
				require.NotEmpty(t, r.held("dst/copy"+d[len("src"):]+"@s3"))
				require.Empty(t, r.held("dst/copy"+d[len("src"):]+"@s2"))
			}
			require.Empty(t, r.stateOrphans(t))
		})
	}
}

func (r *replica) stateOrphans(t *testing.T) []*replicate.Orphan {
	t.Helper()
	st, err := statedir.Peek(r.dir, "j").State()
	require.NoError(t, err)
	return st.Orphans
}

// TestFollowKilled kills a run that renames copies at each operation before the first stream, or at
// some of them below the long level, and expects the next run to complete it.
func TestFollowKilled(t *testing.T) {
	t.Parallel()
	for name, change := range follows() {
		for _, after := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for at := 1; ; at += testenv.Rounds(3, 2, 1) {
					r := renaming(t)
					none := 0
					r.job.Retries = &none
					guids := r.copyGUIDs()
					change(r)
					r.takeAll("s2")
					require.True(t, r.runKilled(t, at, after))
					if slices.Contains(r.names("dst/copy"), "s2") { // see TestKilledRunKeepsIncrementalSource for the rest
						require.Greater(t, at, 5)
						break
					}
					r.takeAll("s3")
					run, _ := r.run(t)
					require.Equal(t, outcome.Done, run.Outcome, "operation %d: %s", at, run.FirstError())
					r.requireCopies(t)
					for first, guid := range guids {
						require.Equal(t, guid, r.copyGUIDs()[first], "operation %d: it was sent in full", at)
					}
				}
			})
		}
	}
}

// TestRenameRefused expects that a copy keeps its name unless it is certain that it is the copy of the
// renamed dataset, and nothing is in the way. Nothing is destroyed, and the conflict names the reason.
func TestRenameRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*replica)
		error  string
		hint   string
	}{
		"not wanted": {func(r *replica) { r.job.Targets[0].OnRename = "" }, "was renamed", `on_rename = "follow"`},
		"name taken": {func(r *replica) { r.Create("dst/copy/c", nil) }, "another dataset with that name", "rename or destroy"},
		"mounted":    {func(r *replica) { r.Set("dst/copy/b", "mounted", "yes") }, "was renamed", "zfs rename dst/copy/b dst/copy/c"},
		"other data": {func(r *replica) { r.Create("dst/copy/b/mine", nil) }, "dst/copy/b/mine below it does not belong to this job", "move it elsewhere"},
		"another key": {func(r *replica) {
			r.encrypt("dst/copy")
			r.encrypt("dst/copy/b")
			r.Set("dst/copy/b", "encryptionroot", "dst/other")
		}, "inherits the key of dst/other", "change-key"},
		"another dataset": {func(r *replica) { // the copy lost its common snapshot, and has an older one
			r.takeAll("s2")
			r.run(r.t)
			for _, s := range []string{"dst/copy/b@s2"} {
				require.NoError(r.t, r.Release(r.t.Context(), replicate.Tag("j", "t"), []string{s}))
				r.destroy(s)
			}
		}, "it is not certain", "compare"},
		"cannot": {func(r *replica) { r.fail(zfs.OpRename, "dst", errors.New("pool is busy")) }, "was renamed", "zfs rename"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := renaming(t)
			tt.change(r)
			copies := r.copyGUIDs()
			r.renameTree("src/b", "src/c")
			r.takeAll("s3")
			run, _ := r.run(t)
			require.NotEqual(t, outcome.Done, run.Outcome)
			require.Contains(t, r.datasets("dst"), "dst/copy/b")
			require.Equal(t, copies, r.copyGUIDs())
			if tt.error != "" {
				d := run.Targets[0].Datasets[len(run.Targets[0].Datasets)-1]
				for _, of := range run.Targets[0].Datasets {
					if of.Source == "src/c" {
						d = of
					}
				}
				require.Contains(t, d.Error, tt.error)
				require.Contains(t, d.Hint, tt.hint)
			}
		})
	}
}

// TestFollowLyingSource expects that a source cannot make the target rename a copy by claiming the
// GUID of another dataset: the copy also needs a snapshot that the source dataset has, and the GUID
// must be unique.
func TestFollowLyingSource(t *testing.T) {
	t.Parallel()
	lies := map[string]func(*replica, *zfs.Dataset){
		"another dataset": func(r *replica, _ *zfs.Dataset) {
			r.Edit(func(all map[string]*zfs.Dataset) { delete(all, "src/b") })
		},
		"the same GUID twice": func(r *replica, liar *zfs.Dataset) {
			r.Write("src/liar", []byte("s1"))
			r.Edit(func(all map[string]*zfs.Dataset) { liar.Versions = slices.Clone(all["src/b"].Versions) })
		},
	}
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := renaming(t)
			r.Create("src/liar", nil)
			var liar *zfs.Dataset
			r.Edit(func(all map[string]*zfs.Dataset) {
				liar = all["src/liar"]
				liar.GUID = all["src/b"].GUID
				liar.Properties["guid"] = all["src/b"].Properties["guid"]
			})
			lie(r, liar)
			copied := func() (guid uint64) {
				r.Edit(func(all map[string]*zfs.Dataset) { guid = all["dst/copy/b"].GUID })
				return guid
			}
			was := copied()
			r.before = func(op string, names []string) error {
				require.NotEqual(t, zfs.OpRename, op, names)
				return nil
			}
			r.takeAll("s2")
			r.run(t)
			require.Equal(t, was, copied())
		})
	}
}

// TestFollowRoot renames the source's root. Its copy is renamed once the job names the new source.
func TestFollowRoot(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.job.Source, r.job.Targets[0].Retention, r.job.Targets[0].OnRename = "src/a", nil, "follow"
	r.job.Targets[0].To = "dst/"
	r.Create("src/a/x", nil)
	r.takeAll("s1")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, []string{"dst", "dst/a", "dst/a/x"}, r.datasets("dst"))
	r.renameTree("src/a", "src/c")
	run, _ = r.run(t)
	require.Contains(t, run.Error, "was renamed to src/c")
	require.Contains(t, run.Hint, `write source = "src/c" into the job file`)
	r.job.Source = "src/c"
	r.takeAll("s2")
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, []string{"dst", "dst/c", "dst/c/x"}, r.datasets("dst"))
	require.Equal(t, []string{"s1", "s2"}, r.names("dst/c/x"))
}

// TestFollowOtherTarget expects that a changed key "to" does not rename copies: only the source's
// names count.
func TestFollowOtherTarget(t *testing.T) {
	t.Parallel()
	r := renaming(t)
	r.job.Targets[0].To = "dst/other"
	r.before = func(op string, names []string) error {
		require.NotEqual(t, zfs.OpRename, op, names)
		return nil
	}
	r.takeAll("s2")
	r.run(t)
	require.Contains(t, r.datasets("dst"), "dst/copy/b")
	require.Contains(t, r.datasets("dst"), "dst/other/b")
}

// TestFollowMovesOrphans expects that orphans below a renamed copy keep their grace period.
func TestFollowMovesOrphans(t *testing.T) {
	t.Parallel()
	r := renaming(t)
	r.job.Targets[0].Mirror = &replicate.Mirror{Gone: calendar.Grace(1000 * time.Hour)}
	r.Edit(func(all map[string]*zfs.Dataset) { delete(all, "src/a/x") })
	r.takeAll("s2")
	r.run(t)
	require.Equal(t, "dst/copy/a/x", r.stateOrphans(t)[0].Dataset)
	r.renameTree("src/a", "src/c")
	r.takeAll("s3")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Len(t, r.stateOrphans(t), 1)
	require.Equal(t, "dst/copy/c/x", r.stateOrphans(t)[0].Dataset)
}

// TestFollowNewParent moves a dataset below a new one. The copy follows after the new parent has
// arrived.
func TestFollowNewParent(t *testing.T) {
	t.Parallel()
	r := renaming(t)
	copies := r.copyGUIDs()
	r.Create("src/new", nil)
	r.renameTree("src/b", "src/new/b")
	r.takeAll("s2")
	run, _ := r.run(t)
	require.Contains(t, run.FirstError(), "the copy of its new parent had not arrived")
	r.takeAll("s3")
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	for first, guid := range copies {
		require.Equal(t, guid, r.copyGUIDs()[first])
	}
	require.Equal(t, []string{"s1", "s2", "s3"}, r.names("dst/copy/new/b"))
}

// TestFollowKeepsHolds expects that a new dataset with the former name of a renamed one does not release
// the holds of that one.
func TestFollowKeepsHolds(t *testing.T) {
	t.Parallel()
	r := renaming(t)
	r.renameTree("src/b", "src/c")
	r.Create("src/b", nil)
	r.snapshot("src/b", "s2")
	r.now += 10
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	r.requireCopies(t)
	for _, held := range []string{"src/c@s1", "dst/copy/c@s1", "src/b@s2", "dst/copy/b@s2"} {
		require.Equal(t, []string{"zxfer:j:t"}, r.held(held), held)
	}
}

// TestFollowAmbiguous expects that a copy keeps its name if two source datasets may be its original.
func TestFollowAmbiguous(t *testing.T) {
	t.Parallel()
	r := renaming(t)
	was := r.Get("dst/copy/b", "guid")
	r.renameTree("src/b/z", "src/z")
	r.takeAll("s1b")
	r.run(t)
	r.renameTree("src/b", "src/c")
	r.Copy("src/c", "src/b", "s1", "s1b")
	r.before = func(op string, names []string) error {
		require.NotEqual(t, zfs.OpRename, op, names)
		return nil
	}
	r.takeAll("s2")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, was, r.Get("dst/copy/b", "guid"))
	r.requireCopies(t)
}
