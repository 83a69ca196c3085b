package send

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// TestSplitRefused expects that a conflict removes only its dataset and the dependents from the plan.
func TestSplitRefused(t *testing.T) {
	t.Parallel()
	p := &plan.Plan{
		Datasets: []*plan.Dataset{
			{Source: "t"}, {Source: "t/a"}, {Source: "t/a/b", Needs: []string{"t/a"}}, {Source: "t/a/b/c", Needs: []string{"t/a/b"}}, {Source: "t/z"},
		},
		Conflicts: plan.Conflicts{{ID: plan.Diverged, Source: "t/a", Summary: "diverged", Remedy: "do this"}, {ID: plan.NameTaken, Source: "t/a", Summary: "another"}},
	}
	refused := splitRefused(p, nil)
	require.Empty(t, p.Conflicts)
	require.Equal(t, []*plan.Dataset{{Source: "t"}, {Source: "t/z"}}, p.Datasets)
	require.Len(t, refused, 3)
	require.Equal(t, fault.Refused, fault.ClassOf(refused[0].Err))
	require.Equal(t, "do this", fault.HintOf(refused[0].Err))
	require.ErrorAs(t, refused[1].Err, new(*skippedError))
	require.ErrorContains(t, refused[2].Err, "it needs t/a/b")
}

// TestDependentsShareOutcome expects that a dependent gets the outcome of the dataset that it
// needs: resumable or failed.
func TestDependentsShareOutcome(t *testing.T) {
	t.Parallel()
	for class, why := range map[fault.Class]error{fault.Interrupted: tcp.ErrConnectionLost, fault.Failed: &zfs.Error{Kind: zfs.NoSpace, Op: zfs.OpReceive}} {
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
		w.Before = jobtest.FailOn("receive", why)
		res, err := RunBatch(t.Context(), batch(t, w, nil), hosts.New(w), Quiet{})
		require.NoError(t, err)
		require.Len(t, res.Datasets, 2)
		for _, d := range res.Datasets {
			require.Equal(t, class, fault.ClassOf(d.Err), "%s: %v", d.Source, d.Err)
		}
		require.ErrorAs(t, res.Datasets[1].Err, new(*skippedError))
	}
}

func TestWhole(t *testing.T) {
	t.Parallel()
	require.True(t, concernsRequest(&plan.Plan{Conflicts: plan.Conflicts{{ID: plan.BadProperty}}}))
	require.False(t, concernsRequest(&plan.Plan{Conflicts: plan.Conflicts{{ID: plan.NoSnapshot}}}), "a root without a snapshot counts like other datasets")
	require.False(t, concernsRequest(&plan.Plan{Datasets: []*plan.Dataset{{}}, Conflicts: plan.Conflicts{{ID: plan.NameTaken}}}))
}

func TestPartial(t *testing.T) {
	t.Parallel()
	l := &zfs.Listing{Datasets: []*zfs.Dataset{
		{Name: "a"},
		{Name: "b", Properties: map[string]zfs.Property{"receive_resume_token": {Value: "1-no-token"}}},
	}}
	require.Empty(t, NeededByResume(l), "an invalid token needs no snapshot")
}

// TestHintToSkipCheck expects a hint to skip a failed check only from a command that can.
func TestHintToSkipCheck(t *testing.T) {
	t.Parallel()
	for all, want := range map[bool]string{false: "mend it\n{{skip-check space}} skips this check", true: "mend it"} {
		j := New(Request{AllChecks: all}, hosts.New(nil), Quiet{})
		j.Report.Plan, j.Report.Findings = &plan.Plan{}, []finding.Finding{{ID: "space", Severity: finding.Fail, Summary: "full", Remedy: "mend it"}}
		require.Equal(t, want, fault.HintOf(j.admit()))
	}
}
