package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// replaceByName is a vulnerable writer: it sets the mode by name after it has written the file.
// TestSwappedFileIsNotFollowed defeats it.
func replaceByName(path string, text []byte, mode os.FileMode) error {
	temp := filepath.Join(filepath.Dir(path), ".zxfer-1.new")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Chmod(temp, mode); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// TestSwappedFileIsNotFollowed lets the owner of the directory replace each temporary file
// with a link to a file of mode 0600. It expects that the other file keeps its mode.
func TestSwappedFileIsNotFollowed(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(path string) error{
		"Replace": func(path string) error { return Replace(path, []byte("new"), 0o644) },
		"Put":     func(path string) error { return ReplaceKeepingMode(path, []byte("new")) },
		"Create": func(path string) error {
			_ = os.Remove(path) // so that it is a new file
			return Create(path, []byte("new"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outside, dir := filepath.Join(t.TempDir(), "secret"), t.TempDir()
			changed := func() bool { // also restores the mode
				info, err := os.Stat(outside)
				was := err == nil && info.Mode().Perm() == 0o600
				text, err := os.ReadFile(outside)
				was = was && err == nil && string(text) == "secret"
				require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o600))
				require.NoError(t, os.Chmod(outside, 0o600))
				return !was
			}
			changed()
			defer testenv.Repeat(func() {
				all, _ := os.ReadDir(dir)
				for _, e := range all {
					if temp := filepath.Join(dir, e.Name()); strings.HasSuffix(temp, ".new") {
						_ = os.Remove(temp)
						_ = os.Symlink(outside, temp)
					}
				}
			})()
			path := filepath.Join(dir, "zxfer.prom")
			testenv.Race(t, 20, func() bool {
				_ = os.RemoveAll(filepath.Join(dir, ".zxfer-1.new"))
				_ = os.Remove(path)
				_ = replaceByName(path, []byte("old"), 0o644) // fails if the attack succeeds halfway
				return changed()
			}, func() {
				// ReplaceKeepingMode takes the mode of a regular file.
				_ = os.Remove(path)
				require.NoError(t, os.WriteFile(path, nil, 0o644))
				_ = put(path)
				require.False(t, changed())
			})
		})
	}
}

// TestReplaceKeepingMode expects ReplaceKeepingMode to keep the mode of private and of public files.
func TestReplaceKeepingMode(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, ReplaceKeepingMode(name, []byte("one")))
	for _, mode := range []os.FileMode{0o600, 0o666} {
		require.NoError(t, os.Chmod(name, mode))
		require.NoError(t, ReplaceKeepingMode(name, []byte("two")))
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
	}
}

// TestFilesAreReplacedAtomically expects that a reader sees either the old file or the complete new one.
func TestFilesAreReplacedAtomically(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "jobs.toml")
	require.NoError(t, Create(name, []byte("one"), 0o644))
	require.ErrorIs(t, Create(name, []byte("two"), 0o644), fs.ErrExist)
	require.NoError(t, write(name, []byte("two"), 0o600, nil, func(dir *os.Root, from, to string) error {
		now, err := dir.ReadFile(to)
		require.NoError(t, err)
		require.Equal(t, "one", string(now))
		next, err := dir.ReadFile(from)
		require.NoError(t, err)
		require.Equal(t, "two", string(next))
		return dir.Rename(from, to)
	}))
	require.Error(t, write(name, nil, 0o600, nil, func(*os.Root, string, string) error { return fs.ErrInvalid }))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "two", string(text))
	all, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, all, 1, "nothing else is left")
}

// TestReplaceFollowsOnlyOwnLinks expects that a write follows a symbolic link in the path only if
// no other user can change it. Otherwise the owner of a directory could redirect root to /etc.
func TestReplaceFollowsOnlyOwnLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"real", "parent"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	for link, target := range map[string]string{"absolute": dir + "/real", "parent/relative": "../real/.", "chain": "parent/relative", "loop": "loop"} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	put := func(link string) error { return Replace(filepath.Join(dir, link, "zxfer.prom"), []byte(link), 0o644) }
	for _, link := range []string{"real", "absolute", "parent/relative", "chain", "parent/../real"} {
		require.NoError(t, put(link))
		text, err := os.ReadFile(filepath.Join(dir, "real", "zxfer.prom"))
		require.NoError(t, err)
		require.Equal(t, link, string(text))
	}
	require.ErrorContains(t, put("loop"), "too many levels of symbolic links")
	require.ErrorContains(t, put("real/zxfer.prom"), "not a directory")
	require.ErrorIs(t, put("none"), fs.ErrNotExist)
	require.NoError(t, os.Chmod(filepath.Join(dir, "parent"), 0o777))
	for _, link := range []string{"parent/relative", "chain"} {
		require.ErrorContains(t, put(link), `another user can change the symbolic link "relative"`)
	}
	if os.Getuid() != 0 {
		return
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "parent"), 0o755))
	require.NoError(t, os.Lchown(filepath.Join(dir, "parent/relative"), 1234, 1234))
	require.ErrorContains(t, put("chain"), "another user can change")
	require.NoError(t, os.Lchown(filepath.Join(dir, "parent/relative"), 0, 0))
	require.NoError(t, os.Chown(filepath.Join(dir, "parent"), 1234, 1234))
	require.ErrorContains(t, put("chain"), "another user can change")
}

// TestExchangedDirectoryIsNotFollowed lets another user exchange a directory and a link to another
// one while files are written. It expects no file in the other one.
func TestExchangedDirectoryIsNotFollowed(t *testing.T) {
	t.Parallel()
	outside, parent := t.TempDir(), t.TempDir()
	require.NoError(t, os.Chmod(parent, 0o777))
	dir, other := filepath.Join(parent, "node-exporter"), filepath.Join(parent, "other")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Symlink(outside, other))
	defer testenv.Repeat(func() {
		_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
	})()
	stray := func() bool {
		all, err := os.ReadDir(outside)
		require.NoError(t, err)
		for _, e := range all {
			_ = os.Remove(filepath.Join(outside, e.Name()))
		}
		return len(all) > 0
	}
	path := filepath.Join(dir, "zxfer.prom")
	testenv.Race(t, 20, func() bool {
		_ = replaceByName(path, []byte("old"), 0o644)
		return stray()
	}, func() {
		_ = Replace(path, []byte("new"), 0o644)
		require.False(t, stray())
	})
}
