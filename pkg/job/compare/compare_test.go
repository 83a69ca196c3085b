package compare

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": nil, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	for _, d := range []string{"src/a", "src/a/b"} {
		w.Memory.Write(d, make([]byte, 1000))
	}
	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"src/a@y", "src/a/b@y"}))
	w.Changes = nil
	compare := func(change func(*Request)) (*Report, error) {
		req := Request{A: endpoint.Endpoint{Name: "src/a"}, B: endpoint.Endpoint{Name: "dst"}, Recursive: true}
		if change != nil {
			change(&req)
		}
		return Run(t.Context(), req, hosts.New(w), send.Quiet{})
	}
	r, err := compare(nil)
	require.NoError(t, err)
	require.Equal(t, Differ, r.Outcome)
	require.Equal(t, "dst/a", r.B, "as a target of send")
	require.Equal(t, map[string]int{plan.PairNewerA: 1, plan.PairOnlyA: 1}, r.Relations)
	require.Equal(t, 2, r.Differing)
	require.NotZero(t, r.BytesA)
	require.Equal(t, r.BytesA, r.Datasets[0].A.Bytes+r.Datasets[1].A.Bytes)
	require.Zero(t, r.BytesB)

	r, err = compare(func(c *Request) { c.A.Name, c.B.Name = "dst/a", "src/a" })
	require.NoError(t, err)
	require.Equal(t, map[string]int{plan.PairNewerB: 1, plan.PairOnlyB: 1}, r.Relations)
	require.NotZero(t, r.BytesB)

	w.Memory.Copy("src/a", "dst/a", "x", "y")
	r, err = compare(func(c *Request) { c.Recursive = false })
	require.NoError(t, err)
	require.Equal(t, Equal, r.Outcome)

	// A key without permission to send gets everything except sizes.
	w.Before = jobtest.FailOn("estimate", fault.Refusef("", "not for this key"))
	r, err = compare(nil)
	require.NoError(t, err)
	require.Equal(t, Differ, r.Outcome)
	require.Zero(t, r.BytesA)
	require.Equal(t, []string{"the size to send from src/a is unknown: not for this key"}, r.Notes)
	w.Before = jobtest.FailOn("list", errors.New("broken"))
	r, err = compare(nil)
	require.ErrorContains(t, err, "broken")
	require.Equal(t, fault.Failed, fault.ClassOf(err))
	require.Equal(t, "failed", r.Outcome)
	w.Before = nil

	for _, name := range []string{"dst/none", "none/a"} {
		r, err = compare(func(c *Request) { c.B.Name = name })
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.Equal(t, "refused", r.Outcome)
		require.NotEmpty(t, r.Hint)
	}
	require.Empty(t, w.Changes)
}
