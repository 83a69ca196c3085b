package send

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/zfs"
)

// TestBatchDoesNotChangeSurvey expects that several batches may share a survey, so a batch does
// not change it.
func TestBatchDoesNotChangeSurvey(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	b := batch(t, w, func(s *Request) { s.Plan.CarryNamed = []string{"org.example:note"} })
	w.Memory.Set("src/a", "org.example:note", "yes")
	before := maps.Clone(b.Survey.Datasets[0].Properties)
	res, err := RunBatch(t.Context(), b, hosts.New(w), Quiet{})
	require.NoError(t, err)
	require.NoError(t, res.Datasets[0].Err)
	require.Equal(t, "yes", res.Report.Plan.Datasets[0].Steps[0].Receive.Set["org.example:note"])
	require.Equal(t, before, b.Survey.Datasets[0].Properties)
}

// TestBatchEstimatesDatasetsSeparately expects that a dataset whose snapshot disappeared does not stop
// the others.
func TestBatchEstimatesDatasetsSeparately(t *testing.T) {
	t.Parallel()
	gone := &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpEstimate, Subject: "src/a/b@x"}
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "src/a/c": {"x"}, "dst": nil})
	estimate, receive := jobtest.FailOn("estimate src/a/b", gone), jobtest.FailOn("receive dst/a/b", gone)
	w.Before = func(op string) error { return cmp.Or(estimate(op), receive(op)) }
	res, err := RunBatch(t.Context(), batch(t, w, nil), hosts.New(w), Quiet{})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"receive dst/a@x", "receive dst/a/c@x"}, w.Changes)
	for _, d := range res.Datasets {
		if d.Source == "src/a/b" {
			require.ErrorIs(t, d.Err, gone)
		} else {
			require.NoError(t, d.Err)
		}
	}

	w.Before = jobtest.FailOn("estimate", errors.New("the host is gone"))
	_, err = RunBatch(t.Context(), batch(t, w, nil), hosts.New(w), Quiet{})
	require.Error(t, err, "an unreachable source")
}

// TestBatchRetriesFinalSurvey expects that if the connection is lost after all data
// arrived, the datasets do not fail.
func TestBatchRetriesFinalSurvey(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{1, 3, 9} {
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
		b := batch(t, w, func(s *Request) { s.Retries = 2 })
		w.Before = func(op string) error {
			if !strings.HasPrefix(op, "list") || len(w.Changes) == 0 || lost == 0 {
				return nil
			}
			lost--
			return fmt.Errorf("beta: %w", hosts.ErrLost)
		}
		res, err := RunBatch(t.Context(), b, hosts.New(w), Quiet{})
		require.Equal(t, []string{"receive dst/a@x"}, w.Changes)
		if lost > 0 {
			require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
			require.Equal(t, "dst/a", res.Target.Root, "only the earlier listing is known")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "x", res.Datasets[0].NameOnTarget)
	}
}
