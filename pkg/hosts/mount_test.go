package hosts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinkInMountpoint expects that only links in foreign directories are found.
func TestLinkInMountpoint(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir+"/data/real", 0o700))
	require.NoError(t, os.Symlink("/etc", dir+"/data/link"))
	require.NoError(t, os.Symlink(dir+"/data", dir+"/own"))
	foreign := func(in string) bool { return filepath.Base(in) == "data" }
	for path, want := range map[string]string{
		"/data/link":           "/data/link",
		"/data/link/":          "/data/link",
		"/data/link/cron.d":    "/data/link",
		"/data/link/missing":   "/data/link",
		"/data/real/new":       "",
		"/data/missing/x":      "",
		"/own/real":            "",
		"/data/real/../link":   "/data/link",
		"/data/real/../../own": "",
	} {
		got := linkIn(dir+path, foreign)
		if want != "" {
			want = dir + want
		}
		require.Equal(t, want, got, path)
	}
	for _, path := range []string{"none", "legacy", "", "/"} {
		require.Empty(t, linkIn(path, foreign))
	}
}
