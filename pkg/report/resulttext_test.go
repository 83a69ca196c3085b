package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
	"zxfer/pkg/outcome"
)

// A restore with only its last stage left was not up to date.
func TestSummaryOfWhatWasOnlyHandedOver(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a -> b: no data was left to send, and what else was left is done\n", summary(&job.Report{Source: "a", Target: "b", Conclusion: outcome.Conclusion{Outcome: "done"}}))
}
