package send

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/plan"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

func TestUnexpectedDatasets(t *testing.T) {
	t.Parallel()
	list := func(names string) *zfs.Listing {
		l := &zfs.Listing{Root: "vault/a"}
		for _, n := range strings.Fields(names) {
			l.Datasets = append(l.Datasets, &zfs.Dataset{Name: n, Versions: make([]zfs.Version, 1)})
		}
		return l
	}
	for _, tt := range []struct{ why, before, planned, after, want string }{
		{"as planned", "", "vault/a vault/a/b", "vault/a vault/a/b", ""},
		{"parents", "vault/a", "vault/a/b/c/d", "vault/a vault/a/b vault/a/b/c vault/a/b/c/d", ""},
		{"existing", "vault/a vault/a/old", "vault/a", "vault/a vault/a/old", ""},
		{"a child", "vault/a", "vault/a", "vault/a vault/a/evil", "vault/a/evil"},
		{"below a new dataset", "", "vault/a vault/a/b", "vault/a vault/a/b vault/a/b/x vault/a/b0", "vault/a/b/x vault/a/b0"},
	} {
		p := &plan.Plan{}
		for _, n := range strings.Fields(tt.planned) {
			p.Datasets = append(p.Datasets, &plan.Dataset{Target: n})
		}
		created := list("vault/a/created")
		created.Datasets[0].Versions = nil
		require.Empty(t, unexpectedDatasets(p, list(""), created))
		require.Equal(t, tt.want, strings.Join(unexpectedDatasets(p, list(tt.before), list(tt.after)), " "), tt.why)
	}
}

// TestOnlyNeededArrivalsAreReported expects one query of a received dataset: by the target if it is the only one
// of a send, otherwise by the verification of all. A batch lists the target anyway.
func TestOnlyNeededArrivalsAreReported(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
	queries := 0
	w.Before = func(op string) error {
		if op == zfs.OpGet+" dst/a" {
			queries++
		}
		return nil
	}
	for i, tt := range []struct {
		why  string
		want int
		run  func(Request) error
	}{
		{"two datasets", 1, func(s Request) error { _, err := Run(t.Context(), s, hosts.New(w), Quiet{}); return err }},
		{"one of two datasets", 1, func(s Request) error { _, err := Run(t.Context(), s, hosts.New(w), Quiet{}); return err }},
		{"one dataset", 1, func(s Request) error {
			s.Plan.Recursive = false
			_, err := Run(t.Context(), s, hosts.New(w), Quiet{})
			return err
		}},
		{"batch", 0, func(s Request) error {
			s.Plan.Recursive = false
			l, err := w.List(t.Context(), hosts.ListQuery{Dataset: "src/a", Versions: true})
			require.NoError(t, err)
			_, err = RunBatch(t.Context(), Batch{Request: s, Survey: l}, hosts.New(w), Quiet{})
			return err
		}},
	} {
		queries = 0
		require.NoError(t, w.Memory.Snapshot(t.Context(), []string{fmt.Sprint("src/a@", i)}))
		require.NoError(t, tt.run(sendRequest(nil)))
		require.Equal(t, tt.want, queries, tt.why)
		require.Len(t, w.Memory.Versions("dst/a"), i+2, tt.why)
	}
}

// TestVerifyTimeIsLinear expects that the time to verify n datasets is linear.
func TestVerifyTimeIsLinear(t *testing.T) { //nolint:paralleltest // it measures processor time

	testenv.Linear(t, 1000, func(n int) func() {
		at := hosts.New(nil)
		s := New(Request{Source: endpoint.Endpoint{Name: "src"}, Target: endpoint.Endpoint{Name: "dst"}}, at, Quiet{})
		s.Ends.Target = ends.End{Conn: at.Get("", &transport.Settings{})}
		s.Report.Plan = &plan.Plan{}
		var there zfs.Listing
		for i := range n {
			arrive := zfs.Version{Kind: zfs.Snapshot, Name: "x", GUID: uint64(i + 1)}
			d := &plan.Dataset{Source: fmt.Sprintf("src/%06d", i), Target: fmt.Sprintf("dst/%06d", i), Final: arrive}
			s.Report.Plan.Datasets = append(s.Report.Plan.Datasets, d)
			s.Report.Results = append(s.Report.Results, &StepResult{Source: d.Source, Bytes: 5, Speed: connect.Speed{Seconds: 1}})
			there.Datasets = append(there.Datasets, &zfs.Dataset{Name: d.Target, Versions: []zfs.Version{arrive}})
		}
		results := expectedResults(s.Report.Plan)
		return func() {
			require.NoError(t, s.fillResults(results, &there, nil))
			last := results[n-1]
			require.Equal(t, []any{"x", uint64(5), 1.0}, []any{last.NameOnTarget, last.Bytes, last.Seconds})
		}
	})
}
