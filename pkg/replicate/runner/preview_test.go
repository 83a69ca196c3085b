package runner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// snapshots returns the full names of all snapshots of both sides.
func (r *replica) snapshots() (all []string) {
	for _, d := range r.datasets("") {
		for _, name := range r.names(d) {
			all = append(all, d+"@"+name)
		}
	}
	return all
}

// TestPreviewPredictsRetention expects that a run destroys exactly what check predicts, including
// the snapshots that the run takes and sends, on both sides.
func TestPreviewPredictsRetention(t *testing.T) {
	t.Parallel()
	own := replicate.Snapshots{Take: "s%Y%m%d-%H%M%S"}
	for name, j := range map[string]replicate.Job{
		"own":             {Snapshots: own, Retention: &retention.Grid{Last: 3}},
		"own, hourly":     {Snapshots: own, Retention: &retention.Grid{Hourly: 3, Last: 1}},
		"without holds":   {Snapshots: own, Retention: &retention.Grid{Last: 1}, Holds: "none", Bookmarks: "none"},
		"own and foreign": {Snapshots: replicate.Snapshots{Take: own.Take, Adopt: []string{"other*"}}, Retention: &retention.Grid{Last: 3}},
		"foreign":         {Snapshots: replicate.Snapshots{Adopt: []string{"other*"}}, Retention: &retention.Grid{Last: 4}},
		"only if changed": {Snapshots: replicate.Snapshots{Take: own.Take, SkipUnchanged: true}, Retention: &retention.Grid{Last: 2}},
	} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) {
				t.Parallel()
				rnd := rand.New(rand.NewPCG(seed, 1))
				r := newReplica(t, j)
				r.snapshot("src", "other")
				r.snapshot("src/a", "other")
				removed := 0
				for i := range 10 {
					for n := range rnd.IntN(4) {
						r.snapshot([]string{"src", "src/a"}[rnd.IntN(2)], fmt.Sprintf("other%d-%d", i, n))
					}
					if rnd.IntN(5) == 0 {
						require.NoError(t, r.Hold(t.Context(), "keep", r.snapshots()[:min(1, len(r.snapshots()))]))
					}
					before := r.snapshots()
					p, err := r.preview(t)
					require.NoError(t, err)
					require.NoError(t, p.Err())
					require.Equal(t, before, r.snapshots(), "a preview changes nothing")
					var foretold []string
					for _, side := range p.Prunings {
						foretold = append(foretold, side.Remove...)
					}
					run, _ := r.run(t)
					require.Contains(t, []string{outcome.Done, outcome.UpToDate}, run.Outcome, "%+v", run)
					after := r.snapshots()
					for _, n := range before {
						require.Equal(t, slices.Contains(foretold, n), !slices.Contains(after, n), "%s, in run %d; predicted: %q", n, i, foretold)
					}
					for _, n := range foretold {
						require.NotContains(t, after, n)
					}
					require.Equal(t, run.Targets[0].Pruned, len(onTarget(p)), "including snapshots that are destroyed on arrival")
					removed += len(foretold)
					r.now += int64(rnd.IntN(5000))
				}
				require.NotZero(t, removed)
			})
		}
	}
}

func onTarget(p *Preview) (names []string) {
	for _, side := range p.Prunings {
		if side.Side != replicate.SourceSide {
			names = append(names, side.Remove...)
		}
	}
	return names
}

// TestPreviewNamesItsStart expects that the snapshots of a preview have the time of its start, although reading the roles
// of a remote host takes seconds.
func TestPreviewNamesItsStart(t *testing.T) {
	t.Parallel()
	r := newReplica(t, snapshotJob())
	var now atomic.Int64
	now.Store(r.now)
	r.before = func(op string, _ []string) error {
		if op == zfs.OpGet {
			now.Add(600)
		}
		return nil
	}
	by := New(r.dir, r, func() time.Time { return time.Unix(now.Load(), 0).UTC() }, func(string) {})
	p, err := by.Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.Contains(t, p.Snapshots, "src/a@s20261101-0800")
}
