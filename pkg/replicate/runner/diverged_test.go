package runner

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

// renamingReplica returns a replica with copies of @s1 of both datasets, for a job that renames diverged
// copies.
func renamingReplica(t *testing.T) *replica {
	t.Helper()
	r := newReplica(t, adopting())
	r.job.Targets[0].OnDivergence, r.job.Targets[0].Retention = "rotate", nil
	r.take("s1")
	r.run(t)
	return r
}

// take takes snapshots of both datasets, 100 seconds later.
func (r *replica) take(name string) {
	r.now += 100
	r.snapshot("src", name)
	r.snapshot("src/a", name)
}

// renamedCopies returns the renamed copies without their descendants.
func (r *replica) renamedCopies() (names []string) {
	for _, n := range r.datasets("dst") {
		if zfs.IsDiverged(n) && !zfs.IsDiverged(zfs.ParentOf(n)) {
			names = append(names, n)
		}
	}
	return names
}

func (r *replica) stateOf(t *testing.T) *statedir.State {
	t.Helper()
	st, err := statedir.Peek(r.dir, "j").State()
	require.NoError(t, err)
	return st
}

// TestDivergedCopyIsRenamed expects that a diverged copy is kept with all its snapshots, and that a
// new copy is started. Other copies are not affected.
func TestDivergedCopyIsRenamed(t *testing.T) {
	t.Parallel()
	for name, diverge := range map[string]func(r *replica){
		"snapshots of others": func(r *replica) { r.snapshot("dst/copy/a", "other") },
		"recreated": func(r *replica) {
			r.Remove("src/a")
			r.Create("src/a", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := renamingReplica(t)
			diverge(r)
			had := r.names("dst/copy/a")
			r.take("s2")
			before := r.state()

			p, err := r.runner(t).Preview(t.Context(), r.job)
			require.NoError(t, err)
			require.NoError(t, p.Err())
			require.Equal(t, before, r.state(), "a check changes nothing")
			at := slices.IndexFunc(p.Targets[0].Plan.Datasets, func(d *plan.Dataset) bool { return d.Rename != nil })
			require.Equal(t, "src/a", p.Targets[0].Plan.Datasets[at].Source)
			require.Empty(t, r.stateOf(t).Diverged, "a check records nothing")

			run, _ := r.run(t)
			require.Equal(t, outcome.Done, run.Outcome, "%v", run.Targets)
			require.Equal(t, 2, run.Targets[0].Sent)
			aside := r.renamedCopies()
			require.Len(t, aside, 1)
			require.True(t, strings.HasPrefix(aside[0], "dst/copy/a.zxfer-2026-11-01T08-"), aside[0])
			require.Equal(t, had, r.names(aside[0]))
			require.Equal(t, r.names("src/a"), r.names("dst/copy/a"))
			require.Equal(t, []string{"s1", "s2"}, r.names("dst/copy"), "the parent did not diverge")
			require.Equal(t, []string{"src/a@s2", "dst/copy/a@s2"}, r.heldSnapshots(t, "src/a", "dst/copy/a", aside[0]), "no hold on the renamed copy")

			st := status.Of([]*replicate.Job{r.job}, r.dir, r.runner(t).Env.Now(), nil)
			require.Equal(t, aside[0], st.Jobs[0].Diverged[0].As)
			require.Equal(t, "zfs destroy -r "+aside[0], st.Jobs[0].Diverged[0].Destroy)
			require.False(t, st.Failed)
			require.Contains(t, r.metrics(t), `zxfer_replicate_set_aside{job="j",target="t"} 1`)

			r.take("s3") // the run updates the new copy, and does not touch the renamed one
			run, _ = r.run(t)
			require.Equal(t, outcome.Done, run.Outcome)
			require.Equal(t, aside, r.renamedCopies())
			require.Equal(t, had, r.names(aside[0]))

			r.Remove(aside[0]) // as the user may do
			r.take("s4")
			r.run(t)
			require.Empty(t, r.stateOf(t).Diverged)
			require.Contains(t, r.metrics(t), `zxfer_replicate_set_aside{job="j",target="t"} 0`)
		})
	}
}

// TestDescendantsAreRenamedWithParent expects that descendants of a diverged copy are renamed with it
// and sent again.
func TestDescendantsAreRenamedWithParent(t *testing.T) {
	t.Parallel()
	r := renamingReplica(t)
	r.snapshot("dst/copy", "other")
	r.take("s2")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%v", run.Failures())
	aside := r.renamedCopies()
	require.Len(t, aside, 1)
	require.Equal(t, []string{"s1"}, r.names(aside[0]+"/a"))
	require.Equal(t, []string{"s1", "s2"}, r.names("dst/copy/a"))
	require.Equal(t, []string{"dst/copy@s2", "dst/copy/a@s2"}, r.heldSnapshots(t, "dst/copy", "dst/copy/a", aside[0], aside[0]+"/a"))
	r.take("s3")
	run, _ = r.run(t)
	require.Equal(t, 2, run.Targets[0].Sent)
	require.Len(t, r.renamedCopies(), 1)
}

// TestRenamesAreLimited expects a limit of renamed copies, so that repeated divergence does not
// fill the pool.
func TestRenamesAreLimited(t *testing.T) {
	t.Parallel()
	r := renamingReplica(t)
	diverge := func(i int) *statedir.Run {
		r.snapshot("dst/copy/a", fmt.Sprint("other", i))
		r.take(fmt.Sprint("s1", i))
		run, _ := r.run(t)
		return run
	}
	for i := range 3 {
		require.Equal(t, outcome.Done, diverge(i).Outcome)
	}
	refused := diverge(3).Targets[0].Datasets[0]
	require.Equal(t, plan.Diverged, refused.Conflict)
	require.Contains(t, refused.Hint, "diverges repeatedly")
	aside := r.renamedCopies()
	require.Len(t, aside, 3)
	r.Remove(aside[0])
	diverge(4) // this run notices the deleted copy
	require.Equal(t, outcome.Done, diverge(5).Outcome)
	require.Len(t, r.renamedCopies(), 3)
}

// TestCopiesThatAreNotRenamed expects that a target dataset is a copy only if a run sent it or it
// has a common snapshot. A copy that was only written to is not renamed.
func TestCopiesThatAreNotRenamed(t *testing.T) {
	t.Parallel()
	t.Run("foreign", func(t *testing.T) {
		t.Parallel()
		r := newReplica(t, adopting())
		r.job.Targets[0].OnDivergence = "rotate"
		r.Create("dst/copy", nil)
		r.snapshot("dst/copy", "mine")
		r.take("s1")
		run, _ := r.run(t)
		require.Equal(t, plan.NoCommon, run.Targets[0].Datasets[0].Conflict)
		require.Empty(t, r.renamedCopies())
	})
	t.Run("modified", func(t *testing.T) {
		t.Parallel()
		r := renamingReplica(t)
		r.Write("dst/copy/a", []byte("x"))
		r.take("s2")
		run, _ := r.run(t)
		require.Equal(t, plan.Modified, run.Targets[0].Datasets[0].Conflict)
		require.Empty(t, r.renamedCopies())
		r.snapshot("dst/copy/a", "keep") // the user keeps the changes with a snapshot
		r.now += 100
		run, _ = r.run(t)
		require.Equal(t, outcome.Done, run.Outcome)
		require.Len(t, r.renamedCopies(), 1)
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		r := renamingReplica(t)
		r.job.Targets[0].OnDivergence = ""
		r.snapshot("dst/copy/a", "other")
		r.take("s2")
		run, _ := r.run(t)
		require.Equal(t, plan.Diverged, run.Targets[0].Datasets[0].Conflict)
		require.Contains(t, run.Targets[0].Datasets[0].Hint, `on_divergence = "rotate"`)
		require.Empty(t, r.renamedCopies())
	})
}

// TestRenamingContinues interrupts a run at any point, and expects that the next run continues and
// renames nothing twice.
func TestRenamingContinues(t *testing.T) {
	t.Parallel()
	for _, op := range []string{zfs.OpRename, zfs.OpReceive, zfs.OpHold, zfs.OpRelease} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			r := renamingReplica(t)
			r.snapshot("dst/copy/a", "other")
			r.take("s2")
			r.fail(op, "dst/copy/a", errors.New("the line was cut"))
			if op == zfs.OpRelease {
				r.before = func(asked string, names []string) error {
					if asked == op && strings.HasPrefix(names[0], "dst/") {
						return errors.New("the line was cut")
					}
					return nil
				}
			}
			r.run(t)
			r.fail("", "", nil)
			r.now += 100
			run, _ := r.run(t)
			require.Contains(t, []string{outcome.Done, outcome.UpToDate}, run.Outcome, "%v", run.Failures())
			aside := r.renamedCopies()
			require.Len(t, aside, 1)
			require.Equal(t, aside, r.stateOf(t).DivergedAt("t"))
			require.Equal(t, []string{"s1", "other"}, r.names(aside[0]))
			require.Equal(t, []string{"dst/copy/a@s2"}, r.heldSnapshots(t, "dst/copy/a", aside[0]))
		})
	}
}

// TestRenamedCopyIsSentInFull expects that first = "fail" does not refuse a copy that the job
// renamed, even after an interrupted run, nor its unchanged descendants. A copy that disappears
// after it arrived again is refused.
func TestRenamedCopyIsSentInFull(t *testing.T) {
	t.Parallel()
	for name, diverged := range map[string]string{"a child": "dst/copy/a", "all": "dst/copy"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := renamingReplica(t)
			r.job.First = plan.FirstFail
			r.snapshot(diverged, "other")
			r.take("s2")
			r.fail(zfs.OpReceive, diverged, errors.New("the line was cut"))
			run, _ := r.run(t)
			require.Equal(t, outcome.Failed, run.Outcome)
			require.Len(t, r.renamedCopies(), 1)
			r.fail("", "", nil)
			r.now += 100
			r.Create("src/new", nil)
			r.snapshot("src/new", "s2")
			run, _ = r.run(t)
			require.Equal(t, []string{"src/new"}, refusedDatasets(run), "a new dataset is not a renamed copy")
			require.Equal(t, []string{"s1", "s2"}, r.names("dst/copy/a"))
			r.unhold("dst/copy/a")
			r.Remove("dst/copy/a")
			r.take("s3")
			run, _ = r.run(t)
			require.Equal(t, []string{"src/a", "src/new"}, refusedDatasets(run))
		})
	}
}

// refusedDatasets returns the datasets whose copy a run refused to start.
func refusedDatasets(run *statedir.Run) (names []string) {
	for _, d := range run.Targets[0].Datasets {
		if d.Conflict == plan.FirstRefused {
			names = append(names, d.Source)
		}
	}
	slices.Sort(names)
	return names
}

// TestRenamingIsRetried expects that a connection lost within the run is retried, with any value of
// first.
func TestRenamingIsRetried(t *testing.T) {
	t.Parallel()
	r := renamingReplica(t)
	r.job.First = plan.FirstFail
	r.snapshot("dst/copy/a", "other")
	r.take("s2")
	cut := false
	r.before = func(op string, names []string) error {
		if op == zfs.OpReceive && names[0] == "dst/copy/a" && !cut {
			cut = true
			return &zfs.Error{Kind: zfs.Killed}
		}
		return nil
	}
	run, _ := r.run(t)
	require.True(t, cut)
	require.Equal(t, outcome.Done, run.Outcome, "%v", run.Failures())
}

// TestUnchangedDescendantsAreRenamed expects that unchanged descendants are renamed with their
// parent and sent again.
func TestUnchangedDescendantsAreRenamed(t *testing.T) {
	t.Parallel()
	r := unchangedReplica(t, adopting())
	r.job.Targets[0].OnDivergence, r.job.First = "rotate", plan.FirstFail
	r.runUntilUnchanged(t)
	r.snapshot("dst/copy", "other")
	r.now += 100
	r.snapshot("src", "s3")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%v", run.Failures())
	require.Empty(t, refusedDatasets(run))
	r.now += 100
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%v", run.Failures())
	require.Equal(t, r.names("src/h"), r.names("dst/copy/h"))
}

// TestForeignDescendantsPreventRenaming expects that a copy is not renamed if it has descendants
// that the job did not send.
func TestForeignDescendantsPreventRenaming(t *testing.T) {
	t.Parallel()
	r := renamingReplica(t)
	r.Create("dst/copy/a/mine", nil)
	r.snapshot("dst/copy/a", "other")
	r.take("s2")
	run, _ := r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	d := run.Targets[0].Datasets
	at := slices.IndexFunc(d, func(d outcome.Dataset) bool { return d.Source == "src/a" })
	require.Equal(t, plan.Diverged, d[at].Conflict)
	require.Contains(t, d[at].Hint, "not renamed, because its descendants do not belong to this job: dst/copy/a/mine; rename them first")
	require.Empty(t, r.renamedCopies())
	r.Remove("dst/copy/a/mine")
	r.now += 100
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%v", run.Failures())
	require.Len(t, r.renamedCopies(), 1)
}

// TestRenamingIsReported expects that the renaming is reported after it happened.
func TestRenamingIsReported(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{true, false} {
		r := renamingReplica(t)
		r.snapshot("dst/copy/a", "other")
		r.take("s2")
		if fails {
			r.fail(zfs.OpRename, "dst/copy/a", errors.New("forbidden"))
		}
		var reported []string
		_, _ = New(r.dir, r, r.runner(t).Env.Now, func(s string) { reported = append(reported, s) }).Run(t.Context(), r.job, true)
		require.Equal(t, !fails, strings.Contains(strings.Join(reported, "\n"), "dst/copy/a is renamed to"), "%v", reported)
		require.Equal(t, !fails, strings.Contains(strings.Join(reported, "\n"), "zfs destroy -r dst/copy/a.zxfer-"), "%v", reported)
	}
}
