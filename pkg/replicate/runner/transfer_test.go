package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// TestInterruptedThenUnreachable interrupts a stream and makes the target unreachable, so its snapshots are
// unknown. It expects the source to keep all snapshots of the stream, because one of them may be
// the most recent common snapshot.
func TestInterruptedThenUnreachable(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	none := 0
	r.job.Retries, r.job.Retention, r.job.Targets[0].Retention = &none, &retention.Grid{Last: 2}, nil
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

// TestInterruptedRunHint sends a signal before the first stream, and expects the next
// run to send everything.
func TestInterruptedRunHint(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	ctx, stop := context.WithCancel(t.Context())
	r.before = func(string, []string) error { stop(); return nil }
	run, err := r.runner(t).Run(ctx, r.job, true)
	require.Equal(t, outcome.Interrupted, run.Outcome)
	require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
	require.Contains(t, fault.HintOf(err), "the same command, resumes")
}

// TestHintsNameTheJobFile expects that commands in hints name this job file and state directory.
func TestHintsNameTheJobFile(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	store, err := statedir.Open(r.dir, r.job.Name)
	require.NoError(t, err)
	unlock, err := store.Lock(t.Context(), false)
	require.NoError(t, err)
	defer unlock()
	run := r.runner(t)
	run.Env.Flags = " --config 'my jobs.toml' --state-dir state"
	_, err = run.Run(t.Context(), r.job, false)
	require.ErrorIs(t, err, statedir.ErrRunning)
	require.Equal(t, "wait until it ends: zxfer replicate run --wait j --config 'my jobs.toml' --state-dir state", fault.HintOf(err))
}

// TestHistoriesWithoutRetention expects that without retention on a target, its snapshots
// are listed only for datasets whose most recent snapshot is missing on the source. An older common
// snapshot may exist.
func TestHistoriesWithoutRetention(t *testing.T) {
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
	require.Equal(t, []string{"src/a@s2"}, r.heldSnapshots(t, "src/a"), "the incremental source is kept")

	r.destroy("dst/copy/a@own")
	require.Equal(t, 1, run(outcome.Done).Sent)
	require.Equal(t, []string{"s1", "s2", "s3"}, r.names("dst/copy/a"))
}

// callRecorder records the calls of a Reporter except progress.
type callRecorder struct {
	name string
	mu   *sync.Mutex
	all  *[]string
}

func (r callRecorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.all = append(*r.all, r.name+": "+fmt.Sprintf(format, args...))
}

func (r callRecorder) Log(message string) { r.note("log %s", message) }

func (r callRecorder) Activity(string) func() { return func() {} }

func (r callRecorder) Planned(p *send.Report) { r.note("planned %d", p.Plan.Steps()) }

func (r callRecorder) Started(_ int, d *plan.Dataset, _ int) { r.note("started %s", d.Source) }

func (callRecorder) Progress(int, connect.Progress) {}

func (r callRecorder) Finished(_ int, result *send.StepResult) {
	r.note("finished %s%s", result.Source, result.Snapshot)
}

func (r callRecorder) Ended(d *plan.Dataset, err error) { r.note("ended %s: %v", d.Source, err) }

// TestRunReportsTransfers expects that a run reports its transfers to the reporter of each
// target.
func TestRunReportsTransfers(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.snapshot("src", "s1")
	run := r.runner(t)
	var all []string
	var mu sync.Mutex
	run.Env.Reporter = func(name, target string) send.Reporter {
		if target == "" {
			return nil // only the log gets a report
		}
		return callRecorder{name + " to " + target, &mu, &all}
	}
	_, err := run.Run(t.Context(), r.job, true)
	require.NoError(t, err)
	require.Equal(t, []string{"j to t: planned 1", "j to t: started src", "j to t: finished src@s1", "j to t: ended src: <nil>"}, all)
}

// TestRecordOfStoppedBatch expects that earlier errors are reported even if the result of a
// batch could not be inspected.
func TestRecordOfStoppedBatch(t *testing.T) {
	t.Parallel()
	b := &batch{to: &session.Side{Target: &replicate.Target{}}, err: fault.Interrupt("", context.Canceled), result: &send.BatchResult{Datasets: []*send.DatasetResult{
		{Dataset: outcome.Dataset{Source: "a"}, Err: errors.New("no space")}, {Dataset: outcome.Dataset{Source: "b"}, Err: fault.Interrupt("", context.Canceled)}, {Dataset: outcome.Dataset{Source: "c"}},
	}}}
	r := b.record(0)
	require.Equal(t, outcome.Interrupted, r.Outcome)
	require.Len(t, r.Datasets, 1)
	require.Equal(t, "a", r.Datasets[0].Source)
	require.Equal(t, outcome.Failed, r.Datasets[0].Outcome)
}

// TestNoSpaceForOneDataset expects that if the target has no space for one dataset, the others and
// retention continue. Retention may free space.
func TestNoSpaceForOneDataset(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.Create("src/b", nil)
	for _, s := range []string{"s1", "s2"} {
		for _, n := range []string{"src", "src/a", "src/b"} {
			r.snapshot(n, s)
		}
		r.run(t)
		r.now += 10
	}
	r.Set("dst", "available", "1000")
	for n, size := range map[string]int{"src": 1, "src/a": 10000, "src/b": 100} {
		r.Write(n, make([]byte, size))
	}
	for _, n := range []string{"src", "src/a", "src/b"} {
		r.snapshot(n, "s3")
	}
	run, _ := r.run(t)
	require.Equal(t, outcome.Refused, run.Targets[0].Outcome)
	require.Empty(t, run.Targets[0].Error)
	require.Equal(t, 2, run.Targets[0].Sent)
	require.Equal(t, 1, run.Targets[0].Failed)
	require.Equal(t, 2, run.Targets[0].Pruned)
	for _, d := range run.Targets[0].Datasets {
		require.Equal(t, d.Source == "src/a", d.Conflict == string(plan.NoRoom), d.Source)
	}
	require.Equal(t, []string{"s2", "s3"}, r.names("dst/copy/b"))
}
