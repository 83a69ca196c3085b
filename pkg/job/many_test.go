package job

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/way"
	"zxfer/pkg/zfs"
)

// manyArrived checks n datasets that arrived, and tells how long that took.
func manyArrived(t *testing.T, n int) time.Duration {
	t.Helper()
	at := hosts.New(nil)
	s := newSending(Send{Source: endpoint.Endpoint{Name: "src"}, Target: endpoint.Endpoint{Name: "dst"}}, at, silent{})
	s.target = end{Host: at.At("", &way.Way{})}
	s.report.Plan = &plan.Plan{}
	var there zfs.Listing
	for i := range n {
		arrive := zfs.Version{Kind: zfs.Snapshot, Name: "x", GUID: uint64(i + 1)}
		d := &plan.Dataset{Source: fmt.Sprintf("src/%06d", i), Target: fmt.Sprintf("dst/%06d", i), Arrive: arrive}
		s.report.Plan.Datasets = append(s.report.Plan.Datasets, d)
		s.report.Results = append(s.report.Results, &StepResult{Source: d.Source, Bytes: 5, Seconds: 1})
		there.Datasets = append(there.Datasets, &zfs.Dataset{Name: d.Target, Versions: []zfs.Version{arrive}})
	}
	results := promised(s.report.Plan)
	began := time.Now()
	err := s.check(results, &there, nil)
	took := time.Since(began)
	require.NoError(t, err)
	for _, r := range results {
		require.Equal(t, []any{"x", uint64(5), 1.0}, []any{r.There, r.Bytes, r.Seconds})
	}
	return took
}

// What arrived is not looked for among all: 16 times as many datasets take about 16
// times as long, not 256. A busy machine may hold up one try, not each.
func TestManyDatasetsAreChecked(t *testing.T) { //nolint:paralleltest // it compares times
	few, many := time.Duration(0), time.Hour
	for range 5 {
		few, many = max(few, manyArrived(t, 2500)), min(many, manyArrived(t, 40_000))
		if many < 100*few {
			return
		}
	}
	require.FailNow(t, "too slow", "%s for 2,500, %s for 40,000", few, many)
}
