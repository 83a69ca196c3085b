package plan

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestRelocate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ source, target, name, want string }{
		{"tank/a", "vault/a", "tank/a@s", "vault/a@s"},
		{"tank/a", "vault/a", "tank/b@s", "vault/b@s"},
		{"tank/a", "vault/a", "tank", "vault"},
		{"tank/a", "vault/x", "tank/a/b@s", "vault/x/b@s"},
		{"tank/a", "vault/x", "tank/a", "vault/x"},
		{"tank/a", "vault/x", "tank/ab@s", ""},
		{"tank/a", "vault/x", "tank/b@s", ""},
		{"tank/a", "vault/x/a", "tank/b/c@s", "vault/x/b/c@s"},
		{"tank/a", "vault/x/a", "tank2/b@s", ""},
	} {
		got, ok := relocate(tt.source, tt.target, tt.name)
		require.Equal(t, tt.want, got, "%s to %s: %s", tt.source, tt.target, tt.name)
		require.Equal(t, tt.want != "", ok)
	}
}

// TestOriginNextToClone expects that if the target has a clone's origin more than once, zxfer uses
// the snapshot next to the clone.
func TestOriginNextToClone(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Recursive = true })
	s := stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/c", "@t,2", "origin=tank/a@s"),
		dataset(t, "vault/0", "@s,1"), dataset(t, "vault/a", "@s,1"))
	p := mustMake(t, req, s)
	require.Empty(t, p.Conflicts)
	require.Equal(t, "clone tank/a@s>@t", stepsText(p.Datasets[1]))
	require.Equal(t, "vault/a@s", p.Datasets[1].Steps[0].Receive.Origin)
}

// TestNeedHistoriesOfClones expects that a new clone requires the whole history of every copy,
// because its origin may be an old snapshot. Otherwise, only names that a copy must not have are
// needed.
func TestNeedHistoriesOfClones(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Recursive = true })
	need := func(more ...*zfs.Dataset) (Plan, []string, []string) {
		s := stateOf(slices.Concat([]*zfs.Dataset{dataset(t, "tank/a", "@s,1 @t,2")}, more, []*zfs.Dataset{dataset(t, "vault/a", "@t,2")})...)
		s.Target.Datasets[0].NewestOnly = true
		p := Make(req, s)
		datasets, names := NeedHistories(p, s)
		return p, datasets, names
	}
	_, datasets, names := need(dataset(t, "tank/a/c", "@u,3", "origin=tank/a@s"))
	require.Equal(t, []string{"vault/a"}, datasets)
	require.Empty(t, names)
	_, datasets, _ = need(dataset(t, "tank/a/c", "@u,3"))
	require.Empty(t, datasets, "a new dataset that is no clone")
	p := mustMake(t, req, stateOf(dataset(t, "tank/a", "@s,1 @t,2"), dataset(t, "tank/a/c", "@u,3", "origin=tank/a@s"), dataset(t, "vault/a", "@s,1 @t,2")))
	require.Equal(t, "clone tank/a@s>@u", stepsText(p.Datasets[1]))

	s := stateOf(dataset(t, "tank/a", "@t,2"), dataset(t, "tank/a/c", "@u,3 @v,4", "origin=tank/a@s"), dataset(t, "vault/a", "@t,2"), dataset(t, "vault/a/c", "@u,3"))
	for _, d := range s.Target.Datasets {
		d.NewestOnly = true
	}
	datasets, names = NeedHistories(Make(req, s), s)
	require.Empty(t, datasets, "a clone that the target has")
	require.Equal(t, []string{"vault/a/c@v"}, names)
}

// TestDivergedBetweenKnownSnapshots expects that a snapshot of the target that the source lacks
// makes it diverged, even if the target also has newer snapshots of the source.
func TestDivergedBetweenKnownSnapshots(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Snapshot = "a" })
	source := dataset(t, "tank/a", "@z,9 @a,1 @b,2")
	requireConflict(t, mustMake(t, req, stateOf(source, dataset(t, "vault/a", "@z,9 @b,2 @x,99"))), Diverged, "has diverged", "@x")
	requireConflict(t, mustMake(t, req, stateOf(source, dataset(t, "vault/a", "@z,9 @x,99 @b,2"))), Diverged, "has diverged", "@x")
	requireConflict(t, mustMake(t, req, stateOf(source, dataset(t, "vault/a", "@z,9 @b,2"))), Diverged, "beta:vault/a has @b")
}

// TestBookmarkNameDoesNotConflict expects that a snapshot may have the name of a bookmark of the target.
func TestBookmarkNameDoesNotConflict(t *testing.T) {
	t.Parallel()
	p := mustMake(t, request(), stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "#b,50 @a,1")))
	require.Equal(t, "@a>@b", stepsText(onlyDataset(t, p)))
}

// TestPromoted expects that after zfs promote, both datasets continue if each has a newer common
// snapshot. Otherwise, the hint is the one command after which both do.
func TestPromoted(t *testing.T) {
	t.Parallel()
	// tank/a/c was cloned from tank/a/o and promoted. tank/a/o was at @1 and
	// @2.
	source := func(o, c string) []string { return []string{o, c} }
	plan := func(source []string, target map[string]string) Plan {
		all := State{SourceHost: "alpha", TargetHost: "beta"}
		given := stateOf(dataset(t, "tank/a", "@x,90"), dataset(t, "tank/a/c", source[1]), dataset(t, "tank/a/o", source[0], "origin=tank/a/c@2"), dataset(t, "vault/a", "@x,90"))
		for _, name := range []string{"vault/a/c", "vault/a/o", "vault/a/o-old"} {
			if versions, ok := target[name]; ok {
				given.Target.Datasets = append(given.Target.Datasets, dataset(t, name, versions))
			}
		}
		given.SourceHost, given.TargetHost = all.SourceHost, all.TargetHost
		return Make(request().with(func(r *Request) { r.Recursive = true }), given)
	}
	promoted := source("@3,13 @4,14", "@1,1 @2,2 @3,3 @4,4")

	// Both had @3.
	p := plan(promoted, map[string]string{"vault/a/o": "@1,1 @2,2 @3,13", "vault/a/c": "@3,3"})
	require.Empty(t, p.Conflicts)
	require.Contains(t, planText(p), "tank/a/c: @3>@4\ntank/a/o: @3>@4")

	// The clone was never sent: the demoted dataset's copy has its history.
	p = plan(promoted, map[string]string{"vault/a/o": "@1,1 @2,2"})
	require.Len(t, p.Conflicts, 2)
	for _, c := range p.Conflicts {
		require.Equal(t, NoCommon, c.ID)
		require.Contains(t, c.Remedy, "zfs rename vault/a/o vault/a/c")
	}
	require.Contains(t, p.Conflicts[1].Summary, "alpha:tank/a/c was promoted over tank/a/o: the history of beta:vault/a/o up to @2")
	p = plan(promoted, map[string]string{"vault/a/c": "@1,1 @2,2"})
	require.Empty(t, p.Conflicts, "as after the rename")
	require.Contains(t, planText(p), "tank/a/c: @2>@3>@4\ntank/a/o: clone tank/a/c@2>@3, @3>@4")

	// The clone was sent, and the demoted dataset has no newer common snapshot.
	p = plan(promoted, map[string]string{"vault/a/o": "@1,1 @2,2", "vault/a/c": "@3,3"})
	requireConflict(t, p, NoCommon, "zfs rename vault/a/o vault/a/o-old", "only the changes since @2")
	require.Contains(t, p.diverged, "vault/a/o", "it can be renamed")
	p = plan(promoted, map[string]string{"vault/a/o-old": "@1,1 @2,2", "vault/a/c": "@3,3"})
	require.Empty(t, p.Conflicts)
	require.Contains(t, planText(p), "tank/a/o: clone tank/a/c@2>@3, @3>@4")
	require.Equal(t, "vault/a/o-old@2", p.Datasets[2].Steps[0].Receive.Origin)
}

func TestClones(t *testing.T) {
	t.Parallel()
	recursive := request().with(func(r *Request) { r.Recursive = true })
	tests := []struct {
		name   string
		req    Request
		state  State
		want   string
		origin string // on the target, of the last dataset
		note   string
	}{
		{"the origin is sent before", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2 @t,3", "origin=tank/a/z@x"), dataset(t, "tank/a/z", "@x,8 @y,9")),
			"tank/a: full @s\ntank/a/z: full @x, @x>@y after tank/a\ntank/a/b: clone tank/a/z@x>@s, @s>@t after tank/a, tank/a/z", "vault/a/z@x", ""},
		{"the parent is the origin", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@t,3", "origin=tank/a@s")),
			"tank/a: full @s\ntank/a/b: clone tank/a@s>@t after tank/a", "vault/a@s", ""},
		{"the target has the origin", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@x,8"), dataset(t, "tank/a/c", "@t,3", "origin=tank/a/b@x"),
				dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/b", "@x,8")),
			"tank/a: \ntank/a/b: \ntank/a/c: clone tank/a/b@x>@t", "vault/a/b@x", ""},
		{"another target dataset also has the origin", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@x,8"), dataset(t, "tank/a/c", "@t,3", "origin=tank/a/b@x"),
				dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/moved", "@x,8")),
			"tank/a: \ntank/a/b: full @x\ntank/a/c: clone tank/a/b@x>@t after tank/a/b", "vault/a/b@x", "unchanged"},
		{"the origin is excluded", recursive.with(func(r *Request) { r.ExcludeSnapshots = []string{"x"} }),
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@x,8 @y,9"), dataset(t, "tank/a/c", "@t,3", "origin=tank/a/b@x")),
			"tank/a: full @s\ntank/a/b: full @y after tank/a\ntank/a/c: full @t after tank/a", "", "tank/a/c is a clone of tank/a/b@x, which the target lacks: zxfer sends"},
		{"the clone exists already", request(),
			stateOf(dataset(t, "tank/a", "@s,1 @t,2", "origin=tank/o@x"), dataset(t, "vault/a", "@s,1")),
			"tank/a: @s>@t", "", ""},
		{"the origin is not in the plan", request(),
			stateOf(dataset(t, "tank/a", "@s,1", "origin=tank/o@x")),
			"tank/a: full @s", "", "tank/a is a clone of tank/o@x"},
		{"another copy of the origin is sent", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/copy", "@x,8"), dataset(t, "tank/a/orig", "@x,8", "inconsistent=1"), dataset(t, "tank/a/z", "@t,3", "origin=tank/a/orig@x")),
			"tank/a: full @s\ntank/a/copy: full @x after tank/a\ntank/a/z: clone tank/a/orig@x>@t after tank/a, tank/a/copy", "vault/a/copy@x", "tank/a/orig is skipped"},
		{"a circle of promoted clones", recursive,
			stateOf(dataset(t, "tank/a", "@s,1", "origin=tank/a/b@x"), dataset(t, "tank/a/b", "@x,8")),
			"tank/a: full @s\ntank/a/b: full @x after tank/a", "", "tank/a is a clone of tank/a/b@x"},
		{"a longer circle", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@b,2", "origin=tank/a/c/d@d"), dataset(t, "tank/a/c", "@c,3", "origin=tank/a/b@b"), dataset(t, "tank/a/c/d", "@d,4")),
			"tank/a: full @s\ntank/a/b: full @b after tank/a\ntank/a/c: clone tank/a/b@b>@c after tank/a, tank/a/b\ntank/a/c/d: full @d after tank/a/c", "", "tank/a/b is a clone of"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := mustMake(t, tt.req, tt.state)
			require.Empty(t, p.Conflicts)
			require.Equal(t, tt.want, planText(p))
			last := p.Datasets[len(p.Datasets)-1]
			if tt.origin != "" {
				require.Equal(t, tt.origin, last.Steps[0].Receive.Origin)
				require.NotZero(t, last.Steps[0].BaseGUID)
			}
			if tt.note == "" {
				require.Empty(t, p.Notes)
			} else {
				require.Contains(t, notes(p), tt.note)
			}
		})
	}
}

// TestNeedOrigins expects that the origin of a clone that is sent by itself lies outside of the
// listings.
func TestNeedOrigins(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, source, target, origin, there string
	}{
		{"pool", "tank/vm/a", "vault", "tank/vm/golden@1", "vault/vm/golden@1"},
		{"below", "tank/vm/a", "vault/x/", "tank/vm/golden@1", "vault/x/vm/golden@1"},
		{"exact, same name", "tank/vm/a", "vault/vms/a", "tank/vm/golden@1", "vault/vms/golden@1"},
		{"exact, other name", "tank/vm/a", "vault/vms/b", "tank/vm/golden@1", ""},
		{"its own origin's parent", "tank/vm/a", "vault/vm/a", "tank/vm@1", "vault/vm@1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req := Request{Source: tt.source, Target: tt.target}
			state := stateOf(dataset(t, tt.source, "@s,1", "origin="+tt.origin))
			source, target := NeedOrigins(req, state)
			require.Equal(t, []string{tt.origin}, source)
			if tt.there == "" {
				require.Empty(t, target)
			} else {
				require.Equal(t, []string{tt.there}, target)
			}
			state.SourceOrigins = map[string]uint64{tt.origin: 77}
			state.TargetOrigins = map[string]uint64{}
			require.Equal(t, "full @s", stepsText(onlyDataset(t, mustMake(t, req, state))))
			state.TargetOrigins["vault/anywhere@1"] = 77
			d := onlyDataset(t, mustMake(t, req, state))
			require.Equal(t, "clone "+tt.origin+">@s", stepsText(d))
			require.Equal(t, "vault/anywhere@1", d.Steps[0].Receive.Origin)
		})
	}
	source, target := NeedOrigins(request(), stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@t,2", "origin=tank/a@s")))
	require.Empty(t, source)
	require.Empty(t, target)
}
