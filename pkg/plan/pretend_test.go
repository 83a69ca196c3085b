package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// What is about to be taken is newer than all there is, and told from all else;
// the listing itself, which others share, stays as it was.
func TestPretend(t *testing.T) {
	t.Parallel()
	old := zfs.Version{Kind: zfs.Snapshot, Name: "old", GUID: 7, CreateTXG: 41}
	l := zfs.Listing{Root: "a", Datasets: []*zfs.Dataset{{Name: "a", Versions: []zfs.Version{old}}, {Name: "a/b"}, {Name: "a/c"}}}
	out := Pretend(l, func(dataset string) string {
		if dataset == "a/c" {
			return ""
		}
		return "new"
	})
	require.Equal(t, []zfs.Version{old}, l.Datasets[0].Versions)
	require.Equal(t, []string{"a@new", "a/b@new"}, Taken(out, "new"))
	require.Equal(t, []string{"a@old"}, Taken(out, "old"))
	require.Empty(t, Taken(out, "ol"))
	latest, ok := out.Datasets[0].Latest()
	require.True(t, ok)
	require.Equal(t, "new", latest.Name)
	require.Equal(t, uint64(42), latest.CreateTXG)
	require.Len(t, out.Datasets[1].Versions, 1)
	require.NotEqual(t, latest.GUID, out.Datasets[1].Versions[0].GUID)
	require.Same(t, l.Datasets[2], out.Datasets[2])
}
