package sshexec

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
)

// stranger is a user other than the account on the host.
const stranger = 65534

// cached returns the path at which a host keeps the stand-in.
func (o *other) cached() string { return filepath.Join(o.home, ".cache", "zxfer", standIn.id, "zxfer") }

// fallbackCache is the fallback directory if no home can store zxfer.
func (o *other) fallbackCache() string {
	return filepath.Join(o.tmp, "zxfer-"+strconv.Itoa(os.Geteuid()))
}

// plant puts a program at the path of the cached zxfer. It has the right size, prints the right id,
// and creates the file trace if it runs.
func (o *other) plant(path string) (trace string) {
	o.t.Helper()
	trace = filepath.Join(o.t.TempDir(), "trace")
	text := "#!/bin/sh\necho >>'" + trace + "'\n[ \"$2\" = --id ] && echo " + standIn.id + "\nexit\n"
	require.NoError(o.t, os.MkdirAll(filepath.Dir(path), 0o700))
	testenv.WriteProgram(o.t, path, text)
	require.NoError(o.t, os.Truncate(path, int64(len(standIn.bytes))))
	return trace
}

// requireCopiedOnce connects twice: zxfer is copied only the first time.
func requireCopiedOnce(t *testing.T, o *other) {
	t.Helper()
	for _, copied := range []bool{true, false} {
		r := o.connect()
		requireWorks(t, r)
		require.NoError(t, r.Close())
		require.Equal(t, copied, strings.Contains(o.logged(), "copying zxfer there"))
	}
}

// tree returns all files below a directory.
func tree(t *testing.T, dir string) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		all = append(all, path)
		return err
	}))
	return all
}

// TestDamagedCopyIsReplaced expects that a damaged copy of the right size is replaced. It once
// failed at each connection.
func TestDamagedCopyIsReplaced(t *testing.T) {
	t.Parallel()
	skipManyCopies(t)
	for name, damage := range map[string]func(t *testing.T, file string){
		"zeroes": func(t *testing.T, file string) {
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(file, 0))
			require.NoError(t, os.Truncate(file, info.Size()))
		},
		"one flipped bit": func(t *testing.T, file string) {
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			require.NoError(t, err)
			defer f.Close()
			b := make([]byte, 1)
			_, err = f.ReadAt(b, 1<<20)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte{b[0] ^ 1}, 1<<20)
			require.NoError(t, err)
		},
		"not executable": func(t *testing.T, file string) { require.NoError(t, os.Chmod(file, 0o600)) },
		"a directory": func(t *testing.T, file string) {
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Mkdir(file, 0o700))
		},
		"a file instead of a directory": func(t *testing.T, file string) {
			require.NoError(t, os.RemoveAll(filepath.Dir(file)))
			require.NoError(t, os.WriteFile(filepath.Dir(file), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "")
			requireCopiedOnce(t, o)
			damage(t, o.cached())
			requireCopiedOnce(t, o)
		})
	}
}

// TestCopyIsHashedAfterReboot expects that after a reboot, a checked file is hashed again. A
// power failure may have lost its data without changing its time.
func TestCopyIsHashedAfterReboot(t *testing.T) {
	t.Parallel()
	skipManyCopies(t)
	o := newOther(t, "sh", "")
	requireCopiedOnce(t, o)
	mark := filepath.Join(filepath.Dir(o.cached()), "whole")
	info, err := os.Stat(o.cached())
	require.NoError(t, err)
	require.NoError(t, os.Truncate(o.cached(), 0))
	require.NoError(t, os.Truncate(o.cached(), info.Size()))
	require.NoError(t, os.Chtimes(o.cached(), info.ModTime(), info.ModTime()))
	require.NoError(t, os.WriteFile(mark, []byte("an earlier start\n"), 0o600))
	requireCopiedOnce(t, o)
}

func TestReadOnlyCacheIsUsed(t *testing.T) {
	t.Parallel()
	testenv.NeedsRoot(t, "to mount")
	o := newOther(t, "sh", "")
	if out, err := exec.Command("mount", "-t", "tmpfs", "tmpfs", o.home).CombinedOutput(); err != nil {
		t.Skipf("needs a mount: %v: %s", err, out)
	}
	unmountAtEnd(t, o.home)
	requireCopiedOnce(t, o)
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(o.cached()), "whole")))
	require.NoError(t, exec.Command("mount", "-o", "remount,ro", o.home).Run())
	requireWorks(t, o.connect())
	require.NotContains(t, o.logged(), "copying zxfer there")
}

// TestDamagedCopyIsFoundWithoutSha256sum expects that without sha256sum, the copy itself prints
// its id. That is safe, because only the account can have written it.
func TestDamagedCopyIsFoundWithoutSha256sum(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "PATH=$HOME/../bin")
	for _, name := range []string{"sh", "uname", "head", "wc", "mkdir", "mv", "rm", "rmdir", "chmod", "ls", "tail", "id", "find", "grep"} { // nor gzip
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(o.bin, name)))
	}
	requireCopiedOnce(t, o)
	require.NoError(t, os.Truncate(o.cached(), 0))
	require.NoError(t, os.Truncate(o.cached(), int64(len(standIn.bytes))))
	requireCopiedOnce(t, o)
}

// TestForeignCacheIsNeitherRunNorWritten expects that files that other users created or can
// write are neither run nor written to.
func TestForeignCacheIsNeitherRunNorWritten(t *testing.T) {
	t.Parallel()
	skipManyCopies(t)
	elsewhere := func(o *other) string { return filepath.Join(filepath.Dir(o.home), "elsewhere") }
	chown := func(t *testing.T, path string) {
		testenv.NeedsRoot(t, "to make files of another user")
		require.NoError(t, os.Lchown(path, stranger, stranger))
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, o *other)
		away    bool // the cache cannot be repaired: zxfer is stored elsewhere
	}{
		"a program that claims to be zxfer": {func(t *testing.T, o *other) {}, false},
		"program of another user":           {func(t *testing.T, o *other) { chown(t, o.cached()) }, false},
		"program writable by others":        {func(t *testing.T, o *other) { require.NoError(t, os.Chmod(o.cached(), 0o772)) }, false},
		"build of another user":             {func(t *testing.T, o *other) { chown(t, filepath.Dir(o.cached())) }, false},
		"build writable by the group":       {func(t *testing.T, o *other) { require.NoError(t, os.Chmod(filepath.Dir(o.cached()), 0o770)) }, false},
		"cache of another user":             {func(t *testing.T, o *other) { chown(t, filepath.Join(o.cached(), "../..")) }, true},
		"cache writable by the group":       {func(t *testing.T, o *other) { require.NoError(t, os.Chmod(filepath.Join(o.cached(), "../.."), 0o770)) }, true},
		"cache writable by others": {func(t *testing.T, o *other) {
			require.NoError(t, os.Chmod(filepath.Join(o.cached(), "../.."), os.ModeSticky|0o777))
		}, true},
		"program is a link": {func(t *testing.T, o *other) {
			to := elsewhere(o)
			require.NoError(t, os.Rename(o.cached(), to))
			require.NoError(t, os.Symlink(to, o.cached()))
		}, false},
		"build is a link": {func(t *testing.T, o *other) {
			to, build := elsewhere(o), filepath.Dir(o.cached())
			require.NoError(t, os.Rename(build, to))
			require.NoError(t, os.Symlink(to, build))
		}, false},
		"cache is a link": {func(t *testing.T, o *other) {
			to, cache := elsewhere(o), filepath.Join(o.cached(), "../..")
			require.NoError(t, os.Rename(cache, to))
			for _, old := range []string{"a", "b", "c", "d", "e", "f", "part.x"} { // no file of other users is deleted
				require.NoError(t, os.Mkdir(filepath.Join(to, old), 0o700))
			}
			require.NoError(t, os.Symlink(to, cache))
		}, true},
		"cache is a dangling link": {func(t *testing.T, o *other) {
			cache := filepath.Join(o.cached(), "../..")
			require.NoError(t, os.RemoveAll(cache))
			require.NoError(t, os.Symlink(elsewhere(o), cache))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "umask 000")
			trace := o.plant(o.cached())
			c.prepare(t, o)
			var before []string
			other := elsewhere(o)
			if _, err := os.Lstat(other); err != nil && c.away {
				other = filepath.Join(o.home, ".cache", "zxfer")
			}
			if _, err := os.Stat(other); err == nil {
				before = tree(t, other)
			}
			requireCopiedOnce(t, o)
			require.NoFileExists(t, trace, "the program ran")
			if before != nil {
				require.Equal(t, before, tree(t, other), "the other directory changed")
			}
			at := o.cached()
			if c.away {
				at = filepath.Join(o.fallbackCache(), filepath.Base(filepath.Dir(o.cached())), "zxfer")
			}
			for _, path := range []string{at, filepath.Dir(at), filepath.Join(at, "../..")} {
				info, err := os.Lstat(path)
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), path)
				require.EqualValues(t, os.Geteuid(), info.Sys().(*syscall.Stat_t).Uid, path)
				require.Zero(t, info.Mode()&os.ModeSymlink, path)
			}
		})
	}
}

// TestReplacedCacheParentHasNoEffect replaces a parent directory of the cache after the check, and
// expects no effect, because the script has entered the cache before.
func TestReplacedCacheParentHasNoEffect(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	requireCopiedOnce(t, o)
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(o.cached()), "whole"))) // prevents hashing
	cache := filepath.Join(o.home, ".cache", "zxfer")
	planted := &other{t: t, home: t.TempDir()}
	trace := planted.plant(planted.cached())
	// Replaces the directory after the file was checked.
	sum, err := exec.LookPath("sha256sum")
	require.NoError(t, err)
	o.program("sha256sum", sum+"; mv '"+cache+"' '"+cache+".away'; mv '"+filepath.Join(planted.home, ".cache", "zxfer")+"' '"+cache+"'")
	r := o.connect()
	requireWorks(t, r)
	require.DirExists(t, cache+".away")
	require.NoFileExists(t, trace)
}

func TestHostWithoutHome(t *testing.T) {
	t.Parallel()
	skipManyCopies(t)
	for name, c := range map[string]struct {
		profile string
		prepare func(t *testing.T, o *other)
		where   string // below the host's directory
	}{
		"HOME is not set":             {"unset HOME", nil, "tmp/zxfer-*"},
		"HOME is empty":               {"HOME=", nil, "tmp/zxfer-*"},
		"HOME is not absolute":        {"HOME=.", nil, "tmp/zxfer-*"},
		"HOME does not exist":         {"HOME=/proc/nobody", nil, "tmp/zxfer-*"},
		"HOME is a file":              {"HOME=$TEST_PID.home; : >$HOME", nil, "tmp/zxfer-*"},
		"HOME is read-only":           {"", readOnlyHome, "tmp/zxfer-*"},
		"HOME from the user database": {"unset HOME", func(t *testing.T, o *other) { o.account(filepath.Dir(o.bin) + "/real home") }, "real home/.cache/zxfer"},
		"HOME of another user": {"", func(t *testing.T, o *other) {
			testenv.NeedsRoot(t, "to make files of another user")
			cache := filepath.Join(o.home, ".cache", "zxfer")
			require.NoError(t, os.MkdirAll(cache, 0o700))
			for _, d := range []string{o.home, filepath.Dir(cache), cache} {
				require.NoError(t, os.Chown(d, stranger, stranger))
			}
			o.account(filepath.Dir(o.bin) + "/real home")
		}, "real home/.cache/zxfer"},
		"XDG_CACHE_HOME":                 {"XDG_CACHE_HOME=$TEST_PID.cache; export XDG_CACHE_HOME", nil, "tmp/pid.cache/zxfer"},
		"XDG_CACHE_HOME is not absolute": {"XDG_CACHE_HOME=x; export XDG_CACHE_HOME", nil, "a home/.cache/zxfer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", c.profile)
			if c.prepare != nil {
				c.prepare(t, o)
			}
			requireCopiedOnce(t, o)
			all, err := filepath.Glob(filepath.Join(filepath.Dir(o.bin), c.where, "*"))
			require.NoError(t, err)
			require.Len(t, all, 1)
			require.Equal(t, standIn.id, filepath.Base(all[0]))
		})
	}
}

// account sets the host's entry in the user database.
func (o *other) account(home string) {
	o.t.Helper()
	uid := strconv.Itoa(os.Geteuid())
	require.NoError(o.t, os.WriteFile(o.passwd(), []byte("u:x:"+uid+":1:A User:"+home+":/bin/sh\n"), 0o600))
}

func readOnlyHome(t *testing.T, o *other) {
	testenv.NeedsRoot(t, "to mount")
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", o.home).CombinedOutput(); err != nil {
		t.Skipf("needs a mount: %v: %s", err, out)
	}
	unmountAtEnd(t, o.home)
}

func TestUninstallRemovesCopies(t *testing.T) {
	t.Parallel()
	skipManyCopies(t)
	for name, login := range map[string]string{
		"dash": "dash", "bash": "bash", "zsh": "zsh", "busybox": "busybox sh", "fish": "fish", "tcsh": "tcsh",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(strings.Fields(login)[0]); err != nil {
				t.Skipf("needs this login shell: %v", err)
			}
			o := newOther(t, login, "echo Welcome; printf '3\\t./x\\n'")
			kept, err := ListCache(t.Context(), o.Options)
			require.NoError(t, err)
			require.Empty(t, kept)
			c := o.connect()
			requireWorks(t, c)
			require.NoError(t, c.Close())
			require.NoError(t, os.WriteFile(filepath.Join(o.home, ".cache", "another's"), nil, 0o600))

			kept, err = ListCache(t.Context(), o.Options)
			require.NoError(t, err)
			require.Len(t, kept, 1)
			require.Equal(t, filepath.Join(o.home, ".cache", "zxfer"), kept[0].Dir)
			require.Equal(t, 1, kept[0].Builds)
			require.InDelta(t, len(standIn.bytes), kept[0].Bytes, 64<<10)

			require.NoError(t, ClearCache(t.Context(), o.Options))
			require.NoDirExists(t, kept[0].Dir)
			require.FileExists(t, filepath.Join(o.home, ".cache", "another's"))
		})
	}
}

// TestUninstallKeepsForeignFiles expects that files that are not zxfer's are kept, and so are other
// users' directories and the targets of links.
func TestUninstallKeepsForeignFiles(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	cache := filepath.Join(o.home, ".cache", "zxfer")
	id := strings.Repeat("0a", 32)
	for _, name := range []string{id, id + "0", "abc", "notes", "part.beta.1"} {
		require.NoError(t, os.MkdirAll(filepath.Join(cache, name), 0o700))
	}
	elsewhere := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(elsewhere, id), 0o700))
	require.NoError(t, os.Symlink(elsewhere, o.fallbackCache()))
	require.NoError(t, ClearCache(t.Context(), o.Options))
	require.ElementsMatch(t, []string{id + "0", "abc", "notes"}, o.cache())
	require.DirExists(t, filepath.Join(elsewhere, id))

	require.NoError(t, os.Mkdir(filepath.Join(cache, id), 0o700))
	require.NoError(t, os.Chmod(cache, 0o770))
	kept, err := ListCache(t.Context(), o.Options)
	require.NoError(t, err)
	require.Empty(t, kept)
	require.NoError(t, ClearCache(t.Context(), o.Options))
	require.Contains(t, o.cache(), id)
}

func TestRestrictedAccountRunsNoScript(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.install()
	o.remote("exec zxfer agent")
	s, err := Run(t.Context(), o.Options, "echo no")
	require.NoError(t, err)
	_, _, _, err = s.Result()
	require.ErrorContains(t, err, "the account always starts an agent, which does not run scripts")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	_, err = ListCache(t.Context(), o.Options)
	require.Error(t, err)
}
