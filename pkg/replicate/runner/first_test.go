package runner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
)

// With first = "fail", a missing copy is refused with commands that send it. Others continue, and
// so does this one once it was sent.
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
	once.Begin(plan.FirstNewest)
	whole := r.job
	r.job = &once
	r.now += 10
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome)
	require.Equal(t, []string{"s2"}, r.names("dst/copy/a"), "the newest alone")

	r.job = whole
	r.now += 10
	r.snapshot("src", "s3")
	r.snapshot("src/a", "s3")
	r.Remove("dst/copy/a")
	run, _ = r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Equal(t, []string{"s2", "s3"}, r.names("dst/copy"))
	require.NotContains(t, r.datasets("dst"), "dst/copy/a")

	// A dataset that was renamed is told as such: its copy is not gone.
	r.rename("src/a", "src/b")
	r.Copy("src/b", "dst/copy/a", "s1", "s2")
	run, _ = r.run(t)
	require.Len(t, run.Targets[0].Datasets, 1)
	require.Equal(t, replicate.Renamed, run.Targets[0].Datasets[0].Conflict)
}
