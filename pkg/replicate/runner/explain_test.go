package runner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
)

// encryptedReplica returns a job that has sent an encrypted dataset, src/a, once.
func encryptedReplica(t *testing.T) *replica {
	t.Helper()
	r := newReplica(t, adopting())
	r.encrypt("src/a")
	r.snapshot("src", "s1")
	r.snapshot("src/a", "s1")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run)
	return r
}

// A changed key of a copy is reported at the next incremental send, however many runs had nothing
// to send.
func TestKeyChangedWhileNothingWasSent(t *testing.T) {
	t.Parallel()
	r := encryptedReplica(t)
	r.Set("dst/copy/a", "encryptionroot", "dst/copy") // zfs change-key -i
	for range 2 {
		r.now += 10
		run, _ := r.run(t)
		require.Equal(t, outcome.UpToDate, run.Outcome)
	}
	r.now += 10
	r.snapshot("src/a", "s2")
	run, _ := r.run(t)
	require.Len(t, run.Targets[0].Datasets, 1)
	refused := run.Targets[0].Datasets[0]
	require.Equal(t, string(plan.KeyChanged), refused.Conflict)
	require.Contains(t, refused.Error, "from dst/copy/a to dst/copy")
	require.Contains(t, refused.Hint, "zfs rename dst/copy/a")
	require.Len(t, r.Versions("dst/copy/a"), 1)

	r.rename("dst/copy/a", "dst/a-old") // as the hint says
	r.now += 10
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run.Targets[0])
	require.Len(t, r.Versions("dst/copy/a"), 2)
}

// An encryption root has a dataset's name. Renaming the copies and the job changes no key.
func TestRenamedCopiesKeepTheirKeys(t *testing.T) {
	t.Parallel()
	r := encryptedReplica(t)
	for _, n := range []string{"dst/copy/a", "dst/copy"} {
		r.rename(n, "dst/new"+n[len("dst/copy"):])
	}
	r.Set("dst/new/a", "encryptionroot", "dst/new/a")
	r.job.Targets[0].To = "dst/new"
	r.now += 10
	r.snapshot("src/a", "s2")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run.Targets[0])
	require.Len(t, r.Versions("dst/new/a"), 2)
}
