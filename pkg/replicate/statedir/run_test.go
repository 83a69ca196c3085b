package statedir

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
)

// TestConcludeStoppedRun expects that a stop makes failures interruptions, but not earlier
// failures and refusals.
func TestConcludeStoppedRun(t *testing.T) {
	t.Parallel()
	for dataset, want := range map[string]string{
		outcome.Done: outcome.Interrupted, outcome.Interrupted: outcome.Interrupted, outcome.Refused: outcome.Refused, outcome.Failed: outcome.Failed,
	} {
		r := &Run{Targets: []*TargetRun{{Outcome: outcome.Failed, Datasets: []outcome.Dataset{{Outcome: dataset}}}}}
		r.Conclude(time.Now(), nil, true)
		require.Equal(t, want, r.Outcome)
	}
}

// TestStoppedRunHasOneError expects that the error of a stopped run counts the interrupted datasets of a
// target, and that the record keeps each.
func TestStoppedRunHasOneError(t *testing.T) {
	t.Parallel()
	r := &Run{Job: "home", Outcome: outcome.Interrupted, Stopped: true, Targets: []*TargetRun{{Target: "far", Sent: 2, Failed: 501, Bytes: 66 << 20}}}
	for i := range 500 {
		r.Targets[0].Datasets = append(r.Targets[0].Datasets, outcome.Dataset{Source: fmt.Sprint("tank/", i), Outcome: outcome.Interrupted, Error: "interrupted"})
	}
	r.Targets[0].Datasets = append(r.Targets[0].Datasets, outcome.Dataset{Source: "tank/full", Outcome: outcome.Failed, Error: "out of space"})
	err := r.Err(nil)
	require.EqualError(t, err, "job \"home\" to far: out of space\njob \"home\" to far: interrupted: 2 of 503 datasets sent, 66 MiB")
	require.Equal(t, fault.Interrupted, fault.ClassOf(err))
	require.Len(t, r.Failures(), 501)
	r.Stopped = false // by the network
	require.Contains(t, r.Err(nil).Error(), "job \"home\" to far: interrupted\n")
}

// TestAmendedRun expects that the log has an amended run once, with its last record.
func TestAmendedRun(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "j")
	require.NoError(t, err)
	at := time.Unix(1e9, 0).UTC()
	first, same, last := &Run{Job: "j", Started: at, Notes: []string{"a"}}, &Run{Job: "j", Started: at}, &Run{Job: "j", Started: at.Add(1), Outcome: "failed"}
	for _, r := range []*Run{first, same, last} {
		require.NoError(t, s.Append(r))
	}
	for _, note := range []string{"b", "c"} {
		last.Notes = append(last.Notes, note)
		require.NoError(t, s.Amend(last))
	}
	require.NoError(t, s.append(runLog, struct{}{}), "not written by zxfer")
	require.NoError(t, s.Amend(last))
	for n, want := range [][]*Run{{}, {last}, {{}, last}, {last, {}, last}, {same, last, {}, last}, {first, same, last, {}, last}} {
		all, err := s.Runs(n)
		require.NoError(t, err)
		require.Equal(t, want, append([]*Run{}, all...))
	}
}
