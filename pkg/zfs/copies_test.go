package zfs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsJobTag(t *testing.T) {
	t.Parallel()
	for tag, own := range map[string]bool{"zxfer:home:near": true, "zxfer:home:": true, "zxfer:home": false, "zxfer:": false, "mine": false, "zxferx:a:b": false, "": false} {
		require.Equal(t, own, IsJobTag(tag), tag)
	}
}

// TestRollbackNewer expects a list of the snapshots that a rollback destroys, and a refusal of
// snapshots that are not on the given list.
func TestRollbackNewer(t *testing.T) {
	t.Parallel()
	d := &Dataset{Name: "tank/a", Versions: []Version{
		{Kind: Bookmark, Name: "a", GUID: 1, CreateTXG: 1}, {Kind: Snapshot, Name: "a", GUID: 1, CreateTXG: 1},
		{Kind: Bookmark, Name: "b", GUID: 2, CreateTXG: 2}, {Kind: Snapshot, Name: "b", GUID: 2, CreateTXG: 2},
	}}
	newer := []Version{{Kind: Snapshot, Name: "b", GUID: 2}, {Kind: Bookmark, Name: "b", GUID: 2}}
	at := func(name string, guid uint64, loses ...Version) Rollback {
		return Rollback{Dataset: "tank/a", To: SnapshotID{Name: name, GUID: guid}, Loses: loses}
	}
	names, why := at("a", 1, newer...).Newer(d)
	require.Empty(t, why)
	require.Equal(t, []string{"tank/a#b", "tank/a@b"}, names)
	names, why = at("b", 2).Newer(d)
	require.Empty(t, why)
	require.Empty(t, names, "the bookmark of the snapshot itself is kept")
	for _, r := range []Rollback{
		at("a", 1), at("a", 1, newer[0]), at("a", 1, newer[1]), at("a", 1, Version{Kind: Snapshot, Name: "b", GUID: 3}, newer[1]),
		at("a", 2, newer...), at("b", 1, newer...), at("c", 7),
	} {
		names, why = r.Newer(d)
		require.NotEmpty(t, why, "%v", r)
		require.Empty(t, names)
	}
	require.NoError(t, at("a", 1, newer...).Check())
	for _, r := range []Rollback{
		{}, at("", 1), at("a", 0), at("a b@c", 1), at("a,b", 1), {Dataset: "tank/a@x", To: SnapshotID{Name: "a", GUID: 1}}, {Dataset: "-r", To: SnapshotID{Name: "a", GUID: 1}},
		at("a", 1, Version{Kind: "/", Name: "b", GUID: 1}), at("a", 1, Version{Name: "b", GUID: 1}), at("a", 1, Version{Kind: Snapshot, Name: "b,c", GUID: 1}),
		at("a", 1, Version{Kind: Snapshot, Name: "b"}),
	} {
		require.Error(t, r.Check(), "%v", r)
	}
}

func TestNameBeforeRename(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"v/home.zxfer-2026-11-23T10-15-00Z":      "v/home",
		"v/home.zxfer-2026-11-23T10-15-00Z/a":    "v/home/a",
		"v/a.zxfer-x.zxfer-2026-11-23T10-15-00Z": "v/a.zxfer-x",
	} {
		got, ok := NameBeforeRename(name)
		require.True(t, ok, name)
		require.Equal(t, before, got)
	}
	for _, name := range []string{"v/home", "v/home.zxfer-", "v/home.zxfer-2026", "v/.zxfer-2026-11-23T10-15-00Z",
		"v/home.zxfer-2026-13-23T10-15-00Z", "v/home.zxfer-2026-11-23T10-15-00Zx", "v/home.zxfer-2026-11-23T10-15-00Z-old"} {
		require.False(t, IsDiverged(name), name)
	}
}

func FuzzNameBeforeRename(f *testing.F) {
	for _, s := range []string{"v/home.zxfer-2026-11-23T10-15-00Z", "v//.zxfer-", "", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		before, ok := NameBeforeRename(name)
		if !ok {
			require.Equal(t, name, before)
			return
		}
		require.Less(t, len(before), len(name))
		require.Equal(t, strings.Count(name, "/"), strings.Count(before, "/"))
	})
}

// TestOrphanKeepReasons expects each reason to keep a copy.
func TestOrphanKeepReasons(t *testing.T) {
	t.Parallel()
	const tag = "zxfer:j:t"
	g := Orphan{Dataset: "v/a", GUID: 1, Tag: tag, Snapshots: []SnapshotID{{Name: "x", GUID: 10}}}
	for name, c := range map[string]struct {
		change func(d *Dataset, l *Listing, of map[string]SnapshotRefs)
		why    string
	}{
		"nothing": {func(*Dataset, *Listing, map[string]SnapshotRefs) {}, ""},
		"interrupted before": {func(d *Dataset, _ *Listing, of map[string]SnapshotRefs) {
			of["v/a@x"] = SnapshotRefs{}
			d.Properties[OrphanProperty] = Property{Value: tag, Source: "local"}
		}, ""},
		"inherited mark": {func(d *Dataset, _ *Listing, of map[string]SnapshotRefs) {
			of["v/a@x"] = SnapshotRefs{}
			d.Properties[OrphanProperty] = Property{Value: tag, Source: "inherited from v"}
		}, "the job holds none"},
		"another dataset": {func(d *Dataset, _ *Listing, _ map[string]SnapshotRefs) { d.GUID = 2 }, "another dataset"},
		"descendant": {func(_ *Dataset, l *Listing, _ map[string]SnapshotRefs) {
			l.Datasets = append(l.Datasets, &Dataset{Name: "v/a/b"})
		}, "v/a/b is its descendant"},
		"it is mounted": {func(d *Dataset, _ *Listing, _ map[string]SnapshotRefs) {
			d.Properties["mounted"] = Property{Value: "yes"}
		}, "mounted"},
		"another snapshot": {func(d *Dataset, _ *Listing, _ map[string]SnapshotRefs) { d.Versions[0].GUID = 11 }, "which the job did not send"},
		"one more snapshot": {func(d *Dataset, _ *Listing, _ map[string]SnapshotRefs) {
			d.Versions = append(d.Versions, Version{Kind: Snapshot, Name: "y", GUID: 12})
		}, "which the job did not send"},
		"foreign hold": {func(_ *Dataset, _ *Listing, of map[string]SnapshotRefs) {
			of["v/a@x"] = SnapshotRefs{Tags: []string{tag, "mine"}}
		}, "is held (mine)"},
		"hold of another job": {func(_ *Dataset, _ *Listing, of map[string]SnapshotRefs) {
			of["v/a@x"] = SnapshotRefs{Tags: []string{"zxfer:other:t"}}
		}, "is held (zxfer:other:t)"},
		"a clone": {func(_ *Dataset, _ *Listing, of map[string]SnapshotRefs) {
			of["v/a@x"] = SnapshotRefs{Tags: []string{tag}, Clones: []string{"v/c"}}
		}, "has the clone v/c"},
		"no hold": {func(_ *Dataset, _ *Listing, of map[string]SnapshotRefs) { of["v/a@x"] = SnapshotRefs{} }, "the job holds none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &Dataset{Name: "v/a", GUID: 1, Properties: map[string]Property{}, Versions: []Version{{Kind: Snapshot, Name: "x", GUID: 10}}}
			l, of := &Listing{Root: "v/a", Datasets: []*Dataset{d}}, map[string]SnapshotRefs{"v/a@x": {Tags: []string{tag}}}
			c.change(d, l, of)
			require.Contains(t, g.RefusalReason(l, of), c.why)
			require.Equal(t, c.why == "", g.RefusalReason(l, of) == "")
		})
	}
}
