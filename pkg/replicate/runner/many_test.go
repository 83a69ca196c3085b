package runner

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// reviewed returns the work of a run that reviews the plan of n datasets and records their
// results.
func reviewed(t *testing.T, n int) func() {
	j := &replicate.Job{Name: "j", Source: "src", Targets: []replicate.Target{{Name: "t", To: "dst"}}, Snapshots: replicate.Snapshots{Adopt: []string{"s*"}}}
	scope, err := j.Scope()
	require.NoError(t, err)
	v := &replicate.RunState{Job: j, Scope: scope, State: &replicate.State{Datasets: map[string]*replicate.DatasetState{}}, Root: "src", Source: &zfs.Listing{Root: "src"}}
	b := &batch{side: &side{name: "t"}, result: &job.BatchResult{}}
	p, st := &plan.Plan{}, plan.State{}
	for i := range n {
		d := &zfs.Dataset{Name: fmt.Sprintf("src/%06d", i), GUID: uint64(i + 1)}
		v.Source.Datasets = append(v.Source.Datasets, d)
		p.Datasets = append(p.Datasets, &plan.Dataset{Source: d.Name, Target: "dst" + d.Name[3:]})
		b.result.Datasets = append(b.result.Datasets, &job.DatasetResult{Dataset: outcome.Dataset{Source: d.Name, Target: "dst" + d.Name[3:]}})
	}
	v.All, st.Source = v.Source.Datasets, *v.Source
	return func() {
		v.Review(&j.Targets[0], p, &st)
		b.updateState(v, nil)
		require.Equal(t, uint64(n), v.State.Datasets[fmt.Sprintf("src/%06d", n-1)].GUID)
	}
}

// TestManyDatasetsAreReviewed checks that a run does not search all datasets for each one.
func TestManyDatasetsAreReviewed(t *testing.T) { //nolint:paralleltest // it measures processor time
	testenv.Linear(t, 1000, func(n int) func() { return reviewed(t, n) })
}
