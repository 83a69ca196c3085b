package runner

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/restore"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
)

// rollBack runs zxfer restore --rollback of a copy's snapshot over src/a, "" for its most recent
// one.
func (r *replica) rollBack(t *testing.T, snapshot string) *send.Report {
	t.Helper()
	req := restore.Request{Send: send.Request{
		Source: endpoint.Endpoint{Name: "dst/copy/a"}, Target: endpoint.Endpoint{Name: "src/a"},
		Plan: plan.Request{Source: "dst/copy/a", Snapshot: snapshot, Target: "src/a", Rollback: true},
	}}
	rep, err := restore.Run(t.Context(), req, hosts.New(r), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, rep.Outcome)
	return rep
}

// TestJobContinuesAfterRollback rolls a job's source back to a snapshot of its copy. It expects that
// the next run sends incrementally and leaves no hold.
func TestJobContinuesAfterRollback(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]bool{"to the most recent snapshot of the copy": false, "to an older snapshot of the copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, adopting())
			r.job.Targets[0].Retention = nil
			r.take("s1")
			r.run(t)
			r.take("s2")
			r.run(t)
			r.now += 100
			r.snapshot("src/a", "auto")
			r.Write("src/a", []byte("deleted files"))
			if older {
				require.Equal(t, "zxfer send --rollback --snapshot= src/a dst/copy/a", r.rollBack(t, "s1").Diverged)
				require.Equal(t, []string{"src/a@s1", "dst/copy/a@s2"}, r.heldSnapshots(t, "src/a", "dst/copy/a"))
				r.take("s3")
				run, _ := r.run(t)
				at := slices.IndexFunc(run.Targets[0].Datasets, func(d outcome.Dataset) bool { return d.Source == "src/a" })
				require.Equal(t, plan.Diverged, run.Targets[0].Datasets[at].Conflict, "the copy is not changed without a request")
				require.Equal(t, []string{"s1", "s2"}, r.names("dst/copy/a"))
				_, err := send.Run(t.Context(), send.Request{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst/copy/a"},
					Plan: plan.Request{Source: "src/a", Target: "dst/copy/a", Rollback: true}}, hosts.New(r), send.Quiet{})
				require.NoError(t, err)
				require.Equal(t, []string{"s1", "s3"}, r.names("dst/copy/a"))
			} else {
				require.Empty(t, r.rollBack(t, "").Diverged)
				require.Equal(t, []string{"s1", "s2"}, r.names("src/a"))
			}
			for _, s := range []string{"s4", "s5"} {
				r.take(s)
				run, _ := r.run(t)
				require.Equal(t, outcome.Done, run.Outcome, "%v", run.Failures())
				for _, d := range run.Targets[0].Datasets {
					require.Zero(t, d.Full, d.Source)
				}
				require.Contains(t, r.names("dst/copy/a"), s)
				require.Equal(t, []string{"src/a@" + s, "dst/copy/a@" + s}, r.heldSnapshots(t, "src/a", "dst/copy/a"))
			}
		})
	}
}

// TestHoldsMovedByRollbackAreReleased continues with an incremental send from the rolled back
// snapshot.
func TestHoldsMovedByRollbackAreReleased(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.job.Targets[0].Retention = nil
	r.take("s1")
	r.run(t)
	r.take("s2")
	r.run(t)
	r.rollBack(t, "s1")
	// The user rolls the copy back too.
	require.NoError(t, r.Hold(t.Context(), replicate.Tag("j", "t"), []string{"dst/copy/a@s1"}))
	r.unhold("dst/copy/a@s2")
	r.destroy("dst/copy/a@s2")
	r.take("s3")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%v", run.Failures())
	require.Equal(t, []string{"src/a@s3", "dst/copy/a@s3"}, r.heldSnapshots(t, "src/a", "dst/copy/a"))
}

// TestRecentChangeGetsSnapshot expects a snapshot although "written" does not show the
// change yet.
func TestRecentChangeGetsSnapshot(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M%S", SkipUnchanged: true}})
	for range 3 { // until the records of unchanged datasets are complete
		r.run(t)
		r.now += 100
	}
	was := r.names("src/a")
	r.WriteLate("src/a", []byte("x"))
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%v", run.Failures())
	require.Len(t, r.names("src/a"), len(was)+1)
}
