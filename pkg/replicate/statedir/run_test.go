package statedir

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
)

// TestConcludeStoppedRun expects that a stop makes failures interruptions, but not earlier
// failures and refusals.
func TestConcludeStoppedRun(t *testing.T) {
	t.Parallel()
	for dataset, want := range map[string]string{
		outcome.Done: outcome.Interrupted, outcome.Interrupted: outcome.Interrupted, outcome.Refused: outcome.Refused, outcome.Failed: outcome.Failed,
	} {
		r := &Run{Targets: []*TargetRun{{Outcome: outcome.Failed, Datasets: []outcome.Dataset{{Outcome: dataset}}}}}
		r.Conclude(time.Now(), nil, true)
		require.Equal(t, want, r.Outcome)
	}
}
