package runner

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
)

// TestDiskReplacedCopyKilled kills a run that replaces the diverged copy on a disk, at each operation. It expects
// that the next run recognizes the disk, although its root dataset is another one.
func TestDiskReplacedCopyKilled(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		r := newDisks(t, func(text string) string {
			return strings.Replace(text, "[job.target.disk]", "on_divergence = \"rotate\"\n[job.target.disk]", 1)
		})
		none := 0
		r.job.Retries = &none
		r.Attach(blueGUID, true)
		_, err := r.try(t)
		require.NoError(t, err)
		require.NoError(t, r.Import(blueGUID))
		for _, v := range r.names("offsite/copy") {
			require.NoError(t, r.Release(t.Context(), "zxfer:j:offsite-blue", []string{"offsite/copy@" + v}))
			r.destroy("offsite/copy@" + v)
		}
		r.snapshot("offsite/copy", "diverged")
		r.now += 3600
		if !r.runKilled(t, at, true) {
			return
		}
		run, err := r.try(t)
		require.NoError(t, err, "operation %d", at)
		require.Equal(t, outcome.Done, run.Targets[0].Outcome, "operation %d", at)
	}
}
