package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

func TestRecursive(t *testing.T) {
	t.Parallel()
	recursive := request().with(func(r *Request) { r.Recursive = true })
	named := recursive.with(func(r *Request) { r.Snapshot = "s" })
	tests := []struct {
		name  string
		req   Request
		state State
		want  string
		notes []string
	}{
		{"parents first", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2"), dataset(t, "tank/a/b/c", "@s,3"), dataset(t, "tank/a-b", "@s,4")),
			"tank/a: full @s\ntank/a-b: full @s\ntank/a/b: full @s after tank/a\ntank/a/b/c: full @s after tank/a/b", nil},
		{"most recent snapshot of each dataset", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2 @t,3")),
			"tank/a: full @s\ntank/a/b: full @s, @s>@t after tank/a", nil},
		{"dataset without snapshots is skipped", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", ""), dataset(t, "tank/a/b/c", "@s,3")),
			"tank/a: full @s\ntank/a/b/c: full @s +parents after tank/a", []string{"tank/a/b is skipped: it has no snapshot to send"}},
		{"dataset without the snapshot is skipped", named,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@t,2")),
			"tank/a: full @s", []string{"tank/a/b is skipped: it has no snapshot @s"}},
		{"partially received dataset is skipped", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "", "inconsistent=1")),
			"tank/a: full @s", []string{"tank/a/b is skipped: it is only partially received"}},
		{"incremental sends do not wait", recursive,
			stateOf(dataset(t, "tank/a", "@s,1 @t,2"), dataset(t, "tank/a/b", "@s,3 @t,4"), dataset(t, "tank/a/new", "@t,5"),
				dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/b", "@s,3")),
			"tank/a: @s>@t\ntank/a/b: @s>@t\ntank/a/new: full @t after tank/a", nil},
		{"some are up to date", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2"), dataset(t, "vault/a", "@s,1")),
			"tank/a: \ntank/a/b: full @s", nil},
		{"target-only datasets are kept", recursive,
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/theirs", "@x,7")),
			"tank/a: ", []string{"unchanged, because the source lacks these datasets: vault/a/theirs"}},
		{"excluded, renamed or up to date", recursive.with(func(r *Request) {
			r.ExcludedDatasets = map[string]*zfs.Dataset{"tank/a/b": dataset(t, "tank/a/b", "@s,2 @t,3"), "tank/a/c": dataset(t, "tank/a/c", "@s,4")}
			r.UpToDate = map[string]bool{"tank/a/d": true}
		}),
			stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/b", "@s,2"), dataset(t, "vault/a/c", "@x,7"),
				dataset(t, "vault/a/d", "@s,5"), dataset(t, "vault/a/e.zxfer-2026-11-23T10-15-00Z", "@s,6")),
			"tank/a: ", []string{"unchanged, because their originals are excluded: vault/a/b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := mustMake(t, tt.req, tt.state)
			require.Empty(t, p.Conflicts)
			require.Equal(t, tt.want, planText(p))
			require.Equal(t, strings.Join(tt.notes, "\n"), notes(p))
		})
	}
	p := mustMake(t, named, stateOf(dataset(t, "tank/a", "@t,1"), dataset(t, "tank/a/b", "@s,2")))
	requireConflict(t, p, NoSnapshot, "tank/a has no snapshot @s")
	p = mustMake(t, recursive, stateOf(dataset(t, "tank/a", "@s,1", "inconsistent=1")))
	requireConflict(t, p, HalfReceived, "alpha:tank/a is only partially received", "wait until its transfer ends; if")
	p = mustMake(t, recursive, stateOf(dataset(t, "tank/a", "@s,1", "inconsistent=1", zfs.RestoreProperty+"=on")))
	requireConflict(t, p, HalfReceived, "zxfer restore is receiving alpha:tank/a, or was interrupted", "run the same zxfer restore again")
}

// TestRecursiveWithGaps expects that if a listing lacks the parent, a more distant ancestor still
// comes first.
func TestRecursiveWithGaps(t *testing.T) {
	t.Parallel()
	recursive := request().with(func(r *Request) { r.Recursive = true })
	p := mustMake(t, recursive, stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/clone", "@s,2", "origin=tank/a/z@s"),
		dataset(t, "tank/a/clone/gap/c", "@s,3"), dataset(t, "tank/a/z", "@s,4")))
	require.Equal(t, "tank/a: full @s\ntank/a/z: full @s after tank/a\ntank/a/clone: clone tank/a/z@s>@s after tank/a, tank/a/z\n"+
		"tank/a/clone/gap/c: full @s +parents after tank/a/clone", planText(p))
}

// TestNeedsOfRefusedDataset expects that a parent with a conflict counts as missing for its
// descendants.
func TestNeedsOfRefusedDataset(t *testing.T) {
	t.Parallel()
	recursive := request().with(func(r *Request) { r.Recursive = true })
	state := stateOf(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2", "dnodesize=auto"), dataset(t, "tank/a/b/c", "@s,3"),
		dataset(t, "vault/a", "@s,1"))
	state.Target.Pool.Features["large_dnode"] = "disabled"
	state.Source.Pool.Features["large_dnode"] = "active"
	p := mustMake(t, recursive, state)
	requireConflict(t, p, FeatureMissing, "alpha:tank/a/b", "large_dnode")
	require.Equal(t, "tank/a: \ntank/a/b: \ntank/a/b/c: full @s after tank/a/b", planText(p))
}

// TestPlanningTimeIsLinear expects that planning does not search the tree for each dataset.
func TestPlanningTimeIsLinear(t *testing.T) { //nolint:paralleltest // it measures processor time
	testenv.Linear(t, 150, func(n int) func() {
		req, state := request().with(func(r *Request) { r.Recursive = true }), stateOf(largeTree(n)...)
		return func() { require.Len(t, Make(req, state).Datasets, n) }
	})
}

func TestLargeTree(t *testing.T) {
	t.Parallel()
	datasets := testenv.Rounds(500, 2000, 2000)
	all := largeTree(datasets)
	req := request().with(func(r *Request) { r.Recursive = true })
	p := Make(req, stateOf(all...))
	require.Equal(t, p, fromNewest(req, stateOf(all...)))
	require.Empty(t, p.Conflicts)
	require.Len(t, p.Datasets, datasets)
	seen := map[string]bool{}
	for _, d := range p.Datasets {
		for _, n := range d.Needs {
			require.True(t, seen[n], "%s before %s", n, d.Source)
		}
		seen[d.Source] = true
	}
}

// largeTree returns a tree of datasets on both sides. Half of them are clones of datasets
// with later names, which the target lacks.
func largeTree(datasets int) []*zfs.Dataset {
	var all []*zfs.Dataset
	guid := uint64(1)
	for i := range datasets {
		name := fmt.Sprintf("tank/a/d%04d", i)
		if i == 0 {
			name = "tank/a"
		}
		d := &zfs.Dataset{Name: name, Type: zfs.Filesystem}
		for j := range 20 {
			d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: fmt.Sprintf("s%02d", j), GUID: guid, CreateTXG: guid})
			guid++
		}
		counterpart := &zfs.Dataset{Name: "vault" + strings.TrimPrefix(name, "tank"), Type: zfs.Filesystem, Versions: d.Versions[:19]}
		if i > 1 && i%2 == 0 { // clones of datasets with later names
			d.Properties = map[string]zfs.Property{"origin": {Value: fmt.Sprintf("tank/a/d%04d@s10", datasets-1-(i-2))}}
			counterpart = nil
		}
		all = append(all, d)
		if counterpart != nil {
			all = append(all, counterpart)
		}
	}
	return all
}
