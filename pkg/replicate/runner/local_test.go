package runner

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

// localReplica returns a replica for a job without a target.
func localReplica(t *testing.T, j replicate.Job) *replica {
	t.Helper()
	r := newReplica(t, j)
	r.job.Targets, r.job.Parallel, r.job.Schedule = nil, 0, "hourly"
	f := replicate.File{Jobs: []replicate.Job{*r.job}}
	require.NoError(t, jobfile.Validate(&f))
	return r
}

func (r *replica) status(t *testing.T) *status.JobStatus {
	t.Helper()
	return status.Of([]*replicate.Job{r.job}, r.dir, time.Unix(r.now, 0).UTC(), nil).Jobs[0]
}

func (r *replica) metrics(t *testing.T) string {
	t.Helper()
	text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
	require.NoError(t, err)
	return string(text)
}

// TestLocalJob expects that a job without a target takes snapshots and destroys them by its
// retention policy. It keeps held and foreign snapshots.
func TestLocalJob(t *testing.T) {
	t.Parallel()
	r := localReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}, Retention: &retention.Grid{Hourly: 2, Daily: 2}})
	require.True(t, r.status(t).Late, "it never ran")
	r.snapshot("src/a", "mine")
	for i := range 30 { // from 08:00 on the 1st to 13:00 on the 2nd
		run, _ := r.run(t)
		require.Equal(t, outcome.Done, run.Outcome, run.Error)
		require.Equal(t, 2, run.Snapshots)
		require.Empty(t, run.Targets)
		if i == 3 {
			require.NoError(t, r.Hold(t.Context(), "keep", []string{"src/a@s20261101-1100"}))
		}
		r.now += 3600
	}
	want := []string{"s20261101-2300", "s20261102-1200", "s20261102-1300"}
	require.Equal(t, want, r.names("src"))
	require.Equal(t, append([]string{"mine", "s20261101-1100"}, want...), r.names("src/a"))
	require.Empty(t, r.names("dst"))

	r.now += 14 * 60
	st := r.status(t)
	require.False(t, st.Late)
	require.Len(t, st.Datasets, 2)
	require.Equal(t, "s20261102-1300", st.Datasets[1].Snapshot)
	r.now += 120
	require.True(t, r.status(t).Late, "the snapshot of 14:00 does not exist 16 minutes after it was due")
	require.Contains(t, r.metrics(t), "zxfer_replicate_dataset_failed{job=\"j\",source=\"src/a\",target=\"\"} 0\n")
}

// TestLocalUnchanged expects that an unchanged dataset needs no snapshot, is not late, and is not
// listed again.
func TestLocalUnchanged(t *testing.T) {
	t.Parallel()
	r := localReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M", SkipUnchanged: true}, Retention: &retention.Grid{Last: 2}})
	for _, n := range strings.Split("bcdefgh", "") {
		r.Create("src/"+n, nil)
	}
	r.runUntilUnchanged(t)
	r.now += 5 * 3600
	r.Set("src/a", "written", "100")
	run, looked := r.run(t)
	require.Equal(t, 1, run.Snapshots)
	require.Equal(t, []string{"src/a"}, looked)
	st := r.status(t)
	require.False(t, st.Late)
	for _, d := range st.Datasets {
		require.Equal(t, run.Started, d.Success, d.Source)
		require.NotEmpty(t, d.Snapshot, d.Source)
	}
}

// TestLocalRetention expects that a job with only retention takes no snapshot.
func TestLocalRetention(t *testing.T) {
	t.Parallel()
	r := localReplica(t, adopting())
	for _, s := range []string{"s1", "s2", "s3", "other", "s4"} {
		r.snapshot("src/a", s)
	}
	p, err := r.preview(t)
	require.NoError(t, err)
	require.True(t, p.Local)
	require.Empty(t, p.Snapshots)
	require.Equal(t, []string{"src/a@s1"}, p.Prunings[0].Remove)
	run, _ := r.run(t)
	require.Equal(t, 1, run.Pruned)
	require.Zero(t, run.Snapshots)
	require.Equal(t, []string{"s2", "s3", "other", "s4"}, r.names("src/a"))
	require.False(t, r.status(t).Late)
}

func (r *replica) preview(t *testing.T) (*Preview, error) {
	t.Helper()
	return r.runner(t).Preview(t.Context(), r.job)
}

// TestLocalSnapshotFails expects that if no snapshot can be taken, the dataset becomes late, with
// the reason.
func TestLocalSnapshotFails(t *testing.T) {
	t.Parallel()
	r := localReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	r.run(t)
	success := r.status(t).Datasets[0].Success
	r.now += 3600
	r.fail(zfs.OpSnapshot, "src", errors.New("out of space"))
	run, _ := r.run(t)
	require.Equal(t, outcome.Failed, run.Outcome)
	st := r.status(t)
	require.Contains(t, st.Error, "out of space")
	for _, d := range st.Datasets {
		require.Contains(t, d.Error, "out of space")
		require.Equal(t, success, d.Success)
	}
	r.fail("", "", nil)
	r.Set("src/a", "inconsistent", "1")
	r.now += 3600
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome)
	st = r.status(t)
	require.True(t, st.Late)
	require.Empty(t, st.Datasets[0].Error)
	require.Contains(t, st.Datasets[1].Error, "a receive into it")
}

// TestAddedAndRemovedTargets expects that a job that lost its targets no longer needs their holds. A job
// that gets a target behaves like any other.
func TestAddedAndRemovedTargets(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}, Retention: &retention.Grid{Last: 1}})
	targets := r.job.Targets
	r.run(t)
	r.now += 3600
	r.job.Targets, r.job.Parallel = nil, 0
	r.run(t)
	require.Equal(t, []string{"s20261101-0800", "s20261101-0900"}, r.names("src/a"), "the first is held for the removed target")
	require.Equal(t, []string{""}, targetsOf(r.status(t)))
	held, err := r.gc(t)
	require.NoError(t, err)
	for _, h := range held {
		require.Equal(t, strings.HasPrefix(h.Snapshot, "src"), h.Released, h.Snapshot)
	}
	r.now += 3600
	r.run(t)
	require.Equal(t, []string{"s20261101-1000"}, r.names("src/a"))
	r.job.Targets = targets
	r.now += 3600
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.Targets[0].Error)
	require.Equal(t, 2, run.Targets[0].Sent)
	for _, d := range run.Targets[0].Datasets {
		require.Zero(t, d.Full, "%s: the bookmark of the common snapshot still exists", d.Source)
	}
	require.Equal(t, []string{"t"}, targetsOf(r.status(t)))
}

// TestHoldsOfOtherHosts expects that holds of another host's job in a shared file are never
// released.
func TestHoldsOfOtherHosts(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	r.run(t)
	text := "[[host]]\nname = 'here'\n[[host]]\nname = 'there'\n[[job]]\nname = 'mine'\nhosts = ['here']\nsource = '" + r.job.Source + "'\nsnapshots.adopt = ['x']\nretention.last = 1\n"
	theirs := "[[job]]\nname = '" + r.job.Name + "'\nhosts = ['there']\nsource = 'tank'\nsnapshots.adopt = ['x']\nretention.last = 1\n"
	for text, stale := range map[string]bool{text + theirs: false, text: true} {
		inv, err := jobfile.Read("x", []byte(text))
		require.NoError(t, err)
		f, err := inv.For("here")
		require.NoError(t, err)
		held, err := holds.List(t.Context(), r.runner(t).Env, f, false)
		require.NoError(t, err)
		require.NotEmpty(t, held)
		for _, h := range held {
			require.Equal(t, r.job.Name, h.Job)
			require.Equal(t, stale, h.Stale, h.Snapshot)
		}
	}
}

func (r *replica) gc(t *testing.T) ([]*holds.Held, error) {
	t.Helper()
	runner := r.runner(t)
	return holds.List(t.Context(), runner.Env, &replicate.File{Jobs: []replicate.Job{*r.job}}, true)
}

func targetsOf(s *status.JobStatus) []string {
	var out []string
	for _, d := range s.Datasets {
		out = append(out, d.To)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
