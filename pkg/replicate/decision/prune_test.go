package decision

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// TestPruningCounts expects that a pruning counts destroyed, kept and protected snapshots in the
// scope.
func TestPruningCounts(t *testing.T) {
	t.Parallel()
	v := newRunState(t, parseListing("tank@1 @2 @3 @4 #1", "tank/a@5 @6"), "[job.retention]\nlast = 1\n"+near).withTarget(parseListing("vault/t@1 @2", "vault/t/a@5"))
	d := Decide(v)
	require.Len(t, d.Prunings, 1)
	p := d.Prunings[0]
	require.Equal(t, []string{"tank@1", "tank@3"}, p.Remove)
	require.Equal(t, 4, p.Kept, "tank@2 and @4, tank/a@5 and @6")
	require.Equal(t, 2, p.Protected, "the incremental sources tank@2 and tank/a@5")
	require.Empty(t, p.Held)
	require.Empty(t, p.Untrusted)
	require.Equal(t, "retention", p.Rule())
	p.Keep("tank@1")
	require.Equal(t, []string{"tank@1"}, p.Held)
	require.Equal(t, 5, p.Kept)
	require.Empty(t, p.Results["tank"].Fingerprint, "it removes something")
	require.NotEmpty(t, p.Results["tank/a"].Fingerprint)

	// A snapshot dated later than this host's clock is untrusted, and kept.
	v = newRunState(t, parseListing("tank@1 @2 @200"), "[job.retention]\nlast = 1\n")
	p = Decide(v).Prunings[0]
	require.Equal(t, []string{"tank@200"}, p.Untrusted)
	require.NotContains(t, p.Remove, "tank@200")
}

// TestPruneOnlyListed expects that a run does not prune failed or unlisted targets, or copies
// without a source dataset.
func TestPruneOnlyListed(t *testing.T) {
	t.Parallel()
	settings := near + "[job.target.retention]\nlast = 1\n"
	v := newRunState(t, parseListing("tank@3", "tank/new@4"), settings).withTarget(parseListing("vault/t@1 @2 @3", "vault/t/gone@1 @2"))
	p := Decide(v).Prunings[0]
	require.Equal(t, []string{"vault/t@1", "vault/t@2"}, p.Remove)
	v.Targets[0].Failed = true
	require.Empty(t, Decide(v).Prunings)
	v = newRunState(t, parseListing("tank@3"), settings).withTarget(nil)
	v.Targets[0].Failed = false
	require.Empty(t, Decide(v).Prunings)
}

// TestPruneKeepsPartialState expects that retention on a target keeps the snapshots that an
// interrupted receive needs.
func TestPruneKeepsPartialState(t *testing.T) {
	t.Parallel()
	v := newRunState(t, parseListing("tank@3"), near+"[job.target.retention]\nlast = 1\n").withTarget(parseListing("vault/t@1 @2 @3"))
	v.Targets[0].Partial = map[uint64]bool{1: true}
	p := Decide(v).Prunings[0]
	require.Equal(t, []string{"vault/t@2"}, p.Remove)
	require.Equal(t, retention.Reason{Kind: retention.InterruptedReceive}, p.KeepReasons["vault/t@1"])
	require.Equal(t, 2, p.Protected)
}

// TestPruneRepeatsAfterChange expects that a dataset is pruned again if any input of the decision has
// changed.
func TestPruneRepeatsAfterChange(t *testing.T) {
	t.Parallel()
	settings := "[job.retention]\nlast = 2\n" + near
	for name, tt := range map[string]struct {
		change func(*RunState)
		looks  bool
	}{
		"nothing":                    {func(*RunState) {}, false},
		"a bookmark":                 {func(v *RunState) { v.Survey.Source = parseListing("tank@1 @2 #2") }, false},
		"another snapshot":           {func(v *RunState) { v.Survey.Source = parseListing("tank@1 @3") }, true},
		"destroyed snapshot":         {func(v *RunState) { v.Survey.Source = parseListing("tank@2") }, true},
		"another incremental source": {func(v *RunState) { v.Targets = nil; v.withTarget(parseListing("vault/t@1")) }, true},
		"another policy":             {func(v *RunState) { v.Survey.Job.Retention = &retention.Grid{Last: 3} }, true},
		"untrusted dates": {func(v *RunState) {
			v.Survey.State.Datasets["tank"].Histories[replicate.SourceSide].Dates = map[uint64]int64{1: 0}
		}, true},
		"dates by this clock": {func(v *RunState) {
			v.Survey.State.Datasets["tank"].Histories[replicate.SourceSide].Dates = map[uint64]int64{1: 5}
		}, false},
	} {
		v := newRunState(t, parseListing("tank@1 @2"), settings).withTarget(parseListing("vault/t@1 @2"))
		p := Decide(v).Prunings[0]
		require.Empty(t, p.Remove)
		p.Record(v.Survey.State)
		tt.change(v)
		v.Created[replicate.SourceSide] = snapshotTimes(v.Survey.Source)
		require.Equal(t, tt.looks, Decide(v).Prunings[0].Results["tank"] != nil, name)
	}
}

// TestPruneGoesOnAfterUnchangedDataset expects that a dataset without a change does not keep later ones
// from being pruned.
func TestPruneGoesOnAfterUnchangedDataset(t *testing.T) {
	t.Parallel()
	v := newRunState(t, parseListing("tank@1", "tank/a@2"), "[job.retention]\nlast = 1\n")
	Decide(v).Prunings[0].Record(v.Survey.State)
	v.Survey.Source = parseListing("tank@1", "tank/a@2 @3")
	v.Created[replicate.SourceSide] = snapshotTimes(v.Survey.Source)
	p := Decide(v).Prunings[0]
	require.Nil(t, p.Results["tank"])
	require.Equal(t, []string{"tank/a@2"}, p.Remove)
}

// TestPruneGoesOnAfterFailedTarget expects that a failed target does not keep later ones from being
// pruned.
func TestPruneGoesOnAfterFailedTarget(t *testing.T) {
	t.Parallel()
	const retention = "[job.target.retention]\nlast = 1\n"
	v := newRunState(t, parseListing("tank@3"), near+retention+"[[job.target]]\nname = \"far\"\nto = \"vault/f\"\n"+retention).
		withTarget(nil).withTarget(parseListing("vault/f@1 @2 @3"))
	all := Decide(v).Prunings
	require.Len(t, all, 1)
	require.Equal(t, "far", all[0].Side)
	require.Equal(t, []string{"vault/f@1", "vault/f@2"}, all[0].Remove)
}

// TestPruneKeepsTheNewest expects that the most recent snapshot is always kept, like snapshots
// outside the scope with known times.
func TestPruneKeepsTheNewest(t *testing.T) {
	t.Parallel()
	scope, err := (&replicate.Job{Name: "j", Snapshots: replicate.Snapshots{Adopt: []string{"[12]"}}}).Scope()
	require.NoError(t, err)
	d := parseListing("tank@1 @2 @3").Datasets[0]
	dates := scope.Dates(map[string]time.Time{"1": hour(1), "2": hour(2), "3": hour(3)})
	g := &retention.Grid{Also: []retention.Also{{Names: []string{"none"}, Last: 1}}}
	r := g.Prunable(d, dates, nil, &retention.History{}, hour(9))
	require.Equal(t, []zfs.Version{d.Versions[0], d.Versions[1]}, r.Remove)
	d = parseListing("tank@1 @2").Datasets[0]
	r = g.Prunable(d, dates, nil, &retention.History{}, hour(9))
	require.Equal(t, []zfs.Version{d.Versions[0]}, r.Remove)
	require.Equal(t, map[string]string{"2": "newest"}, texts(r.KeepReasons))
}

// TestLearn expects that the state stores the history of a side, and drops a fingerprint that
// expires with time.
func TestLearn(t *testing.T) {
	t.Parallel()
	past := &retention.History{Dataset: 7, Seen: 9}
	s := &replicate.State{Datasets: map[string]*replicate.DatasetState{}}
	(&Pruning{Side: "near", Results: map[string]*PruneResult{"tank": {History: past, Fingerprint: "p", Original: 5}}}).Record(s)
	(&Pruning{Side: "far", Results: map[string]*PruneResult{"tank": {Fingerprint: "q"}}}).Record(s)
	known := s.Datasets["tank"]
	require.Equal(t, map[string]*retention.History{"near": past}, known.Histories)
	require.Equal(t, map[string]string{"near": "p", "far": "q"}, known.Pruned)
	require.EqualValues(t, 5, s.Copy("tank", "near").OriginalGUID)
	(&Pruning{Side: "near", Results: map[string]*PruneResult{"tank": {}}}).Record(s)
	require.Equal(t, map[string]string{"near": "p", "far": "q"}, known.Pruned)
	require.EqualValues(t, 5, s.Copy("tank", "near").OriginalGUID)
	(&Pruning{Side: "near", Results: map[string]*PruneResult{"tank": {Waiting: true}}}).Record(s)
	require.Equal(t, map[string]string{"far": "q"}, known.Pruned)
}

// TestComplete expects that after a run, the history lists the snapshots to destroy, unless some wait
// for time.
func TestComplete(t *testing.T) {
	t.Parallel()
	done, waiting := &retention.History{}, &retention.History{}
	d := parseListing("tank@1 @2").Datasets[0]
	for _, h := range []*retention.History{done, waiting} {
		(&retention.Grid{Last: 1}).Prunable(d, func(string) (time.Time, bool) { return hour(1), true }, nil, h, hour(9))
	}
	(&Pruning{Results: map[string]*PruneResult{"a": {History: done}, "b": {History: waiting, Waiting: true}, "c": {}}}).Complete()
	require.Equal(t, d.Versions[1].CreateTXG, done.Kept)
	require.Equal(t, []uint64{d.Versions[0].CreateTXG}, done.ToDestroy)
	require.Zero(t, waiting.Kept)
}

func TestFailedPruning(t *testing.T) {
	t.Parallel()
	require.NoError(t, (&Pruning{}).Failed())
	err := (&Pruning{Side: "near", Error: "it is away", Hint: "look"}).Failed()
	require.Equal(t, fault.Failed, fault.ClassOf(err))
	require.EqualError(t, err, "near: it is away")
	require.Equal(t, "mirror", (&Pruning{Mirror: true}).Rule())
	v := newRunState(t, parseListing("tank@1"), "[job.retention]\nlast = 1\n")
	v.QueryErrors = map[string]error{replicate.SourceSide: errors.New("it is away")}
	require.Equal(t, &PruneResult{}, Decide(v).Prunings[0].Results["tank"])
}

// TestPruneLimit expects that a run may reach the limit, but not exceed it.
func TestPruneLimit(t *testing.T) {
	t.Parallel()
	for limit, refused := range map[string]bool{"1": true, "2": false, "3": false} {
		v := newRunState(t, parseListing("tank@1 @2 @3"), "prune_limit = "+limit+"\n[job.retention]\nlast = 1\n")
		v.Survey.State.Dataset("tank").Histories = map[string]*retention.History{replicate.SourceSide: {Dataset: 1000, Seen: 3, Kept: 3}}
		p := Decide(v).Prunings[0]
		require.Equal(t, refused, p.Refused, limit)
		require.Equal(t, refused, fault.ClassOf(p.Failed()) == fault.Refused, limit)
	}
}
