package runner

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// After an interrupted stream the target has some of its snapshots, and while it is unreachable
// nobody knows which. Retention on the source keeps all of them, or the most recent common
// snapshot could be lost.
func TestCutAndThenAway(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	none := 0
	r.job.Retries, r.job.Retention, r.job.Targets[0].Retention = &none, &replicate.Grid{Last: 2}, nil
	take := func(from, to int) {
		for i := from; i <= to; i++ {
			r.snapshot("src", fmt.Sprint("s", i))
		}
	}
	take(1, 1)
	r.run(t)
	take(2, 6)
	r.now += 10
	r.before = func(op string, names []string) error { // the third of the stream
		if op != zfs.OpReceive || names[0] != "dst/copy@s4" {
			return nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.away = "dst/copy"
		return hosts.ErrLost
	}
	run, _ := r.run(t)
	require.NotEmpty(t, run.Targets[0].Error)
	require.Equal(t, []string{"s1", "s2", "s3"}, r.names("dst/copy"))
	for i := 7; i < 12; i++ {
		take(i, i)
		r.now += 10
		r.run(t)
	}
	require.Equal(t, []string{"s1", "s2", "s3", "s4", "s5", "s6", "s10", "s11"}, r.names("src"))
	r.before, r.away, r.now = nil, "", r.now+10
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, []string{"s10", "s11"}, r.names("src"))
	require.Equal(t, []string{"s1", "s2", "s3", "s4", "s5", "s6", "s10", "s11"}, r.names("dst/copy"))
	require.Zero(t, r.arrival(t, "src").Sending)
}

// After a signal before the first stream, the next run sends everything.
func TestAnInterruptedRunSaysWhatResumes(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	ctx, stop := context.WithCancel(t.Context())
	r.before = func(string, []string) error { stop(); return nil }
	run, err := r.runner(t).Run(ctx, r.job, true)
	require.Equal(t, outcome.Interrupted, run.Outcome)
	require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
	require.Contains(t, fault.HintOf(err), "the same command, resumes")
}

// Commands in hints name this job file and state directory.
func TestHintsNameTheJobFile(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	store, err := statedir.Open(r.dir, r.job.Name)
	require.NoError(t, err)
	unlock, err := store.Lock(t.Context(), false)
	require.NoError(t, err)
	defer unlock()
	run := r.runner(t)
	run.Flags = " --config 'my jobs.toml' --state-dir state"
	_, err = run.Run(t.Context(), r.job, false)
	require.ErrorIs(t, err, statedir.ErrRunning)
	require.Equal(t, "wait for its end: zxfer replicate run --wait j --config 'my jobs.toml' --state-dir state", fault.HintOf(err))
}

// Without retention on a target, its snapshots are not listed, except for datasets whose most
// recent snapshot the source lacks: an older common snapshot may exist.
func TestHistoriesOfATargetWithoutRetention(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Adopt: []string{"s*"}}})
	r.job.Targets[0].Retention = nil
	run := func(outcome string, copies ...string) *statedir.TargetRun {
		t.Helper()
		got, names := r.run(t)
		require.Equal(t, outcome, got.Targets[0].Outcome, "%+v", got.Targets[0])
		require.Equal(t, append(copies, "src", "src/a"), names)
		r.now += 60
		return got.Targets[0]
	}
	r.snapshot("src", "s1")
	r.snapshot("src/a", "s1")
	run(outcome.Done)
	r.snapshot("src/a", "s2")
	require.Equal(t, 1, run(outcome.Done).Sent)
	require.Equal(t, []string{"s1", "s2"}, r.names("dst/copy/a"))

	r.snapshot("src/a", "s3")
	r.snapshot("dst/copy/a", "own")
	require.Equal(t, 1, run(outcome.Refused, "dst/copy/a").Failed)
	require.Equal(t, []string{"s1", "s2", "own"}, r.names("dst/copy/a"))
	require.Equal(t, []string{"src/a@s2"}, r.heldBy(t, "src/a"), "the base stays")

	r.destroy("dst/copy/a@own")
	require.Equal(t, 1, run(outcome.Done).Sent)
	require.Equal(t, []string{"s1", "s2", "s3"}, r.names("dst/copy/a"))
}
