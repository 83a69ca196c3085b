package runner

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// encryptedReplica returns a replica that has sent an encrypted dataset, src/a, once.
func encryptedReplica(t *testing.T) *replica {
	t.Helper()
	r := newReplica(t, adopting())
	r.encrypt("src/a")
	r.snapshot("src", "s1")
	r.snapshot("src/a", "s1")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run)
	return r
}

// TestKeyChangedBeforeIncrementalSend expects that a changed key of a copy is reported at the next
// incremental send, even if runs with nothing to send came first.
func TestKeyChangedBeforeIncrementalSend(t *testing.T) {
	t.Parallel()
	r := encryptedReplica(t)
	r.Set("dst/copy/a", "encryptionroot", "dst/copy") // zfs change-key -i
	for range 2 {
		r.now += 10
		run, _ := r.run(t)
		require.Equal(t, outcome.UpToDate, run.Outcome)
	}
	r.now += 10
	r.snapshot("src/a", "s2")
	run, _ := r.run(t)
	require.Len(t, run.Targets[0].Datasets, 1)
	refused := run.Targets[0].Datasets[0]
	require.Equal(t, string(plan.KeyChanged), refused.Conflict)
	require.Contains(t, refused.Error, "from dst/copy/a to dst/copy")
	require.Contains(t, refused.Hint, "zfs rename dst/copy/a")
	require.Len(t, r.Versions("dst/copy/a"), 1)

	r.rename("dst/copy/a", "dst/a-old") // as the hint says
	r.now += 10
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run.Targets[0])
	require.Len(t, r.Versions("dst/copy/a"), 2)
}

// TestRenamedCopiesKeepTheirKeys expects that renaming the copies and the job changes no key,
// although an encryption root is recorded by its name.
func TestRenamedCopiesKeepTheirKeys(t *testing.T) {
	t.Parallel()
	r := encryptedReplica(t)
	for _, n := range []string{"dst/copy/a", "dst/copy"} {
		r.rename(n, "dst/new"+n[len("dst/copy"):])
	}
	r.Set("dst/new/a", "encryptionroot", "dst/new/a")
	r.job.Targets[0].To = "dst/new"
	r.now += 10
	r.snapshot("src/a", "s2")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run.Targets[0])
	require.Len(t, r.Versions("dst/new/a"), 2)
}

// TestFirstFail expects that with first = "fail", a missing copy is refused with commands that send
// it. Other datasets continue, and so does this one after it was sent.
func TestFirstFail(t *testing.T) {
	t.Parallel()
	j := adopting()
	j.First = plan.FirstFail
	r := newReplica(t, j)
	r.job.Targets[0].Retention = nil
	for _, d := range []string{"src", "src/a"} {
		r.snapshot(d, "s1")
		r.snapshot(d, "s2")
	}
	run, _ := r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.NotContains(t, r.datasets("dst"), "dst/copy")
	d := run.Targets[0].Datasets[0]
	require.Equal(t, plan.FirstRefused, d.Conflict)
	require.Contains(t, d.Error, `first = "fail"`)
	require.Contains(t, d.Hint, "zxfer replicate run --first all j\n")
	require.Contains(t, d.Hint, "zxfer replicate run --first newest j")

	once := *r.job
	once.Targets = append([]replicate.Target(nil), r.job.Targets...)
	once.Targets[0].First = plan.FirstFail
	once.OverrideFirst(plan.FirstNewest)
	whole := r.job
	r.job = &once
	r.now += 10
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome)
	require.Equal(t, []string{"s2"}, r.names("dst/copy/a"), "only the most recent one")

	r.job = whole
	r.now += 10
	r.snapshot("src", "s3")
	r.snapshot("src/a", "s3")
	r.Remove("dst/copy/a")
	run, _ = r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Equal(t, []string{"s2", "s3"}, r.names("dst/copy"))
	require.NotContains(t, r.datasets("dst"), "dst/copy/a")

	// A renamed dataset is reported as renamed: its copy is not missing.
	r.rename("src/a", "src/b")
	r.Copy("src/b", "dst/copy/a", "s1", "s2")
	run, _ = r.run(t)
	require.Len(t, run.Targets[0].Datasets, 1)
	require.Equal(t, decision.Renamed, run.Targets[0].Datasets[0].Conflict)
}

// reviewed returns a function that reviews the plan of n datasets and records their results, as a
// run does.
func reviewed(t *testing.T, n int) func() {
	j := &replicate.Job{Name: "j", Source: "src", Targets: []replicate.Target{{Name: "t", To: "dst"}}, Snapshots: replicate.Snapshots{Adopt: []string{"s*"}}}
	scope, err := j.Scope()
	require.NoError(t, err)
	v := &decision.Survey{Job: j, Scope: scope, State: &replicate.State{Datasets: map[string]*replicate.DatasetState{}}, Root: "src", Source: &zfs.Listing{Root: "src"}}
	b := &batch{to: &session.Side{Name: "t"}, result: &send.BatchResult{}}
	p, st := &plan.Plan{}, plan.State{}
	for i := range n {
		d := &zfs.Dataset{Name: fmt.Sprintf("src/%06d", i), GUID: uint64(i + 1)}
		v.Source.Datasets = append(v.Source.Datasets, d)
		p.Datasets = append(p.Datasets, &plan.Dataset{Source: d.Name, Target: "dst" + d.Name[3:]})
		b.result.Datasets = append(b.result.Datasets, &send.DatasetResult{Dataset: outcome.Dataset{Source: d.Name, Target: "dst" + d.Name[3:]}})
	}
	v.All, st.Source = v.Source.Datasets, *v.Source
	return func() {
		v.Review(&j.Targets[0], p, &st)
		b.updateState(v, nil)
		require.Equal(t, uint64(n), v.State.Datasets[fmt.Sprintf("src/%06d", n-1)].GUID)
	}
}

// TestReviewTimeIsLinear expects that a run does not search all datasets for each one.
func TestReviewTimeIsLinear(t *testing.T) { //nolint:paralleltest // it measures processor time
	testenv.Linear(t, 1000, func(n int) func() { return reviewed(t, n) })
}
