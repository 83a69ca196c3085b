package files

import (
	"archive/tar"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// TestSwappedFolderIsNotFollowed lets the owner of the target directory replace each new
// folder with a link to another place or with another directory. It expects no change of the other
// directory.
func TestSwappedFolderIsNotFollowed(t *testing.T) {
	t.Parallel()
	archive := forged(t, tar.Header{Name: "a/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Mode: 0o644})
	for name, swap := range map[string]func(outside, place string) error{
		"link":      os.Symlink,
		"directory": os.Rename,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			around := t.TempDir()
			outside, to, place := around+"/outside", around+"/to", around+"/to/a"
			attack := func() {
				if os.Rename(place, around+"/away") == nil {
					_ = swap(outside, place)
				}
			}
			prepare := func() {
				for _, dir := range []string{to, around + "/away", outside} {
					require.NoError(t, os.RemoveAll(dir))
				}
				require.NoError(t, os.Mkdir(to, 0o700))
				require.NoError(t, os.Mkdir(outside, 0o700))
				require.NoError(t, os.WriteFile(outside+"/secret", nil, 0o600))
			}
			// changed returns the mode of the other directory and the number of its files.
			changed := func() (os.FileMode, int) {
				for _, dir := range []string{outside, place, around + "/away"} {
					if info, err := os.Lstat(dir + "/secret"); err != nil || info.Mode()&os.ModeSymlink != 0 {
						continue
					}
					info, err := os.Stat(dir)
					require.NoError(t, err)
					in, err := os.ReadDir(dir)
					require.NoError(t, err)
					return info.Mode(), len(in)
				}
				t.Fatal("the other directory is missing")
				return 0, 0
			}
			attempt := func(write func()) (os.FileMode, int) {
				prepare()
				end := testenv.Repeat(attack)
				write()
				end()
				return changed()
			}
			testenv.Race(t, 40, func() bool {
				mode, _ := attempt(func() {
					_ = unix.Mkdir(place, unfinished)
					time.Sleep(time.Millisecond) // it is slower than it needs to be
					_ = unix.Fchmodat(unix.AT_FDCWD, place, unfinished, 0)
				})
				return mode != os.ModeDir|0o700
			}, func() {
				mode, files := attempt(func() {
					u, err := Unpack(UnpackOptions{Directory: to})
					require.NoError(t, err)
					if _, err := u.Write(archive); err != nil {
						_ = u.Abort(err) // the attack can make it fail
						return
					}
					_ = u.Commit(t.Context())
				})
				require.Equal(t, os.ModeDir|0o700, mode)
				require.Equal(t, 1, files)
			})
		})
	}
}

// TestSwappedTargetIsNotFollowed lets another user replace the target directory and its parent
// with a link while zxfer creates them, and expects that zxfer does not follow the link.
func TestSwappedTargetIsNotFollowed(t *testing.T) {
	t.Parallel()
	archive := forged(t, tar.Header{Name: "b", Typeflag: tar.TypeReg, Mode: 0o644})
	for _, swapped := range []string{"/to/new", "/to/new/deep"} {
		around := t.TempDir()
		outside, target := around+"/outside", around+"/to/new/deep"
		attempt := func(write func()) (files int) {
			require.NoError(t, os.RemoveAll(around))
			require.NoError(t, os.MkdirAll(around+"/to", 0o700))
			require.NoError(t, os.MkdirAll(outside, 0o700))
			end := testenv.Repeat(func() {
				if os.Rename(around+swapped, around+"/away") == nil {
					_ = os.Symlink(outside, around+swapped)
				}
			})
			write()
			end()
			in, err := os.ReadDir(outside)
			require.NoError(t, err)
			return len(in)
		}
		testenv.Race(t, 40, func() bool {
			return attempt(func() {
				_ = os.MkdirAll(around+"/to/new", 0o700)
				time.Sleep(time.Millisecond) // it is slower than it needs to be
				_ = os.Mkdir(target, 0o700)
				time.Sleep(time.Millisecond)
				_ = os.WriteFile(target+"/b", nil, 0o600)
			}) > 0
		}, func() {
			require.Zero(t, attempt(func() {
				u, err := Unpack(UnpackOptions{Directory: target})
				if err != nil {
					return // the attack can make it fail
				}
				if _, err := u.Write(archive); err != nil {
					_ = u.Abort(err)
					return
				}
				_ = u.Commit(t.Context())
			}))
		})
	}
}

// TestFolderChangedByACL expects zxfer to accept a new folder whose mode an ACL has
// changed.
func TestFolderChangedByACL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(dir string) error
		refused bool
	}{
		"empty":         {prepare: func(dir string) error { return os.Chmod(dir, 0o770) }},
		"with contents": {prepare: func(dir string) error { return os.WriteFile(dir+"/secret", nil, 0o600) }, refused: true},
	} {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o700))
		require.NoError(t, c.prepare(dir), name)
		f, err := os.Open(dir)
		require.NoError(t, err)
		err = (&unpackWorker{}).markUnfinished(f)
		info, errStat := f.Stat()
		require.NoError(t, errStat)
		if c.refused {
			require.ErrorIs(t, err, errSwapped, name)
			require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), name)
		} else {
			require.NoError(t, err, name)
			require.Equal(t, os.ModeSticky|0o700, info.Mode()&^os.ModeDir, name)
		}
		require.NoError(t, f.Close())
	}
}
