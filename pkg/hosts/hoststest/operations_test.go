package hoststest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// datasets are the tests for every host.
func datasets() []test[testPool] {
	return []test[testPool]{
		{"list", (*suite).testList},
		{"list of a missing dataset", (*suite).testListMissing},
		{"dataset of a path", (*suite).testDatasetOf},
		{"properties", (*suite).testProperties},
		{"estimate", (*suite).testEstimate},
		{"snapshots are atomic", (*suite).testSnapshot},
		{"holds", (*suite).testHold},
		{"bookmarks", (*suite).testBookmark},
		{"destroy", (*suite).testDestroy},
		{"parents", (*suite).testCreateParents},
		{"apply", (*suite).testApply},
	}
}

func (s *suite) testFacts(t *testing.T, _ *zfstest.Pool) {
	f, err := hosts.Call(t.Context(), s.source, hosts.OpFacts, hosts.None{})
	require.NoError(t, err)
	require.NotEmpty(t, f.ZFS)
	require.NotEmpty(t, f.Kernel)
	require.NotEmpty(t, f.Version)
	require.NotEmpty(t, f.Backend)
	require.Positive(t, f.CPUs)
	require.True(t, f.Root)
	require.NotEmpty(t, s.source.Name())
}

func (s *suite) testList(t *testing.T, p testPool) {
	ds, below := p.Create("a"), p.Create("a/b c")
	p.Create("other")
	p.Snapshot(ds, "one")
	p.ZFS("bookmark", ds+"@one", ds+"#one")
	p.Snapshot(ds, "two")
	l, err := hosts.Call(t.Context(), s.host, hosts.OpList, hosts.ListQuery{Dataset: ds, Recursive: true, Versions: true})
	require.NoError(t, err)
	require.Equal(t, ds, l.Root)
	require.Equal(t, p.Root(), l.Pool.Name)
	require.Len(t, l.Ancestors, 1)
	require.Len(t, l.Datasets, 2)
	require.Equal(t, below, l.Datasets[1].Name)
	var names []string
	for _, v := range l.Datasets[0].Versions {
		names = append(names, v.Short())
	}
	require.Equal(t, []string{"#one", "@one", "@two"}, names)

	// Otherwise the clone's most recent snapshot would be its origin, which belongs to another
	// dataset.
	clone := p.Dataset("a/clone")
	p.ZFS("clone", ds+"@one", clone)
	short, err := hosts.Call(t.Context(), s.host, hosts.OpList, hosts.ListQuery{Dataset: ds, Recursive: true, Newest: true})
	require.NoError(t, err)
	require.Len(t, short.Datasets, 3)
	two := l.Datasets[0].Versions[2]
	require.Equal(t, "two", two.Name)
	for i, want := range [][]zfs.Version{{two}, nil, nil} { // the dataset, its child, the clone
		require.Equal(t, want, short.Datasets[i].Versions)
		require.True(t, short.Datasets[i].NewestOnly)
	}
	require.False(t, l.Datasets[0].NewestOnly)

	l, err = hosts.Call(t.Context(), s.host, hosts.OpList, hosts.ListQuery{Dataset: ds})
	require.NoError(t, err)
	require.Len(t, l.Datasets, 1)
	require.Empty(t, l.Datasets[0].Versions)
	require.NotEmpty(t, l.Pool.Name)
	require.NotEmpty(t, l.Ancestors)

	l, err = hosts.Call(t.Context(), s.host, hosts.OpList, hosts.ListQuery{Dataset: ds, NoAncestors: true})
	require.NoError(t, err)
	require.Len(t, l.Datasets, 1)
	require.Empty(t, l.Pool.Name)
	require.Empty(t, l.Ancestors)

	l, err = hosts.Call(t.Context(), s.host, hosts.OpList, hosts.ListQuery{Dataset: ds, Only: []string{below, below + "/none"}, Versions: true, Changed: true})
	require.NoError(t, err)
	require.Len(t, l.Datasets, 1)
	require.Equal(t, below, l.Datasets[0].Name)
	require.InDelta(t, time.Now().Unix(), l.Started, 60)
}

func (s *suite) testListMissing(t *testing.T, p testPool) {
	q := hosts.ListQuery{Dataset: p.Dataset("none/at all"), Recursive: true, Versions: true}
	l, err := hosts.Call(t.Context(), s.host, hosts.OpList, q)
	require.NoError(t, err)
	require.Empty(t, l.Datasets)
	require.Len(t, l.Ancestors, 1)
	q.Dataset = "zxt-no-pool/a"
	_, err = hosts.Call(t.Context(), s.host, hosts.OpList, q)
	requireKind(t, err, zfs.NotFound)
}

func (s *suite) testDatasetOf(t *testing.T, p testPool) {
	if p.Path(p.Root(), "") == "" {
		t.Skip("nothing is mounted here")
	}
	ds := p.Create("a b")
	p.Write(ds, "file", 1, 1)
	for _, path := range []string{p.Path(ds, ""), p.Path(ds, "file")} {
		got, err := hosts.Call(t.Context(), s.host, hosts.OpDatasetOf, path)
		require.NoError(t, err)
		require.Equal(t, ds, got)
	}
	for _, path := range []string{"/proc", p.Path(ds, "no such file")} {
		_, err := hosts.Call(t.Context(), s.host, hosts.OpDatasetOf, path)
		requireKind(t, err, zfs.NotFound)
	}
}

func (s *suite) testProperties(t *testing.T, p testPool) {
	ds := p.Create("a", "-o", "compression=lz4", "-o", "zxt:note=two words")
	snap := p.Snapshot(ds, "x")
	names := []string{ds, snap, ds + "@none", p.Dataset("none"), "zxt-no-pool/a"}
	got, err := hosts.Call(t.Context(), s.host, hosts.OpProperties, hosts.PropertyQuery{Names: names, Properties: []string{"compression", "guid"}})
	require.NoError(t, err)
	require.Len(t, got, 2, "missing names are omitted")
	require.Equal(t, zfs.Property{Value: "lz4", Source: "local"}, got[ds]["compression"])
	require.Equal(t, p.Get(snap, "guid"), got[snap]["guid"].Value)

	got, err = hosts.Call(t.Context(), s.host, hosts.OpProperties, hosts.PropertyQuery{Names: []string{ds}, Properties: nil})
	require.NoError(t, err)
	require.Equal(t, map[string]zfs.Property{
		"compression": {Value: "lz4", Source: "local"}, "zxt:note": {Value: "two words", Source: "local"},
	}, got[ds], "only local properties")
}

func (s *suite) testEstimate(t *testing.T, p testPool) {
	ds := p.Create("a")
	for i, snap := range []string{"one", "two", "three"} {
		p.Write(ds, snap, int64(i+1)<<20, uint64(i))
		p.Snapshot(ds, snap)
	}
	sizes, err := hosts.Estimate(t.Context(), s.host, []zfs.SendSpec{
		{Dataset: ds, To: "one"},
		{Dataset: ds, From: "@one", To: "two"},
		{Dataset: ds, From: "@one", Through: []string{"two"}, To: "three"},
	})
	require.NoError(t, err)
	for i, want := range []uint64{1 << 20, 2 << 20, 5 << 20} {
		require.InDelta(t, want, sizes[i], float64(want)/4+100<<10, "stream %d", i)
	}
	_, err = hosts.Estimate(t.Context(), s.host, []zfs.SendSpec{{Dataset: ds, To: "none"}})
	requireKind(t, err, zfs.NotFound)
}

func (s *suite) testSnapshot(t *testing.T, p testPool) {
	a, b := p.Create("a"), p.Create("b")
	require.NoError(t, hosts.Run(t.Context(), s.host, hosts.OpSnapshot, []string{a + "@x", b + "@x"}))
	require.True(t, exists(t, p, a+"@x"))
	require.True(t, exists(t, p, b+"@x"))
	require.NoError(t, hosts.Run(t.Context(), s.host, hosts.OpDestroy, []string{a + "@x"}))
	requireKind(t, hosts.Run(t.Context(), s.host, hosts.OpSnapshot, []string{a + "@x", b + "@x"}), zfs.Exists)
	require.False(t, exists(t, p, a+"@x"))
}

func (s *suite) testHold(t *testing.T, p testPool) {
	snap := p.Snapshot(p.Create("a"), "x")
	for range 2 {
		require.NoError(t, hosts.Run(t.Context(), s.host, hosts.OpHold, hosts.Tagged{Tag: "keep", Snapshots: []string{snap}}))
	}
	requireKind(t, hosts.Run(t.Context(), s.host, hosts.OpDestroy, []string{snap}), zfs.Busy)
	requireKind(t, hosts.Run(t.Context(), s.host, hosts.OpHold, hosts.Tagged{Tag: "keep", Snapshots: []string{p.Dataset("a@none")}}), zfs.NotFound)
	for range 2 {
		require.NoError(t, hosts.Run(t.Context(), s.host, hosts.OpRelease, hosts.Tagged{Tag: "keep", Snapshots: []string{snap, p.Dataset("a@none")}}))
	}
	require.NoError(t, hosts.Run(t.Context(), s.host, hosts.OpDestroy, []string{snap}))
}

func (s *suite) testBookmark(t *testing.T, p testPool) {
	ds := p.Create("a")
	one, two := p.Snapshot(ds, "one"), p.Snapshot(ds, "two")
	for range 2 {
		require.NoError(t, hosts.Run(t.Context(), s.host, hosts.OpBookmark, map[string]string{ds + "#x": one}))
	}
	require.Equal(t, p.Get(one, "guid"), p.Get(ds+"#x", "guid"))
	requireKind(t, hosts.Run(t.Context(), s.host, hosts.OpBookmark, map[string]string{ds + "#x": two}), zfs.Exists)
}

func (s *suite) testDestroy(t *testing.T, p testPool) {
	ds := p.Create("a")
	one := p.Snapshot(ds, "one")
	two := p.Snapshot(ds, "two")
	p.ZFS("bookmark", one, ds+"#one")
	for range 2 {
		require.NoError(t, hosts.Run(t.Context(), s.host, hosts.OpDestroy, []string{one, ds + "#one", p.Dataset("none@x")}))
	}
	require.False(t, exists(t, p, one))
	require.False(t, exists(t, p, ds+"#one"))
	require.Error(t, hosts.Run(t.Context(), s.host, hosts.OpDestroy, []string{two, ds}), "a dataset is never destroyed")
	require.True(t, exists(t, p, two))
}

func (s *suite) testCreateParents(t *testing.T, p testPool) {
	for range 2 {
		require.NoError(t, hosts.Run(t.Context(), s.host, hosts.OpCreateParents, p.Dataset("a/b c/d")))
	}
	for _, parent := range []string{p.Dataset("a"), p.Dataset("a/b c")} {
		require.Equal(t, "off", p.Get(parent, "canmount"))
	}
	require.False(t, exists(t, p, p.Dataset("a/b c/d")))
	requireKind(t, hosts.Run(t.Context(), s.host, hosts.OpCreateParents, "zxt-no-pool/a/b"), zfs.NotFound)
}

func (s *suite) testErrors(t *testing.T, p testPool) {
	err := hosts.Run(t.Context(), s.source, hosts.OpSnapshot, []string{p.Dataset("none@x")})
	requireKind(t, err, zfs.NotFound)
	require.NotErrorIs(t, err, &zfs.Error{Kind: zfs.Busy})
	require.NotErrorIs(t, err, hosts.ErrLost)
	_, err = hosts.Call(t.Context(), s.source, hosts.OpDigest, hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: p.Root(), To: "none"}})
	requireKind(t, err, zfs.NotFound)
	err = hosts.Run(t.Context(), s.source, hosts.OpHold, hosts.Tagged{Tag: "x", Snapshots: []string{"not a name"}})
	requireKind(t, err, zfs.InvalidName)
}

func (s *suite) testEndedContext(t *testing.T, p testPool) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := hosts.Call(ctx, s.source, hosts.OpList, hosts.ListQuery{Dataset: p.Root()})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, hosts.Run(ctx, s.source, hosts.OpSnapshot, []string{p.Root() + "@x"}), context.Canceled)
	_, err = hosts.Call(ctx, s.source, hosts.OpDigest, hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: p.Root(), To: "x"}})
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, exists(t, p, p.Root()+"@x"))
}

// testHints expects the hints of errors, which are as important as their text.
func (s *suite) testHints(t *testing.T, pool *zfstest.Pool) {
	p := realPool{pool}
	_, err := hosts.Call(t.Context(), s.target, hosts.OpOffer, tcp.Offer{Mode: tcp.Signed, Address: "192.0.2.1"})
	var e *fault.Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Hint)
	require.Equal(t, e.Hint, fault.HintOf(err))

	snap := p.Snapshot(p.Create("a"), "x")
	require.NoError(t, hosts.Run(t.Context(), s.source, hosts.OpHold, hosts.Tagged{Tag: "keep", Snapshots: []string{snap}}))
	require.Contains(t, fault.HintOf(hosts.Run(t.Context(), s.source, hosts.OpDestroy, []string{snap})), "zfs holds "+snap)
	require.NoError(t, hosts.Run(t.Context(), s.source, hosts.OpRelease, hosts.Tagged{Tag: "keep", Snapshots: []string{snap}}))

	require.Equal(t, fault.Usage, fault.ClassOf(hosts.Run(t.Context(), s.source, hosts.OpDestroy, []string{p.Dataset("a")})))

	enc, _ := p.CreateEncrypted("e")
	p.Snapshot(enc, "x")
	lock(p.Pool, enc)
	_, err = hosts.Call(t.Context(), s.source, hosts.OpDigest, hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: enc, To: "x"}})
	requireKind(t, err, zfs.KeyMissing)
	require.Contains(t, fault.HintOf(err), "zfs load-key "+enc)
	require.ErrorContains(t, err, enc+"@x")
}

func (s *suite) testDigest(t *testing.T, p testPool) {
	one, other := p.Create("one"), p.Create("other")
	for ds, seed := range map[string]uint64{one: 1, other: 2} {
		p.Write(ds, "file", 1<<20, seed)
		p.Snapshot(ds, "x")
	}
	digest := func(spec zfs.SendSpec) string {
		d, err := hosts.Call(t.Context(), s.source, hosts.OpDigest, hosts.ContentQuery{SendSpec: spec})
		require.NoError(t, err)
		require.Len(t, d.Sum, 32)
		require.Greater(t, d.Bytes, uint64(1<<20))
		return d.Sum
	}
	first := digest(zfs.SendSpec{Dataset: one, To: "x"})
	require.Equal(t, first, digest(zfs.SendSpec{Dataset: one, To: "x"}))
	require.NotEqual(t, first, digest(zfs.SendSpec{Dataset: other, To: "x"}))
	p.Write(one, "file", 1<<20, 3)
	p.Snapshot(one, "y")
	require.NotEqual(t, digest(zfs.SendSpec{Dataset: one, From: "@x", To: "y"}), digest(zfs.SendSpec{Dataset: one, To: "y"}))
}

// testApply takes, holds and destroys a snapshot in one list of changes. The hold stops the list at the first
// destruction.
func (s *suite) testApply(t *testing.T, p testPool) {
	ds := p.Create("a")
	snap := []string{ds + "@x"}
	held := hosts.Tagged{Tag: "keep", Snapshots: snap}
	list := &hosts.ListQuery{Dataset: ds, Versions: true}
	destroy, release := hosts.OpDestroy.Change(snap), hosts.OpRelease.Change(held)
	found, err := hosts.Call(t.Context(), s.host, hosts.OpApply, hosts.ChangeList{Changes: []hosts.Change{hosts.OpSnapshot.Change(snap)}, List: list})
	require.NoError(t, err)
	require.Len(t, found.Datasets[0].Versions, 1)
	done, err := hosts.Apply(t.Context(), s.host, []hosts.Change{hosts.OpHold.Change(held), destroy, release, destroy})
	requireKind(t, err, zfs.Busy)
	require.Equal(t, 1, done)
	require.True(t, exists(t, p, snap[0]))
	found, err = hosts.Call(t.Context(), s.host, hosts.OpApply, hosts.ChangeList{Changes: []hosts.Change{release, destroy}, List: list})
	require.NoError(t, err)
	require.Empty(t, found.Datasets[0].Versions)
	require.False(t, exists(t, p, snap[0]))
	list.Dataset = zfs.PoolOf(ds) + "-other/a"
	_, err = hosts.Call(t.Context(), s.host, hosts.OpApply, hosts.ChangeList{Changes: []hosts.Change{hosts.OpSnapshot.Change(snap)}, List: list})
	requireKind(t, err, zfs.NotFound)
	require.Equal(t, 1, hosts.Done(err))
	require.True(t, exists(t, p, snap[0]))
}
