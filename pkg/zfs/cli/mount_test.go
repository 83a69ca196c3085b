package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinkInMountpoint expects that a place leads only through links of root outside of foreign directories.
func TestLinkInMountpoint(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir+"/data/real", 0o700))
	require.NoError(t, os.Symlink("/etc", dir+"/data/link"))
	require.NoError(t, os.Symlink(dir+"/data", dir+"/own"))
	foreign := func(in string) bool { return filepath.Base(in) == "data" || os.Geteuid() != 0 }
	for path, want := range map[string]string{
		"/data/link":           "/data/link",
		"/data/link/":          "/data/link",
		"/data/link/cron.d":    "/data/link",
		"/data/link/missing":   "/data/link",
		"/data/real/new":       "",
		"/data/missing/x":      "",
		"/data/real/../link":   "/data/link",
		"/data/real/../../own": map[bool]string{true: "", false: "/own"}[os.Geteuid() == 0],
	} {
		p, err := findPlaceIn(dir+path, foreign)
		if want == "" {
			require.NoError(t, err, path)
			require.NotEmpty(t, p.path)
			continue
		}
		require.ErrorAs(t, err, &errLink{}, path)
		require.ErrorContains(t, err, dir+want+" is a symbolic link", path)
	}
	if os.Geteuid() == 0 {
		p, err := findPlaceIn(dir+"/own/real/new", func(string) bool { return false })
		require.NoError(t, err)
		require.Equal(t, dir+"/data/real/new", p.path, "a link of root")
	}
}

// TestPlaceOfOtherUser expects that a directory that another user can change is no place for a mount at boot, and
// that no link in it is followed.
func TestPlaceOfOtherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	none := func(string) bool { return false }
	for name, c := range map[string]struct {
		mode  os.FileMode
		owner int
		loose bool
	}{
		"root": {0o755, 0, false}, "user": {0o755, 1000, true}, "group": {0o775, 0, true}, "all": {0o777, 0, true}, "sticky": {0o777 | os.ModeSticky, 0, false},
	} {
		at := dir + "/" + name
		require.NoError(t, os.MkdirAll(at+"/child", 0o755))
		require.NoError(t, os.Symlink("/etc", at+"/link"))
		require.NoError(t, os.Lchown(at+"/link", 1000, 0))
		require.NoError(t, os.Chown(at, c.owner, 0))
		require.NoError(t, os.Chmod(at, c.mode))
		p, err := findPlaceIn(at+"/child", none)
		require.NoError(t, err)
		require.Equal(t, c.loose, p.loose != "", "%s: %s", name, p.loose)
		if _, err := findPlaceIn(at+"/link/x", none); c.loose || name == "sticky" {
			require.ErrorContains(t, err, "is a symbolic link", name)
		}
	}
}
