package runner

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// relay is the job "j" that sends src to dst/copy, and the job "relay" that sends dst/copy to far/copy.
type relay struct {
	*replica          // job j, from A to B
	on       *replica // job relay, from B to C
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	a := newReplica(t, adopting())
	a.job.Targets[0].SentOnBy = []string{"relay"}
	a.Create("far", nil)
	b := &replica{Host: a.Host, t: t, dir: t.TempDir(), job: &replicate.Job{
		Name: "relay", Source: "dst/copy", Recursive: true, Parallel: 1, Snapshots: replicate.Snapshots{ReceivedFrom: "j:t"},
		Targets: []replicate.Target{{Name: "c", To: "far/copy"}},
	}}
	return &relay{a, b}
}

// first runs job j. then runs job relay.
func (r *relay) first(t *testing.T) *statedir.Run {
	t.Helper()
	r.now += 10
	run, _ := r.run(t)
	return run
}

func (r *relay) then(t *testing.T) *statedir.Run {
	t.Helper()
	r.now += 10
	r.on.now = r.now
	run, _ := r.on.run(t)
	return run
}

// both takes a snapshot and runs both jobs, which must succeed.
func (r *relay) both(t *testing.T, snapshot string) {
	t.Helper()
	r.takeAll(snapshot)
	for _, run := range []*statedir.Run{r.first(t), r.then(t)} {
		require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
		require.Empty(t, run.Notes)
	}
}

// TestRelay sends snapshots from A to B to C, and expects the same GUIDs and the holds of both jobs.
func TestRelay(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	for i := range 5 {
		r.both(t, fmt.Sprint("s", i))
	}
	for _, d := range []string{"", "/a"} {
		require.Equal(t, []string{"s3", "s4"}, r.names("dst/copy"+d))
		require.Equal(t, []string{"s0", "s1", "s2", "s3", "s4"}, r.names("far/copy"+d))
		require.Equal(t, []string{"zxfer:j:t", "zxfer:relay:c"}, r.held("dst/copy"+d+"@s4"))
		require.Empty(t, r.held("dst/copy"+d+"@s3"))
		require.Equal(t, []string{"zxfer:relay:c"}, r.held("far/copy"+d+"@s4"))
		require.Equal(t, []string{"zxfer:relay:s4"}, r.names("dst/copy"+d, zfs.Bookmark))
		source, last := r.Versions("src"+d), r.Versions("far/copy"+d)
		require.Equal(t, source[len(source)-1].GUID, last[len(last)-1].GUID)
	}
}

// TestRelayRetentionKeepsUnsent makes C unreachable for several runs. It expects the retention of job j
// to keep what the relay has not sent, and to destroy it after it was sent.
func TestRelayRetentionKeepsUnsent(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	limit := 2
	r.job.PruneLimit = &limit // the snapshots that were kept for the relay do not count as unexpected
	r.both(t, "s0")
	r.away = "far"
	for i := 1; i < 8; i++ {
		r.takeAll(fmt.Sprint("s", i))
		run := r.first(t)
		require.Equal(t, outcome.Done, run.Outcome)
		require.Equal(t, i > 2, len(run.Notes) > 0, run.Notes)
		require.NotEmpty(t, r.then(t).Targets[0].Error)
	}
	require.Equal(t, []string{"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"}, r.names("dst/copy"))
	r.takeAll("s8")
	p, err := r.runner(t).Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.Equal(t, "t", p.Prunings[len(p.Prunings)-1].Side)
	require.Equal(t, "job relay has not sent it on", p.Prunings[len(p.Prunings)-1].KeepReasons["dst/copy@s3"].String())
	r.away = ""
	r.takeAll("s9")
	r.first(t)
	require.Equal(t, outcome.Done, r.then(t).Outcome)
	require.Equal(t, []string{"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"}, r.names("far/copy"))
	r.both(t, "s10")
	require.Equal(t, []string{"s9", "s10"}, r.names("dst/copy"))
}

// TestRelayKeepsUnsentDataset deletes a dataset on A. It expects that its copy on B is kept until the relay has
// sent it, and that the relay's hold keeps it afterwards.
func TestRelayKeepsUnsentDataset(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.job.Targets[0].Retention, r.job.Targets[0].Mirror = nil, &replicate.Mirror{Gone: calendar.Grace(time.Hour)}
	r.takeAll("s1")
	r.first(t)
	r.Edit(func(all map[string]*zfs.Dataset) { delete(all, "src/a") })
	hours := func() {
		for range 6 {
			r.now += 3600
			r.first(t)
		}
	}
	hours()
	require.Contains(t, r.datasets("dst"), "dst/copy/a")
	all, err := r.runner(t).Prune(t.Context(), r.job, true, false)
	require.NoError(t, err)
	require.Equal(t, "@s1 is kept: job relay has not sent it on", all[len(all)-1].KeepReasons["dst/copy/a"].String())
	require.Equal(t, outcome.Done, r.then(t).Outcome)
	hours()
	require.Contains(t, r.datasets("dst"), "dst/copy/a")
	require.Contains(t, r.first(t).Notes, "t: deleted on the source: dst/copy/a is kept: @s1 is held (zxfer:relay:c)")
}

// TestRelayWithoutSentOnBy expects that without sent_on_by, retention destroys snapshots that the relay
// has not sent, but not its incremental source.
func TestRelayWithoutSentOnBy(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.job.Targets[0].SentOnBy = nil
	r.both(t, "s0")
	for i := 1; i < 8; i++ {
		r.takeAll(fmt.Sprint("s", i))
		require.Equal(t, outcome.Done, r.first(t).Outcome)
	}
	require.Equal(t, []string{"s0", "s6", "s7"}, r.names("dst/copy"))
	r.both(t, "s8")
	require.Equal(t, []string{"s0", "s7", "s8"}, r.names("far/copy"), "an increment")
}

// TestRelaySendsOnlyConfirmed expects that a foreign snapshot of B is not sent on, and that job j reports
// it. After it was destroyed, both continue.
func TestRelaySendsOnlyConfirmed(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.both(t, "s0")
	r.snapshot("dst/copy", "forged")
	run := r.then(t)
	require.NotEqual(t, outcome.Failed, run.Outcome)
	require.Contains(t, fmt.Sprint(run.Notes), "1 snapshot of dst/copy after @s0: not sent, because j:t has not confirmed it")
	require.Equal(t, []string{"s0"}, r.names("far/copy"))
	r.takeAll("s1")
	require.Equal(t, outcome.Refused, r.first(t).Targets[0].Outcome, "job j reports the divergence")
	run = r.then(t)
	require.Contains(t, fmt.Sprint(run.Notes), "not sent")
	require.Equal(t, []string{"s0"}, r.names("far/copy"))
	require.Equal(t, []string{"s0", "s1"}, r.names("far/copy/a"), "others continue")
	r.destroy("dst/copy@forged")
	r.both(t, "s2")
	require.Equal(t, []string{"s0", "s1", "s2"}, r.names("far/copy"))
}

// TestRelayDuringReceive kills job j after a receive. The relay does not send the unconfirmed snapshot.
// Job j then confirms it without sending anything, which the relay must notice.
func TestRelayDuringReceive(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.both(t, "s0")
	r.then(t)
	r.then(t) // nothing is due
	none := 0
	r.job.Retries = &none
	r.takeAll("s1")
	for at := 1; len(r.names("dst/copy")) == 1; at++ {
		require.True(t, r.runKilled(t, at, true))
	}
	for range 3 {
		run := r.then(t)
		require.Contains(t, fmt.Sprint(run.Notes), "not sent")
		require.Zero(t, run.Targets[0].Failed)
	}
	require.Equal(t, []string{"s0"}, r.names("far/copy"))
	require.Equal(t, outcome.Done, r.first(t).Outcome)
	require.Equal(t, outcome.Done, r.then(t).Outcome)
	require.Equal(t, []string{"s0", "s1"}, r.names("far/copy"))
}

// TestRelayFirstReceive expects that the relay waits while the first receive of its source is incomplete,
// and refuses if nothing was ever confirmed.
func TestRelayFirstReceive(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	none := 0
	r.job.Retries, r.job.Holds = &none, "source"
	r.takeAll("s0")
	r.Create("dst/copy", map[string]string{"inconsistent": "1"})
	run := r.then(t)
	require.NotContains(t, []string{outcome.Failed, outcome.Refused}, run.Outcome, run.FirstError())
	require.Contains(t, fmt.Sprint(run.Notes), "its first receive has not ended")
	r.Edit(func(all map[string]*zfs.Dataset) { delete(all, "dst/copy") })
	require.Equal(t, outcome.Done, r.first(t).Outcome)
	run = r.then(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Contains(t, run.Error, "no snapshot has the hold zxfer:j:t")
	require.NotEmpty(t, run.Hint)
	r.job.Holds = ""
	require.Equal(t, outcome.UpToDate, r.first(t).Outcome)
	require.Equal(t, outcome.Done, r.then(t).Outcome)
	require.Equal(t, []string{"s0"}, r.names("far/copy/a"))
}

// TestRelayReplacedCopy expects that C keeps its copy when the copy on B diverged and was replaced: the
// snapshots of the new copy have the same GUIDs.
func TestRelayReplacedCopy(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.job.Targets[0].OnDivergence = "rotate"
	r.both(t, "s0")
	var was uint64
	r.Edit(func(all map[string]*zfs.Dataset) { was = all["far/copy"].GUID })
	r.snapshot("dst/copy", "forged")
	r.takeAll("s1")
	require.Equal(t, outcome.Done, r.first(t).Outcome)
	require.Len(t, r.stateDiverged(t), 1)
	run := r.then(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, []string{"s0", "s1"}, r.names("far/copy"))
	r.both(t, "s2")
	r.Edit(func(all map[string]*zfs.Dataset) { require.Equal(t, was, all["far/copy"].GUID) })
}

func (r *replica) stateDiverged(t *testing.T) []replicate.DivergedCopy {
	t.Helper()
	st, err := statedir.Peek(r.dir, r.job.Name).State()
	require.NoError(t, err)
	return st.Diverged
}

// TestRelayRolledBack expects that C keeps its copy if the copy on B was rolled back behind it.
func TestRelayRolledBack(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.both(t, "s0")
	r.both(t, "s1")
	for _, v := range []string{"dst/copy@s1"} {
		for _, tag := range []string{"zxfer:j:t", "zxfer:relay:c"} {
			require.NoError(t, r.Release(t.Context(), tag, []string{v}))
		}
		r.destroy(v)
	}
	r.destroy("dst/copy#zxfer:relay:s1")
	require.NoError(t, r.Hold(t.Context(), "zxfer:j:t", []string{"dst/copy@s0"}))
	before := r.names("far/copy")
	run := r.then(t)
	require.NotEqual(t, outcome.Done, run.Targets[0].Outcome)
	require.Equal(t, before, r.names("far/copy"))
	require.Equal(t, outcome.Done, r.first(t).Outcome, "job j sends s1 again")
	require.NotEqual(t, outcome.Failed, r.then(t).Outcome)
	r.both(t, "s2")
	require.Equal(t, []string{"s0", "s1", "s2"}, r.names("far/copy"))
}

// TestRelayKilled kills the relay at each operation, or at some below the long level, and expects the next runs to continue with increments.
func TestRelayKilled(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for at := 1; ; at += testenv.Rounds(3, 2, 1) {
			r := newRelay(t)
			none := 0
			r.on.job.Retries = &none
			r.both(t, "s0")
			r.takeAll("s1")
			r.first(t)
			r.on.now = r.now
			if !r.on.runKilled(t, at, after) {
				require.Greater(t, at, 10)
				break
			}
			for i := 2; i < 6; i++ {
				r.takeAll(fmt.Sprint("s", i))
				require.Equal(t, outcome.Done, r.first(t).Outcome)
			}
			require.Equal(t, outcome.Done, r.then(t).Outcome)
			require.Equal(t, []string{"s0", "s1", "s2", "s3", "s4", "s5"}, r.names("far/copy"), "operation %d", at)
		}
	}
}

// TestNoSnapshotsOfCopies refuses a job that would take snapshots of a copy, unless nothing is received
// into it any more.
func TestNoSnapshotsOfCopies(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.both(t, "s0")
	r.on.job.Snapshots = replicate.Snapshots{Take: "x%Y%m%d-%H%M"}
	run := r.then(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Contains(t, run.Error, "is a copy that zxfer received")
	require.Contains(t, run.Hint, "received_from")
	p, err := r.on.runner(t).Preview(t.Context(), r.on.job)
	require.NoError(t, err)
	require.Contains(t, p.Error, "is a copy that zxfer received")
	require.Equal(t, []string{"s0"}, r.names("dst/copy"))
	for _, d := range r.datasets("dst") {
		r.Set(d, zfs.RestoreProperty, "on")
	}
	run = r.then(t)
	require.Equal(t, outcome.Failed, run.Outcome)
	require.Contains(t, run.Error, "a restore of dst/copy is running", "it ends as a writable dataset, so it is not refused as a copy")
	for _, d := range r.datasets("dst") {
		r.Edit(func(all map[string]*zfs.Dataset) {
			delete(all[d].Properties, zfs.FlagsProperty)
			delete(all[d].Properties, zfs.RestoreProperty)
		})
	}
	require.Equal(t, outcome.Done, r.then(t).Outcome)
	require.Len(t, r.names("dst/copy"), 2)
}

// TestRelayHoldsFail expects that the run fails if the holds of the source cannot be read.
func TestRelayHoldsFail(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.both(t, "s0")
	r.takeAll("s1")
	r.first(t)
	r.before = func(op string, _ []string) error {
		if op == "holds" {
			return fault.Failf("", "no")
		}
		return nil
	}
	require.Equal(t, outcome.Failed, r.then(t).Outcome)
	require.Equal(t, []string{"s0"}, r.names("far/copy"))
}

// TestRelayLost loses B. Job j then sends to C directly, by increments.
func TestRelayLost(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.both(t, "s0")
	r.both(t, "s1")
	var was uint64
	r.Edit(func(all map[string]*zfs.Dataset) { was = all["far/copy"].GUID })
	r.away = "dst"
	r.job.Targets[0].To, r.job.Targets[0].SentOnBy = "far/copy", nil
	r.takeAll("s2")
	run := r.first(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Contains(t, r.names("far/copy"), "s2")
	r.Edit(func(all map[string]*zfs.Dataset) { require.Equal(t, was, all["far/copy"].GUID) })
}

// TestRelayFollowsRenames renames a dataset on A. Both jobs rename their copies.
func TestRelayFollowsRenames(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.job.Targets[0].OnRename, r.on.job.Targets[0].OnRename = "follow", "follow"
	r.both(t, "s0")
	was := r.Get("far/copy/a", "guid")
	r.renameTree("src/a", "src/c")
	r.both(t, "s1")
	require.Equal(t, was, r.Get("far/copy/c", "guid"))
	require.Equal(t, []string{"far", "far/copy", "far/copy/c"}, r.datasets("far"))
	require.Equal(t, []string{"s0", "s1"}, r.names("far/copy/c"))
}
