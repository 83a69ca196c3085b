package runner

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// reviewed has a run review the plan of n datasets and learn what became of them, and
// tells how long that took.
func reviewed(t *testing.T, n int) time.Duration {
	t.Helper()
	j := &replicate.Job{Name: "j", Source: "src", Targets: []replicate.Target{{Name: "t", To: "dst"}}, Snapshots: replicate.Snapshots{Adopt: []string{"s*"}}}
	scope, err := j.Scope()
	require.NoError(t, err)
	v := &replicate.View{Job: j, Scope: scope, State: &replicate.State{Datasets: map[string]*replicate.Known{}}, Root: "src", Source: &zfs.Listing{Root: "src"}}
	b := &batch{side: &side{name: "t"}, result: &job.BatchResult{}}
	p, st := &plan.Plan{}, plan.State{}
	for i := range n {
		d := &zfs.Dataset{Name: fmt.Sprintf("src/%06d", i), GUID: uint64(i + 1)}
		v.Source.Datasets = append(v.Source.Datasets, d)
		p.Datasets = append(p.Datasets, &plan.Dataset{Source: d.Name, Target: "dst" + d.Name[3:]})
		b.result.Datasets = append(b.result.Datasets, &job.DatasetResult{Source: d.Name, Target: "dst" + d.Name[3:]})
	}
	v.All, st.Source = v.Source.Datasets, *v.Source
	began := time.Now()
	v.Review(&j.Targets[0], p, &st)
	b.learn(v, nil)
	took := time.Since(began)
	require.Equal(t, uint64(n), v.State.Datasets[fmt.Sprintf("src/%06d", n-1)].GUID)
	return took
}

// What is known of a dataset is not looked for among all: 16 times as many take about 16
// times as long, not 256. A busy machine may hold up one try, not each.
func TestManyDatasetsAreReviewed(t *testing.T) { //nolint:paralleltest // it compares times
	few, many := time.Duration(0), time.Hour
	for range 5 {
		few, many = max(few, reviewed(t, 2500)), min(many, reviewed(t, 40_000))
		if many < 100*few {
			return
		}
	}
	require.FailNow(t, "too slow", "%s for 2,500, %s for 40,000", few, many)
}
