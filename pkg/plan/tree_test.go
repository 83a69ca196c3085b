package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

func TestTargetName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ source, typed, want string }{
		{"tank/a/b", "pool", "pool/a/b"},
		{"tank/a/b", "pool/", "pool/a/b"},
		{"tank/a/b", "x/y/", "x/y/a/b"},
		{"tank/a/b", "x/y", "x/y"},
		{"tank", "pool", "pool"},
		{"tank", "x/y/", "x/y"},
		{"tank", "x/y", "x/y"},
	} {
		got, err := TargetName(tt.source, tt.typed)
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%s to %s", tt.source, tt.typed)
	}
	for _, typed := range []string{"", "/", "pool//", "pool/a%b", "pool/a@b", "-pool", "pool/" + strings.Repeat("x", 300)} {
		_, err := TargetName("tank/a", typed)
		require.Error(t, err, typed)
		require.Equal(t, fault.Usage, fault.ClassOf(err), typed)
		p := made(t, request().with(func(r *Request) { r.Target = typed }), given(dataset(t, "tank/a", "@a,1")))
		refused(t, p, BadName)
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	a := dataset(t, "tank/a", "@a,1")
	same := given(a)
	same.SameHost, same.TargetHost = true, "alpha"
	same.Target = zfs.Listing{Pool: same.Source.Pool, Ancestors: []*zfs.Dataset{{Name: "tank", Type: zfs.Filesystem}}}
	to := func(target string, recursive bool) Request {
		return request().with(func(r *Request) { r.Target, r.Recursive = target, recursive })
	}
	refused(t, made(t, to("tank/a", false), same), SameDataset, "alpha:tank/a")
	refused(t, made(t, to("tank", false), same), SameDataset)
	refused(t, made(t, to("tank/a/copy", true), same), SameDataset, "lies inside")
	require.Equal(t, "full @a", steps(only(t, made(t, to("tank/b", true), same))))
	require.Equal(t, "full @a", steps(only(t, made(t, to("tank/ab", true), same))), "a name that only begins alike")
	require.Equal(t, "full @a", steps(only(t, made(t, to("tank/a/copy", false), same))), "a copy below, when what is below is not sent")
	other := given(a)
	require.Equal(t, "full @a", steps(only(t, made(t, to("tank/a", false), other))), "another host's pool of the same name")

	volume := given(a)
	volume.Target.Ancestors = append(volume.Target.Ancestors, &zfs.Dataset{Name: "vault/v", Type: zfs.Volume})
	refused(t, made(t, to("vault/v/", false), volume), TypeMismatch, "vault/v is a volume")

	require.False(t, only(t, made(t, to("vault", false), given(a))).CreateParents)
	require.True(t, only(t, made(t, to("vault/x/", false), given(a))).CreateParents)
}

// The root of a pool always exists: a full stream cannot go there.
func TestPoolRoot(t *testing.T) {
	t.Parallel()
	root := func(versions string) State {
		s := given(dataset(t, "tank", "@a,1"), dataset(t, "vault", versions))
		s.Target.Ancestors = nil
		return s
	}
	req := Request{Source: "tank", Target: "vault"}
	p := made(t, req, root(""))
	refused(t, p, NoCommon, "vault/NAME")
	require.NotContains(t, p.Conflicts[0].Remedy, "zfs rename", "a pool's root cannot be renamed")
	require.Empty(t, only(t, made(t, req, root("@a,1"))).Steps)
	into := only(t, made(t, Request{Source: "tank", Target: "vault/tank"}, root("")))
	require.Equal(t, "full @a", steps(into))
	require.False(t, into.CreateParents)
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 200)
	p := made(t, request().with(func(r *Request) { r.Target = "vault/" + strings.Repeat("x", 60) }), given(dataset(t, "tank/a", "@"+long+",1 @b,2")))
	refused(t, p, BadName, long, "255")
	latest := request().with(func(r *Request) { r.Target, r.LatestOnly = "vault/"+strings.Repeat("x", 60), true })
	require.Equal(t, "full @b", steps(only(t, made(t, latest, given(dataset(t, "tank/a", "@"+long+",1 @b,2"))))), "what is not carried is no matter")

	deep := "tank/a" + strings.Repeat("/d", 47)
	state := given(dataset(t, "tank/a", "@a,1"), dataset(t, deep, "@a,1"))
	p = made(t, Request{Source: "tank/a", Target: "vault/1/2/3/", Recursive: true}, state)
	refused(t, p, BadName, "nested")
	require.Equal(t, deep, p.Conflicts[0].Source)
}

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
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2"), dataset(t, "tank/a/b/c", "@s,3"), dataset(t, "tank/a-b", "@s,4")),
			"tank/a: full @s\ntank/a-b: full @s\ntank/a/b: full @s after tank/a\ntank/a/b/c: full @s after tank/a/b", nil},
		{"each dataset's newest", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2 @t,3")),
			"tank/a: full @s\ntank/a/b: full @s, @s>@t after tank/a", nil},
		{"one without snapshots is skipped", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", ""), dataset(t, "tank/a/b/c", "@s,3")),
			"tank/a: full @s\ntank/a/b/c: full @s +parents after tank/a", []string{"tank/a/b is skipped: it has no snapshot to send"}},
		{"one without the snapshot is skipped", named,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@t,2")),
			"tank/a: full @s", []string{"tank/a/b is skipped: it has no snapshot @s"}},
		{"one that is half received is skipped", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "", "inconsistent=1")),
			"tank/a: full @s", []string{"tank/a/b is skipped: it is itself only half received"}},
		{"increments need not wait", recursive,
			given(dataset(t, "tank/a", "@s,1 @t,2"), dataset(t, "tank/a/b", "@s,3 @t,4"), dataset(t, "tank/a/new", "@t,5"),
				dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/b", "@s,3")),
			"tank/a: @s>@t\ntank/a/b: @s>@t\ntank/a/new: full @t after tank/a", nil},
		{"some are up to date", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2"), dataset(t, "vault/a", "@s,1")),
			"tank/a: \ntank/a/b: full @s", nil},
		{"what only the target has stays", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/theirs", "@x,7")),
			"tank/a: ", []string{"left as they are, as the source has no such datasets: vault/a/theirs"}},
		{"what is not chosen any more, was set aside, or needs nothing", recursive.with(func(r *Request) {
			r.Unchosen = map[string]*zfs.Dataset{"tank/a/b": dataset(t, "tank/a/b", "@s,2 @t,3"), "tank/a/c": dataset(t, "tank/a/c", "@s,4")}
			r.Idle = map[string]bool{"tank/a/d": true}
		}),
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/b", "@s,2"), dataset(t, "vault/a/c", "@x,7"),
				dataset(t, "vault/a/d", "@s,5"), dataset(t, "vault/a/e.zxfer-2026-11-23T10-15-00Z", "@s,6")),
			"tank/a: ", []string{"left as they are, as their originals are not chosen: vault/a/b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := made(t, tt.req, tt.state)
			require.Empty(t, p.Conflicts)
			require.Equal(t, tt.want, planned(p))
			require.Equal(t, strings.Join(tt.notes, "\n"), notes(p))
		})
	}
	p := made(t, named, given(dataset(t, "tank/a", "@t,1"), dataset(t, "tank/a/b", "@s,2")))
	refused(t, p, NoSnapshot, "tank/a has no snapshot @s")
	p = made(t, recursive, given(dataset(t, "tank/a", "@s,1", "inconsistent=1")))
	refused(t, p, HalfReceived, "alpha:tank/a is itself only half received", "let what sends or restores it end first")
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
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2 @t,3", "origin=tank/a/z@x"), dataset(t, "tank/a/z", "@x,8 @y,9")),
			"tank/a: full @s\ntank/a/z: full @x, @x>@y after tank/a\ntank/a/b: clone tank/a/z@x>@s, @s>@t after tank/a, tank/a/z", "vault/a/z@x", ""},
		{"the parent is the origin", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@t,3", "origin=tank/a@s")),
			"tank/a: full @s\ntank/a/b: clone tank/a@s>@t after tank/a", "vault/a@s", ""},
		{"the target has the origin", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@x,8"), dataset(t, "tank/a/c", "@t,3", "origin=tank/a/b@x"),
				dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/b", "@x,8")),
			"tank/a: \ntank/a/b: \ntank/a/c: clone tank/a/b@x>@t", "vault/a/b@x", ""},
		{"the target has the origin elsewhere too", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@x,8"), dataset(t, "tank/a/c", "@t,3", "origin=tank/a/b@x"),
				dataset(t, "vault/a", "@s,1"), dataset(t, "vault/a/moved", "@x,8")),
			"tank/a: \ntank/a/b: full @x\ntank/a/c: clone tank/a/b@x>@t after tank/a/b", "vault/a/b@x", "left as they are"},
		{"the origin's snapshot is not carried", recursive.with(func(r *Request) { r.ExcludeSnapshots = []string{"x"} }),
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@x,8 @y,9"), dataset(t, "tank/a/c", "@t,3", "origin=tank/a/b@x")),
			"tank/a: full @s\ntank/a/b: full @y after tank/a\ntank/a/c: full @t after tank/a", "", "tank/a/c is a clone of tank/a/b@x, which the target does not have"},
		{"the clone is there already", request(),
			given(dataset(t, "tank/a", "@s,1 @t,2", "origin=tank/o@x"), dataset(t, "vault/a", "@s,1")),
			"tank/a: @s>@t", "", ""},
		{"the origin is out of reach", request(),
			given(dataset(t, "tank/a", "@s,1", "origin=tank/o@x")),
			"tank/a: full @s", "", "tank/a is a clone of tank/o@x"},
		{"another copy of the origin is sent", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/copy", "@x,8"), dataset(t, "tank/a/orig", "@x,8", "inconsistent=1"), dataset(t, "tank/a/z", "@t,3", "origin=tank/a/orig@x")),
			"tank/a: full @s\ntank/a/copy: full @x after tank/a\ntank/a/z: clone tank/a/orig@x>@t after tank/a, tank/a/copy", "vault/a/copy@x", "tank/a/orig is skipped"},
		{"a circle of promoted clones", recursive,
			given(dataset(t, "tank/a", "@s,1", "origin=tank/a/b@x"), dataset(t, "tank/a/b", "@x,8")),
			"tank/a: full @s\ntank/a/b: full @x after tank/a", "", "tank/a is a clone of tank/a/b@x"},
		{"a longer circle", recursive,
			given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@b,2", "origin=tank/a/c/d@d"), dataset(t, "tank/a/c", "@c,3", "origin=tank/a/b@b"), dataset(t, "tank/a/c/d", "@d,4")),
			"tank/a: full @s\ntank/a/b: full @b after tank/a\ntank/a/c: clone tank/a/b@b>@c after tank/a, tank/a/b\ntank/a/c/d: full @d after tank/a/c", "", "tank/a/b is a clone of"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := made(t, tt.req, tt.state)
			require.Empty(t, p.Conflicts)
			require.Equal(t, tt.want, planned(p))
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

// The origin of a clone that is sent by itself lies outside of the listings.
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
			state := given(dataset(t, tt.source, "@s,1", "origin="+tt.origin))
			source, target := NeedOrigins(req, state)
			require.Equal(t, []string{tt.origin}, source)
			if tt.there == "" {
				require.Empty(t, target)
			} else {
				require.Equal(t, []string{tt.there}, target)
			}
			state.SourceOrigins = map[string]uint64{tt.origin: 77}
			state.TargetOrigins = map[string]uint64{}
			require.Equal(t, "full @s", steps(only(t, made(t, req, state))))
			state.TargetOrigins["vault/anywhere@1"] = 77
			d := only(t, made(t, req, state))
			require.Equal(t, "clone "+tt.origin+">@s", steps(d))
			require.Equal(t, "vault/anywhere@1", d.Steps[0].Receive.Origin)
		})
	}
	source, target := NeedOrigins(request(), given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@t,2", "origin=tank/a@s")))
	require.Empty(t, source)
	require.Empty(t, target)
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
		there := &zfs.Dataset{Name: "vault" + strings.TrimPrefix(name, "tank"), Type: zfs.Filesystem, Versions: d.Versions[:19]}
		if i > 1 && i%2 == 0 { // clones of those that come behind by name
			d.Properties = map[string]zfs.Property{"origin": {Value: fmt.Sprintf("tank/a/d%04d@s10", datasets-1-(i-2))}}
			there = nil
		}
		all = append(all, d)
		if there != nil {
			all = append(all, there)
		}
	}
	return all
}

func TestLargeTree(t *testing.T) {
	t.Parallel()
	datasets := testenv.Rounds(500, 2000, 2000)
	all := largeTree(datasets)
	req := request().with(func(r *Request) { r.Recursive = true })
	p := Make(req, given(all...))
	require.Equal(t, p, fromNewest(req, given(all...)))
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

// A survey may lack datasets that a job does not select: what is further above
// comes first all the same.
func TestRecursiveWithGaps(t *testing.T) {
	t.Parallel()
	recursive := request().with(func(r *Request) { r.Recursive = true })
	p := made(t, recursive, given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/clone", "@s,2", "origin=tank/a/z@s"),
		dataset(t, "tank/a/clone/gap/c", "@s,3"), dataset(t, "tank/a/z", "@s,4")))
	require.Equal(t, "tank/a: full @s\ntank/a/z: full @s after tank/a\ntank/a/clone: clone tank/a/z@s>@s after tank/a, tank/a/z\n"+
		"tank/a/clone/gap/c: full @s +parents after tank/a/clone", planned(p))
}

// What a conflict keeps from coming is missing for what is below it.
func TestNeedsOfWhatIsRefused(t *testing.T) {
	t.Parallel()
	recursive := request().with(func(r *Request) { r.Recursive = true })
	state := given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/b", "@s,2", "dnodesize=auto"), dataset(t, "tank/a/b/c", "@s,3"),
		dataset(t, "vault/a", "@s,1"))
	state.Target.Pool.Features["large_dnode"] = "disabled"
	state.Source.Pool.Features["large_dnode"] = "active"
	p := made(t, recursive, state)
	refused(t, p, FeatureMissing, "alpha:tank/a/b", "large_dnode")
	require.Equal(t, "tank/a: \ntank/a/b: \ntank/a/b/c: full @s after tank/a/b", planned(p))
}

// TestPlanningGrowsWithTheTree checks that planning does not search the tree for each
// dataset.
func TestPlanningGrowsWithTheTree(t *testing.T) { //nolint:paralleltest // it measures processor time
	testenv.Linear(t, 150, func(n int) func() {
		req, state := request().with(func(r *Request) { r.Recursive = true }), given(largeTree(n)...)
		return func() { require.Len(t, Make(req, state).Datasets, n) }
	})
}
