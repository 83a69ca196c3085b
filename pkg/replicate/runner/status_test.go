package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

func TestTag(t *testing.T) {
	t.Parallel()
	job, ours := replicate.JobOfTag(replicate.Tag("home", "near"))
	require.True(t, ours)
	require.Equal(t, "home", job)
	for _, other := range []string{"keep", "zxfer:", "zxfer:home", "zrepl_last_received_J_home"} {
		_, ours := replicate.JobOfTag(other)
		require.False(t, ours, other)
	}
}

// TestStatusOfDamagedPools expects that the record lists pools with data errors, and that status
// names the command that repairs them until they are repaired. For an unreachable target, the
// previous errors remain, and the state is older.
func TestStatusOfDamagedPools(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M", SkipUnchanged: true}})
	r.Damaged = zfs.Damage{Objects: []zfs.DamagedObject{{Dataset: "dst/copy", Path: "/f", Shown: "/dst/copy/f"}, {Dataset: "dst/other", Shown: "dst/other:<0x1>"}}}
	_, err := r.runner(t).Run(t.Context(), r.job, false)
	require.NoError(t, err)
	checked, unknown := time.Unix(r.now, 0).UTC(), ""
	damaged := func() {
		t.Helper()
		st := r.status(t)
		require.Equal(t, status.Damaged, st.State)
		require.Len(t, st.Problems, 1)
		require.Equal(t, []string{"t"}, st.Problems[0].To)
		require.Contains(t, st.Problems[0].Error, "pool dst has data errors")
		require.Contains(t, st.Problems[0].Error, "2 data errors")
		require.Contains(t, st.Problems[0].Error, "; a copy can repair them")
		require.Equal(t, "to repair them from src: zxfer heal --job j", st.Problems[0].Hint)
		require.Len(t, st.Pools, 2)
		require.Equal(t, &status.PoolStatus{Pool: "src", State: status.OK, Checked: time.Unix(r.now, 0).UTC()}, st.Pools[0])
		require.Equal(t, &status.PoolStatus{To: "t", Pool: "dst", State: status.Damaged, Checked: checked, Unknown: unknown, Errors: 2, Repair: heal.RepairFull, Copies: []string{"src"}}, st.Pools[1])
		text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
		require.NoError(t, err)
		require.Contains(t, string(text), `zxfer_replicate_pool_data_errors{job="j",target="t",pool="dst"} 2`)
		require.Contains(t, string(text), `zxfer_replicate_pool_repairable{job="j",target="t",pool="dst"} 1`)
		require.Contains(t, string(text), fmt.Sprintf(`zxfer_replicate_pool_checked_seconds{job="j",target="t",pool="dst"} %d`, checked.Unix()))
	}
	damaged()
	r.before = func(op string, names []string) error {
		if op == zfs.OpStatus && names[0] == "dst" {
			return errors.New("no answer")
		}
		return nil
	}
	r.now += 60
	unknown = "no answer"
	r.run(t) // sends nothing, and gets no answer about the pool
	damaged()
	r.before = nil

	// Damage of other datasets becomes a note and does not affect this job's state.
	r.Damaged.Objects = r.Damaged.Objects[1:]
	r.now += 60
	run, _ := r.run(t)
	require.Zero(t, run.Targets[0].Sent)
	require.Equal(t, []string{"pool dst has data errors outside of dst/copy: to list them: zpool status -v dst"}, run.Notes)
	require.Equal(t, status.OK, r.status(t).State)

	// If there is nothing to send and the target had no data errors, the run does not connect to
	// it, but once a day.
	r.Damaged.Objects = []zfs.DamagedObject{{Dataset: "dst/copy", Path: "/f", Shown: "/dst/copy/f"}}
	r.now += 60
	r.run(t)
	require.Equal(t, status.OK, r.status(t).State)
	r.now += 24 * 3600
	r.run(t)
	require.Equal(t, status.Damaged, r.status(t).State)
}

// TestStatusOfUnknownPools expects that a pool whose host does not list its errors is unknown
// instead of healthy, and that the job's state does not depend on it.
func TestStatusOfUnknownPools(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(r *replica)
		want   string
	}{
		"the host does not answer": {func(r *replica) { r.fail(zfs.OpStatus, "dst", errors.New("no answer")) }, "no answer"},
		"an option in the error":   {func(r *replica) { r.fail(zfs.OpStatus, "dst", errors.New("{{trusted-link}} is missing")) }, "transfer.trusted_link = true is missing"},
		"the key is restricted":    {func(r *replica) { r.fail(zfs.OpStatus, "dst", fault.Refusef("", "the policy forbids it")) }, "the policy forbids it"},
		"the target failed":        {func(r *replica) { r.away = "dst" }, "the last run ended before it asked"},
		"the run failed":           {func(r *replica) { r.away = "src" }, "the last run ended before it asked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
			r.run(t)
			st := r.status(t)
			require.Equal(t, []string{status.OK, status.OK}, []string{st.Pools[0].State, st.Pools[1].State})
			first := st.Pools[1].Checked
			r.now += 60
			tt.change(r)
			r.run(t)
			p := r.status(t).Pools[1]
			require.Equal(t, status.Unknown, p.State)
			require.Contains(t, p.Unknown, tt.want)
			require.Equal(t, first, p.Checked)
			require.NotEqual(t, status.Damaged, r.status(t).State)
			var shown strings.Builder // each error once
			for _, p := range r.status(t).Problems {
				shown.WriteString(p.Error + "\n")
			}
			for _, p := range r.status(t).Pools {
				shown.WriteString(p.Unknown + "\n")
			}
			require.LessOrEqual(t, strings.Count(shown.String(), "no route to host"), 1, shown.String())
			text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
			require.NoError(t, err)
			require.Contains(t, string(text), fmt.Sprintf(`zxfer_replicate_pool_checked_seconds{job="j",target="t",pool="dst"} %d`, first.Unix()))
			require.NotContains(t, string(text), "zxfer_replicate_pool_repairable{")
			r.before, r.away = nil, ""
			r.now += 60
			r.run(t)
			require.Equal(t, status.OK, r.status(t).Pools[1].State)
		})
	}
}

// TestStatusAsksEachPoolOnce damages many datasets on both sides. It expects one query for each
// side, and no stream.
func TestStatusAsksEachPoolOnce(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M", SkipUnchanged: true}})
	r.run(t)
	for _, d := range []string{"src", "src/a", "dst/copy", "dst/copy/a"} {
		for _, f := range []string{"/f", "/g"} {
			r.Damaged.Objects = append(r.Damaged.Objects, zfs.DamagedObject{Dataset: d, Path: f, Shown: d + ":" + f})
		}
	}
	asked := map[string]int{}
	r.before = func(op string, names []string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		asked[op+" "+names[0]]++
		return nil
	}
	r.now += 25 * 3600
	r.run(t)
	require.Equal(t, 1, asked[zfs.OpStatus+" src"])
	require.Equal(t, 1, asked[zfs.OpStatus+" dst"])
	require.Zero(t, asked[zfs.OpSend+" src"]+asked[zfs.OpSend+" dst/copy"])
	for _, p := range r.status(t).Pools {
		require.Equal(t, []any{status.Damaged, heal.RepairUnknown}, []any{p.State, p.Repair})
		require.Contains(t, p.Why, "it is damaged")
	}
}

// TestTargetCannotBlameSource lets a target answer with errors of the source. It expects that only
// the target is damaged, and that the source's host is asked about the source.
func TestTargetCannotBlameSource(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	blaming := blamingReplica{r}
	_, err := New(r.dir, blaming, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) }).Run(t.Context(), r.job, false)
	require.NoError(t, err)
	st := r.status(t)
	require.Equal(t, []string{status.OK, status.Damaged}, []string{st.Pools[0].State, st.Pools[1].State})
	require.Len(t, st.Problems, 1)
	require.Equal(t, []string{"t"}, st.Problems[0].To)
	require.Contains(t, st.Problems[0].Error, "pool dst has data errors")
	text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
	require.NoError(t, err)
	require.NotContains(t, string(text), `zxfer_replicate_pool_data_errors{job="j",target="",`)
}

// blamingReplica is a replica whose target claims that the source is damaged.
type blamingReplica struct{ *replica }

func (b blamingReplica) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	s, err := b.replica.Open(ctx, l)
	return blamingHost{s.(captured)}, err
}

type blamingHost struct{ captured }

func (b blamingHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, b.captured, r, hoststest.With(hosts.OpDamage, func(_ context.Context, dataset string) (zfs.Damage, error) {
		if dataset == "dst/copy" {
			return zfs.Damage{Objects: []zfs.DamagedObject{{Dataset: "src", Path: "/f", Shown: "src:/f"}}, PoolErrors: 3}, nil
		}
		return zfs.Damage{}, nil
	}))
}

// TestStatusOfPoolMetadataDamage expects that damage of the pool itself concerns each job on
// both sides, even if the text is the same. The hosts have an OpenZFS that cannot heal.
func TestStatusOfPoolMetadataDamage(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	r.job.Source, r.job.Targets[0].To = "src/a", "src/copy"
	r.Damaged = zfs.Damage{Objects: []zfs.DamagedObject{{Object: "0x3d", Shown: "<metadata>:<0x3d>"}}}
	_, err := New(r.dir, oldZFSReplica{r}, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) }).Run(t.Context(), r.job, false)
	require.NoError(t, err)
	require.Equal(t, status.Damaged, r.status(t).State)
	text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
	require.NoError(t, err)
	for _, target := range []string{"", "t"} {
		require.Contains(t, string(text), `zxfer_replicate_pool_data_errors{job="j",target="`+target+`",pool="src"} 1`)
	}
}

// oldZFSReplica is a replica whose hosts have OpenZFS 2.1.
type oldZFSReplica struct{ *replica }

func (o oldZFSReplica) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	s, err := o.replica.Open(ctx, l)
	return &oldHost{s.(captured).Local}, err
}

type oldHost struct{ *hosts.Local }

func (o *oldHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, o.Local, r, hoststest.With(hosts.OpFacts, func(context.Context, hosts.None) (hosts.Facts, error) {
		return hosts.Facts{ZFS: "2.1.11-1"}, nil
	}))
}

// TestHintsCanBePasted expects hints that can be pasted. For a modified copy they contain its
// snapshot, for a renamed source both names of its copy.
func TestHintsCanBePasted(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.snapshot("src", "s1")
	r.snapshot("src/a", "s1")
	r.run(t)
	r.snapshot("src/a", "s2")
	r.fail(zfs.OpReceive, "dst/copy/a", zfs.Failure{Op: zfs.OpReceive, Subject: "dst/copy/a", Stderr: "cannot receive incremental stream: destination dst/copy/a has been modified since most recent snapshot"}.Err())
	run, _ := r.run(t)
	require.Equal(t, outcome.Failed, run.Outcome)
	ps := r.status(t).Problems
	require.Len(t, ps, 1)
	require.Equal(t, []string{"src/a"}, ps[0].Datasets)
	require.Contains(t, ps[0].Hint, "zfs rollback dst/copy/a@s1")
	require.Contains(t, ps[0].Hint, "zfs set readonly=on dst/copy/a")
	require.NotContains(t, ps[0].Hint, "SNAPSHOT")
	r.fail("", "", nil)

	r = newReplica(t, adopting())
	r.job.Source, r.job.Recursive, r.job.Targets[0].To = "src/a", false, "dst"
	r.snapshot("src/a", "s1")
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run)
	r.rename("src/a", "src/b")
	r.run(t)
	require.Equal(t, "write source = \"src/b\" into the job file\nrename the copy: zfs rename dst/a dst/b", r.status(t).Hint)
	r.job.Targets[0].To = "dst/a"
	r.run(t)
	require.Equal(t, `write source = "src/b" into the job file`, r.status(t).Hint, "the name of the copy is its own")
}
