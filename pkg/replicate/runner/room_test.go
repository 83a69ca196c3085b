package runner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
)

// If the target has no space for one dataset, the others and retention continue, and retention may
// free space.
func TestNoRoomForOne(t *testing.T) {
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
