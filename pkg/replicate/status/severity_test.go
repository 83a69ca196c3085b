package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/statedir"
)

// stateAfterRun returns the state of a job with a run at eight o'clock.
func stateAfterRun(ended string, targets ...*statedir.TargetRun) *statedir.State {
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)
	return &statedir.State{LastRun: &statedir.Run{Started: at, Ended: at.Add(time.Minute), Outcome: ended, Targets: targets},
		State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}}
}

// recordResult records the result of a dataset in that run.
func recordResult(st *statedir.State, source, to string, err error) {
	a := st.Copy(source, to)
	a.Target = "vault/" + source
	a.Record(st.LastRun.Started.Add(-time.Hour), nil)
	a.Record(st.LastRun.Started, err)
}

func statusOfState(st *statedir.State) *JobStatus {
	return statusOf(&replicate.Job{Name: "j", Schedule: "hourly"}, st, statusTimes{now: st.LastRun.Started.Add(10 * time.Minute)})
}

func states(j *JobStatus) (out []string) {
	for _, d := range j.Datasets {
		out = append(out, d.State)
	}
	return out
}

// TestStatusFailed expects the state failed for a dataset that failed in the last run, even if it
// is not late yet.
func TestStatusFailed(t *testing.T) {
	t.Parallel()
	for ended, err := range map[string]error{
		outcome.Failed:      fault.Failf("free space there", "no space"),
		outcome.Refused:     fault.Refusef("free space there", "no space"),
		outcome.Interrupted: fault.Interrupt("free space there", fault.Failf("", "no space")),
	} {
		st := stateAfterRun(ended, &statedir.TargetRun{Target: "near", Outcome: ended})
		recordResult(st, "tank", "near", nil)
		recordResult(st, "tank/a", "near", err)
		js := statusOfState(st)
		require.Equal(t, []string{OK, ended}, states(js))
		require.Equal(t, ended, js.State)
		require.True(t, js.Failed)
		require.False(t, js.Late)
		require.Equal(t, []*Problem{{State: ended, To: []string{"near"}, Datasets: []string{"tank/a"}, Error: "no space", Hint: "free space there"}}, js.Problems)
	}
	st := stateAfterRun(outcome.Done)
	recordResult(st, "tank", "near", nil)
	js := statusOfState(st)
	require.Equal(t, OK, js.State)
	require.False(t, js.Failed)
	st.Copy("tank", "near").Error = "no space" // the format of an older version
	require.Equal(t, outcome.Failed, statusOfState(st).State)
}

// TestProblemsAreReportedOnce expects that an unreachable host is one problem, of one target, of two
// targets, or of many datasets.
func TestProblemsAreReportedOnce(t *testing.T) {
	t.Parallel()
	names := []string{"tank", "tank/a", "tank/b"}
	away := fault.Failf("is it up? ssh beta", "beta: no route to host")
	st := stateAfterRun(outcome.Failed,
		&statedir.TargetRun{Target: "far", Outcome: outcome.Failed, Error: away.Error(), Hint: fault.HintOf(away)},
		&statedir.TargetRun{Target: "near", Outcome: outcome.Done},
		&statedir.TargetRun{Target: "other", Outcome: outcome.Failed, Error: away.Error(), Hint: fault.HintOf(away)})
	for _, n := range names {
		recordResult(st, n, "far", away)
		recordResult(st, n, "near", nil)
		recordResult(st, n, "other", away)
	}
	js := statusOfState(st)
	require.Len(t, js.Problems, 1)
	require.Equal(t, []string{"far", "other"}, js.Problems[0].To)
	require.Empty(t, js.Problems[0].Datasets, "all of them")
	require.Equal(t, "is it up? ssh beta", js.Problems[0].Hint)
	require.Equal(t, []string{"failed", "ok", "failed", "failed", "ok", "failed", "failed", "ok", "failed"}, states(js))

	st = stateAfterRun(outcome.Interrupted, &statedir.TargetRun{Target: "far", Outcome: outcome.Interrupted})
	for _, n := range names {
		recordResult(st, n, "far", fault.Interrupt("the next run resumes", fault.Failf("", "%s: vault/%s: connection lost", n, n)))
	}
	recordResult(st, "tank/c", "far", fault.Refusef("zfs rollback vault/tank/c@1", "tank/c was modified"))
	js = statusOfState(st)
	require.Len(t, js.Problems, 2)
	require.Equal(t, names, js.Problems[0].Datasets)
	require.Equal(t, "vault/tank: connection lost", js.Problems[0].Error)
	require.Equal(t, []string{"tank/c"}, js.Problems[1].Datasets)
}

// TestStatusOfSkippedDatasets expects that an error that ended a run early applies to all datasets.
// A dataset that a run skips did not fail in it.
func TestStatusOfSkippedDatasets(t *testing.T) {
	t.Parallel()
	before := func(st *statedir.State) {
		for _, n := range []string{"tank", "tank/a"} {
			st.Copy(n, "near").Record(st.LastRun.Started.Add(-time.Hour), nil)
		}
		st.Copy("tank/a", "near").Record(st.LastRun.Started.Add(-time.Hour), fault.Failf("", "of old"))
	}
	st := stateAfterRun(outcome.Failed, &statedir.TargetRun{Target: "near"})
	st.LastRun.Error = "beta: no route to host"
	before(st)
	js := statusOfState(st)
	require.Equal(t, []string{outcome.Failed, outcome.Failed}, states(js))
	require.Len(t, js.Problems, 1)
	require.Equal(t, st.LastRun.Error, js.Problems[0].Error)

	st = stateAfterRun(outcome.Done, &statedir.TargetRun{Target: "near", Outcome: outcome.UpToDate})
	before(st)
	js = statusOfState(st)
	require.Equal(t, OK, js.State)
	require.Empty(t, js.Problems)
}

// TestStatusOfRetention expects that a failure of retention concerns the target and no dataset.
func TestStatusOfRetention(t *testing.T) {
	t.Parallel()
	st := stateAfterRun(outcome.Failed, &statedir.TargetRun{Target: "near", Outcome: outcome.Failed, Error: "retention: too many"})
	recordResult(st, "tank", "near", nil)
	js := statusOfState(st)
	require.Equal(t, []string{OK}, states(js))
	require.Equal(t, outcome.Failed, js.State)
	require.Equal(t, "retention: too many", js.Problems[0].Error)
}

// TestLagLevels expects the warning level to be grace plus jitter, and the critical level one run
// more.
func TestLagLevels(t *testing.T) {
	t.Parallel()
	st := stateAfterRun(outcome.Done)
	recordResult(st, "tank", "near", nil)
	js := statusOf(&replicate.Job{Schedule: "hourly", Jitter: calendar.Duration(time.Minute)}, st, statusTimes{now: st.LastRun.Started.Add(3 * time.Hour)})
	require.Equal(t, 2*time.Hour.Seconds(), js.Lag)
	require.Equal(t, 16*time.Minute.Seconds(), js.LagWarning)
	require.Equal(t, 76*time.Minute.Seconds(), js.LagCritical)
	require.Equal(t, Late, js.State)
	require.False(t, js.Failed)
	js = statusOf(&replicate.Job{}, st, statusTimes{now: st.LastRun.Started})
	require.Zero(t, js.LagWarning+js.LagCritical)
}
