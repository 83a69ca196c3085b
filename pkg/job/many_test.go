package job

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// TestManyDatasetsAreChecked checks n datasets that arrived.
func TestManyDatasetsAreChecked(t *testing.T) { //nolint:paralleltest // it measures processor time
	testenv.Linear(t, 1000, func(n int) func() {
		at := hosts.New(nil)
		s := newSendJob(Send{Source: endpoint.Endpoint{Name: "src"}, Target: endpoint.Endpoint{Name: "dst"}}, at, silent{})
		s.target = end{Conn: at.Get("", &transport.Settings{})}
		s.report.Plan = &plan.Plan{}
		var there zfs.Listing
		for i := range n {
			arrive := zfs.Version{Kind: zfs.Snapshot, Name: "x", GUID: uint64(i + 1)}
			d := &plan.Dataset{Source: fmt.Sprintf("src/%06d", i), Target: fmt.Sprintf("dst/%06d", i), Arrive: arrive}
			s.report.Plan.Datasets = append(s.report.Plan.Datasets, d)
			s.report.Results = append(s.report.Results, &StepResult{Source: d.Source, Bytes: 5, Seconds: 1})
			there.Datasets = append(there.Datasets, &zfs.Dataset{Name: d.Target, Versions: []zfs.Version{arrive}})
		}
		results := expectedResults(s.report.Plan)
		return func() {
			require.NoError(t, s.check(results, &there, nil))
			last := results[n-1]
			require.Equal(t, []any{"x", uint64(5), 1.0}, []any{last.There, last.Bytes, last.Seconds})
		}
	})
}
