package zfs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOwnTag(t *testing.T) {
	t.Parallel()
	for tag, own := range map[string]bool{"zxfer:home:near": true, "zxfer:home:": true, "zxfer:home": false, "zxfer:": false, "mine": false, "zxferx:a:b": false, "": false} {
		require.Equal(t, own, IsJobTag(tag), tag)
	}
}

// TestRollbackNewer lists what a rollback destroys, and refuses what it was not told of.
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
	require.Empty(t, names, "the bookmark of the snapshot itself stays")
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
