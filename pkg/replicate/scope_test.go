package replicate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestScope(t *testing.T) {
	t.Parallel()
	j := &Job{Name: "a", Snapshots: Snapshots{Take: "x-%Y%m%dT%H%MZ", Adopt: []string{"auto-*"}}}
	s, err := j.Scope()
	require.NoError(t, err)
	for name, want := range map[string]bool{"x-20260203T0405Z": true, "auto-1": true, "x-2026": false, "manual": false} {
		require.Equal(t, want, s.Has(name), name)
	}
	require.Len(t, s.Patterns(), 2)
}

// TestScopeCounts expects that the scope contains the job's own and adopted snapshots, but no
// bookmarks or other snapshots.
func TestScopeCounts(t *testing.T) {
	t.Parallel()
	j := &Job{Name: "j", Snapshots: Snapshots{Take: "own-%Y%m%d%H%M", Adopt: []string{"auto-*"}}}
	s, err := j.Scope()
	require.NoError(t, err)
	d := &zfs.Dataset{Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: "own-202611011200"}, {Kind: zfs.Snapshot, Name: "auto-1"},
		{Kind: zfs.Bookmark, Name: "auto-2"}, {Kind: zfs.Snapshot, Name: "manual"}}}
	require.Equal(t, 2, s.Count(d))
	require.Equal(t, []string{"auto-1"}, s.Adopted(d))
}
