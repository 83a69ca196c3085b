package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// TestSimulate expects that a simulated snapshot is newer than all others and differs from them. The
// listing itself, which others share, does not change.
func TestSimulate(t *testing.T) {
	t.Parallel()
	old := zfs.Version{Kind: zfs.Snapshot, Name: "old", GUID: 7, CreateTXG: 41}
	l := zfs.Listing{Root: "a", Datasets: []*zfs.Dataset{{Name: "a", Versions: []zfs.Version{old}}, {Name: "a/b"}, {Name: "a/c"}}}
	out := Simulate(l, func(dataset string) string {
		if dataset == "a/c" {
			return ""
		}
		return "new"
	})
	require.Equal(t, []zfs.Version{old}, l.Datasets[0].Versions)
	require.Equal(t, []string{"a@new", "a/b@new"}, SnapshotsNamed(out, "new"))
	require.Equal(t, []string{"a@old"}, SnapshotsNamed(out, "old"))
	require.Empty(t, SnapshotsNamed(out, "ol"))
	latest, ok := out.Datasets[0].Latest()
	require.True(t, ok)
	require.Equal(t, "new", latest.Name)
	require.Equal(t, uint64(42), latest.CreateTXG)
	require.True(t, latest.Simulated)
	require.Len(t, out.Datasets[1].Versions, 1)
	require.NotEqual(t, latest.GUID, out.Datasets[1].Versions[0].GUID)
	require.Same(t, l.Datasets[2], out.Datasets[2])
}

// TestPredict expects that arriving snapshots become the most recent ones, in the source's order,
// and that new datasets are created. The listings do not change.
func TestPredict(t *testing.T) {
	t.Parallel()
	snap := func(name string, guid, txg uint64) zfs.Version {
		return zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: guid, CreateTXG: txg}
	}
	source := zfs.Listing{Datasets: []*zfs.Dataset{
		{Name: "a", Versions: []zfs.Version{snap("1", 1, 1), snap("2", 2, 2), snap("other", 9, 3), snap("3", 3, 4)}},
		{Name: "a/b", Versions: []zfs.Version{snap("1", 11, 1)}},
	}}
	target := zfs.Listing{Datasets: []*zfs.Dataset{{Name: "t", Versions: []zfs.Version{snap("1", 1, 70)}}}}
	p := &Plan{Datasets: []*Dataset{
		{Source: "a", Target: "t", Steps: []Step{{Send: zfs.SendSpec{Dataset: "a", From: "@1", Through: []string{"2"}, To: "3"}}}},
		{Source: "a/b", Target: "t/b", Steps: []Step{{Kind: Full, Send: zfs.SendSpec{Dataset: "a/b", To: "1"}}}},
	}}
	out := p.Predict(source, target)
	require.Equal(t, []zfs.Version{snap("1", 1, 70), snap("2", 2, 71), snap("3", 3, 72)}, out.Datasets[0].Versions)
	require.Equal(t, []zfs.Version{snap("1", 11, 1)}, out.Find("t/b").Versions)
	require.Len(t, target.Datasets, 1)
	require.Len(t, target.Datasets[0].Versions, 1)
	require.Equal(t, target.Datasets, (&Plan{Datasets: []*Dataset{{Source: "a", Target: "t"}}}).Predict(source, target).Datasets)
}
