package runner

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

func TestBusyOf(t *testing.T) {
	t.Parallel()
	busy := func(s string) error { return &zfs.Error{Kind: zfs.Busy, Subject: s} }
	err := fmt.Errorf("beta: %w", errors.Join(busy("a@1"), &zfs.Error{Kind: zfs.NotFound, Subject: "a@2"}, fmt.Errorf("more: %w", busy("a@3"))))
	require.Equal(t, map[string]bool{"a@1": true, "a@3": true}, busyOf(err))
	require.Empty(t, busyOf(errors.New("no")))
}

// TestPruneLimit changes the retention policy so that a run would destroy more snapshots than
// prune_limit allows. It expects that only an explicit command destroys them.
func TestPruneLimit(t *testing.T) {
	t.Parallel()
	limit := 3
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}, Retention: &retention.Grid{Last: 9}, PruneLimit: &limit})
	r.job.Targets = nil
	flags := " --config my.toml"
	runner := func() *Runner { run := r.runner(t); run.Env.Flags = flags; return run }
	for range 12 {
		run, _ := r.run(t)
		require.Equal(t, outcome.Done, run.Outcome, "%+v", run)
		r.now += 3600
	}
	have := r.names("src/a")
	require.Len(t, have, 9)
	r.job.Retention.Last = 2
	for _, dry := range []bool{false, true} {
		_, err := runner().Prune(t.Context(), r.job, dry, false)
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, "prune_limit is 3 per run")
		require.Contains(t, fault.HintOf(err), "zxfer replicate prune --beyond-limit j"+flags)
		require.Equal(t, have, r.names("src/a"))
	}
	p, err := runner().Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.ErrorContains(t, p.Err(), "the next run would partly fail")
	require.ErrorContains(t, p.Prunings[0].Failed(), "prune_limit is 3 per run")
	run, err := runner().Run(t.Context(), r.job, true)
	require.Equal(t, fault.Failed, fault.ClassOf(err), "a snapshot was taken: %v", err)
	require.Equal(t, outcome.Failed, run.Outcome)
	require.Contains(t, fault.HintOf(err), "--beyond-limit")
	require.Len(t, r.names("src/a"), 10)
	_, err = runner().Prune(t.Context(), r.job, false, true)
	require.NoError(t, err)
	require.Len(t, r.names("src/a"), 2)
	r.now += 3600
	again, _ := r.run(t)
	require.Equal(t, outcome.Done, again.Outcome)
	require.Len(t, r.names("src/a"), 2)
}

// TestCreationTimesOfReceivedSnapshots expects that creation times of received snapshots are queried on
// the target only if the source is remote.
func TestCreationTimesOfReceivedSnapshots(t *testing.T) {
	t.Parallel()
	for source, queried := range map[string][]string{
		"src":       {"src/a@s1", "dst/copy@s-local"},
		"alpha:src": {"src/a@s1", "dst/copy/a@s1", "dst/copy@s-local"},
	} {
		r := newReplica(t, adopting())
		r.snapshot("src/a", "s1")
		r.run(t)
		require.Equal(t, []string{"s1"}, r.names("dst/copy/a"))
		r.snapshot("dst/copy", "s-local")
		r.job.Source = source
		opened, err := r.runner(t).Env.Open(r.job, statedir.Peek(r.dir, r.job.Name))
		require.NoError(t, err)
		list := func(dataset string) *zfs.Listing {
			l, err := r.Host.List(t.Context(), zfs.ListQuery{Dataset: dataset, Recursive: true, Versions: true})
			require.NoError(t, err)
			return &l
		}
		v := &decision.RunState{Survey: &decision.Survey{Source: list("src")}, Targets: []*decision.TargetState{{Target: &r.job.Targets[0], Listing: list("dst/copy")}}}
		var asked []string
		r.before = func(op string, names []string) error {
			require.Equal(t, zfs.OpGet, op)
			asked = append(asked, names...)
			return nil
		}
		d := decider{s: opened, v: v}
		d.queryCreated(t.Context(), map[string][]string{replicate.SourceSide: {"src/a@s1"}, "t": {"dst/copy/a@s1", "dst/copy@s-local"}})
		require.ElementsMatch(t, queried, asked)
		require.Equal(t, map[string]error{replicate.SourceSide: nil, "t": nil}, v.QueryErrors)
		require.Contains(t, v.Created["t"]["dst/copy/a"], "s1")
		require.Contains(t, v.Created["t"]["dst/copy"], "s-local")
		if len(queried) == 2 {
			require.Equal(t, v.Created[replicate.SourceSide]["src/a"]["s1"], v.Created["t"]["dst/copy/a"]["s1"])
		}
	}
}
