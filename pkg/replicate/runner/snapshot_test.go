package runner

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

func snapshotJob() replicate.Job {
	return replicate.Job{Schedule: "hourly", Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}}
}

// TestSnapshotFailureOfOneDataset expects that a dataset that cannot be snapshotted does not affect the
// others. Its copy becomes late although all existing snapshots were sent.
func TestSnapshotFailureOfOneDataset(t *testing.T) {
	t.Parallel()
	r := newReplica(t, snapshotJob())
	for _, n := range strings.Split("bcdefgh", "") {
		r.Create("src/"+n, nil)
	}
	r.run(t)
	before := r.arrival(t, "src/c").Success
	r.fail(zfs.OpSnapshot, "src/c", &zfs.Error{Kind: zfs.NoSpace, Op: zfs.OpSnapshot, Detail: "out of space"})
	for range 2 {
		r.now += 3600
		run, _ := r.run(t)
		require.Equal(t, outcome.Failed, run.Outcome)
		require.Contains(t, run.Error, "a snapshot of 1 dataset")
		require.Equal(t, 8, run.Snapshots)
		require.Equal(t, 8, run.Targets[0].Sent)
	}
	require.Len(t, r.names("src/d"), 3)
	require.Len(t, r.names("src/c"), 1)
	require.Equal(t, before, r.arrival(t, "src/c").Success)
	for _, d := range r.status(t).Datasets {
		require.Equal(t, d.Source == "src/c", d.Late, d.Source)
		require.Equal(t, d.Source == "src/c", strings.Contains(d.Error, "out of space"), d.Source)
	}
}

// TestSnapshotsDuringRestore expects that a dataset that a restore is receiving is not
// snapshotted. The others are, and after the restore, all datasets are.
func TestSnapshotsDuringRestore(t *testing.T) {
	t.Parallel()
	r := newReplica(t, snapshotJob())
	for _, n := range []string{"b", "c"} {
		r.Create("src/"+n, nil)
	}
	r.run(t)
	r.now += 3600
	r.Set("src/b", zfs.RestoreProperty, "on")
	run, _ := r.run(t)
	require.Equal(t, outcome.Failed, run.Outcome)
	require.Contains(t, run.Error, "cannot take a snapshot of 1 dataset: a restore of src/b is running")
	require.Empty(t, run.Notes)
	require.Len(t, r.names("src/b"), 1)
	require.Len(t, r.names("src/c"), 2)
	r.now += 3600
	r.Edit(func(all map[string]*zfs.Dataset) { delete(all["src/b"].Properties, zfs.RestoreProperty) })
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.Error)
	require.Len(t, r.names("src/b"), 2)
}

// TestSnapshotsDuringDestroy expects that a dataset that is destroyed between listing and snapshot
// is not a failure.
func TestSnapshotsDuringDestroy(t *testing.T) {
	t.Parallel()
	r := newReplica(t, snapshotJob())
	r.Create("src/b", nil)
	r.run(t)
	r.now += 3600
	r.before = func(op string, _ []string) error {
		if op == zfs.OpSnapshot {
			r.Remove("src/b")
		}
		return nil
	}
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, 2, run.Snapshots)
	require.Len(t, run.Notes, 1)
	require.Len(t, r.names("src/a"), 2)
}

// TestSnapshotDestroyedImmediately expects a failed run if a snapshot is missing in the next listing. Otherwise
// a program that destroys new snapshots would prevent all copies without a message.
func TestSnapshotDestroyedImmediately(t *testing.T) {
	t.Parallel()
	r := newReplica(t, snapshotJob())
	r.Create("src/b", nil)
	r.run(t)
	r.now += 3600
	taken := false
	r.before = func(op string, _ []string) error {
		switch op {
		case zfs.OpSnapshot:
			taken = true
		case zfs.OpList:
			if names := r.names("src/b"); taken && len(names) == 2 {
				return r.Destroy(t.Context(), []string{"src/b@" + names[1]})
			}
		}
		return nil
	}
	run, _ := r.run(t)
	require.Equal(t, outcome.Failed, run.Outcome)
	require.Contains(t, run.Error, "cannot take a snapshot of 1 dataset: this run took src/b@")
	require.Contains(t, run.Hint, "zpool history -il src")
	require.Empty(t, run.Notes)
	require.Equal(t, 2, run.Targets[0].Sent)
}

// TestDatasetCreatedDuringSnapshots expects that a dataset that appears during the
// snapshots is sent in the same run and recorded. Otherwise its old holds would be permanent.
func TestDatasetCreatedDuringSnapshots(t *testing.T) {
	t.Parallel()
	r := newReplica(t, snapshotJob())
	r.run(t)
	r.now += 3600
	r.before = func(op string, _ []string) error {
		if op == zfs.OpSnapshot {
			r.Copy("src/a", "src/new", r.names("src/a")...)
		}
		return nil
	}
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.NotEmpty(t, r.names("dst/copy/new"))
	require.Len(t, r.arrival(t, "src/new").Held, 1)
}

// TestSnapshotOfLongName expects that a dataset name that is too long for the template does not
// prevent other snapshots.
func TestSnapshotOfLongName(t *testing.T) {
	t.Parallel()
	r := localReplica(t, snapshotJob())
	long := "src/" + strings.Repeat("x", 245)
	r.Create(long, nil)
	run, _ := r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Equal(t, 2, run.Snapshots)
	require.Len(t, r.names("src/a"), 1)
	for _, d := range r.status(t).Datasets {
		require.Equal(t, d.Source == long, strings.Contains(d.Error, "ZFS allows 255"), "%s: %s", d.Source, d.Error)
	}
}

// TestTooLongNameFailsJob expects that a name that is too long fails the job with exit code 1, not 2.
// Others arrive.
func TestTooLongNameFailsJob(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		take string
		to   int // bytes of the target's name
	}{
		"on the source": {"s" + strings.Repeat("y", 240) + "%Y%m%d%H%M", 4},
		"on the target": {"", 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, adopting())
			r.job.Snapshots.Take, r.job.Targets[0].To = tt.take, "dst/"+strings.Repeat("x", tt.to)
			r.snapshot("src", "s1")
			r.snapshot("src/a", "s"+strings.Repeat("y", 200))
			run, err := r.runner(t).Run(t.Context(), r.job, true)
			require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
			require.NotEmpty(t, run.Outcome)
			require.NotEmpty(t, r.names(r.job.Targets[0].To), "datasets with shorter names arrive")
		})
	}
}
