package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// packed returns an archive of files of a directory.
func packed(t *testing.T, dir string, a Archive) ([]byte, Account) {
	t.Helper()
	root, err := os.Open(dir)
	require.NoError(t, err)
	p, err := Pack(t.Context(), root, root.Close, a, "")
	require.NoError(t, err)
	b, err := io.ReadAll(p)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	return b, p.Account()
}

// unpack unpacks an archive, which may be incomplete, into a directory.
func unpack(t testing.TB, archive []byte, into UnpackOptions) (Account, error) {
	t.Helper()
	u, err := Unpack(into)
	require.NoError(t, err)
	_, err = u.Write(archive)
	if err == nil {
		err = u.Commit(t.Context())
	} else {
		err = u.Abort(err)
	}
	return u.Account(), err
}

func TestArchiveRoundTrip(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	require.NoError(t, os.Link(dir+"/b/c", dir+"/b/linked"))
	require.NoError(t, os.WriteFile(dir+"/holes", append(make([]byte, 1<<20), "end"...), 0o640))
	require.NoError(t, unix.Setxattr(dir+"/a", "user.x", []byte("1\x002"), 0))
	require.NoError(t, os.Chmod(dir+"/b", 0o2750))
	to := filepath.Join(t.TempDir(), "new")
	b, left := packed(t, dir, Archive{Paths: []string{"/"}})
	a, err := unpack(t, b, UnpackOptions{Directory: to})
	require.NoError(t, err)
	require.EqualValues(t, 1, left.Special, "the pipe")
	require.EqualValues(t, 11, a.New)
	require.Empty(t, a.Problems)
	require.NoError(t, os.Remove(dir+"/pipe"))
	all := func(d string) (files []File) {
		for _, f := range list(t, d, Query{}) {
			if f.Path != "." {
				files = append(files, f)
			}
		}
		return files
	}
	require.Equal(t, all(dir), all(to))
	one, err := os.Stat(to + "/b/c")
	require.NoError(t, err)
	two, err := os.Stat(to + "/b/linked")
	require.NoError(t, err)
	require.True(t, os.SameFile(one, two))
	holes, err := os.Stat(to + "/holes")
	require.NoError(t, err)
	require.Less(t, holes.Sys().(*syscall.Stat_t).Blocks, int64(1024))

	// The second time, every file is skipped.
	a, err = unpack(t, b, UnpackOptions{Directory: to})
	require.NoError(t, err)
	require.Zero(t, a.New+a.Replaced)
	require.EqualValues(t, 9, a.Same)
}

func TestSelectedFilesKeepBaseName(t *testing.T) {
	t.Parallel()
	to := t.TempDir()
	b, _ := packed(t, tree(t), Archive{Paths: []string{"b/d", "/a", "b/c/"}})
	_, err := unpack(t, b, UnpackOptions{Directory: to})
	require.NoError(t, err)
	for _, name := range []string{"a", "c", "d/e"} {
		require.FileExists(t, filepath.Join(to, name))
	}
	require.NoDirExists(t, to+"/b")
	for _, paths := range [][]string{{"a", "b/a"}, {"", "a"}, {"../a"}, {}} {
		require.Error(t, Archive{Paths: paths}.Check())
	}
}

// TestUnpackKeepsExistingFiles expects that conflicts are reported before anything is written, and
// existing files are kept.
func TestUnpackKeepsExistingFiles(t *testing.T) {
	t.Parallel()
	dir, to := tree(t), tree(t)
	require.NoError(t, os.WriteFile(to+"/a", []byte("mine"), 0o600))
	require.NoError(t, os.Remove(to+"/b/c"))
	require.NoError(t, os.Mkdir(to+"/b/c", 0o700))
	names, _ := packed(t, dir, Archive{Paths: []string{""}, NamesOnly: true})
	a, err := unpack(t, names, UnpackOptions{Directory: to, DryRun: true})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, a.Differ)
	require.Equal(t, []string{"b/c"}, a.Blocked)
	whole, _ := packed(t, dir, Archive{Paths: []string{"a"}})
	_, err = unpack(t, whole, UnpackOptions{Directory: to})
	require.ErrorContains(t, err, "was created during the restore")
	text, err := os.ReadFile(to + "/a")
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))
	a, err = unpack(t, whole, UnpackOptions{Directory: to, Overwrite: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, a.Replaced)
	text, err = os.ReadFile(to + "/a")
	require.NoError(t, err)
	require.Equal(t, "one", string(text))
	all, _ := packed(t, dir, Archive{Paths: []string{""}})
	_, err = unpack(t, all, UnpackOptions{Directory: to, Overwrite: true})
	require.ErrorContains(t, err, "of another type")
	require.DirExists(t, to+"/b/c")

	a, err = unpack(t, names, UnpackOptions{Directory: to + "/none", DryRun: true})
	require.NoError(t, err)
	require.EqualValues(t, 9, a.New)
	require.NoDirExists(t, to+"/none")
}

// TestUnpackResumesAfterInterruption expects that an interrupted stream leaves only complete
// files, and little remains to be sent.
func TestUnpackResumesAfterInterruption(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	whole, _ := packed(t, dir, Archive{Paths: []string{"b", "a", "empty"}})
	names, _ := packed(t, dir, Archive{Paths: []string{"b", "a", "empty"}, NamesOnly: true})
	want := list(t, dir, Query{Path: "b"})
	for cut := 0; cut < len(whole); cut += 900 {
		to := t.TempDir()
		u, err := Unpack(UnpackOptions{Directory: to})
		require.NoError(t, err)
		_, err = u.Write(whole[:cut])
		require.NoError(t, err)
		require.NoError(t, u.Abort(errors.New("cut")))
		require.NoError(t, filepath.WalkDir(to, func(p string, e os.DirEntry, err error) error {
			require.NotContains(t, e.Name(), ".part")
			if e.Type().IsRegular() {
				text, err := os.ReadFile(p)
				require.NoError(t, err)
				want, err := os.ReadFile(filepath.Join(dir, strings.TrimPrefix(p, to)))
				require.NoError(t, err)
				require.Equal(t, string(want), string(text), "interrupted at %d", cut)
			}
			return err
		}))
		look, err := unpack(t, names, UnpackOptions{Directory: to, DryRun: true})
		require.NoError(t, err)
		require.Empty(t, look.Differ)
		rest, _ := packed(t, dir, Archive{Paths: []string{"b", "a", "empty"}, After: look.After})
		if look.After != "" {
			require.Less(t, len(rest), len(whole))
		}
		a, err := unpack(t, rest, UnpackOptions{Directory: to})
		require.NoError(t, err)
		require.Equal(t, look.New, a.New)
		require.Equal(t, want, list(t, to, Query{Path: "b"}), "interrupted at %d", cut)
	}
}

// forged returns an archive of headers, each with some contents.
func forged(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		h.Mode = 0o644
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte("evil"))
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestUnpackWritesOnlyBelowTarget(t *testing.T) {
	t.Parallel()
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
	}
	hard := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeLink, PAXRecords: map[string]string{sizeRecord: "6"}, ModTime: time.Unix(7, 0)}
	}
	for name, headers := range map[string][]tar.Header{
		"parent directory":                   {file("../victim")},
		"parent directory, later":            {file("a/../../victim")},
		"absolute":                           {file("/victim")},
		"dot":                                {file("./victim")},
		"through a link":                     {link("a", ".."), file("a/victim")},
		"through a link sent as a directory": {link("a", ".."), {Name: "a/", Typeflag: tar.TypeDir}, file("a/victim")},
		"through an existing link":           {file("out/victim")},
		"into an existing link":              {{Name: "out/", Typeflag: tar.TypeDir}, file("out/victim")},
		"onto an existing link":              {file("onto")},
		"hard link to the parent directory":  {hard("a", "../victim")},
		"hard link through a link":           {hard("a", "out/victim")},
		"hard link to a link":                {hard("a", "onto")},
		"twice":                              {file("a"), file("a")},
		"missing directory":                  {file("a/b")},
		"device":                             {{Name: "a", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"pipe":                               {{Name: "a", Typeflag: tar.TypeFifo}},
		"size":                               {{Name: "a", Typeflag: tar.TypeReg, PAXRecords: map[string]string{sizeRecord: "9223372036854775807"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			around := t.TempDir()
			to := filepath.Join(around, "to")
			require.NoError(t, os.Mkdir(to, 0o700))
			require.NoError(t, os.WriteFile(around+"/victim", []byte("victim"), 0o600))
			require.NoError(t, os.Chtimes(around+"/victim", time.Unix(7, 0), time.Unix(7, 0)))
			require.NoError(t, os.Symlink("..", to+"/out"))
			require.NoError(t, os.Symlink("../victim", to+"/onto"))
			a, err := unpack(t, forged(t, headers...), UnpackOptions{Directory: to, Overwrite: name == "onto an existing link"})
			if strings.HasPrefix(name, "hard link") && err == nil {
				require.NotZero(t, a.Failed)
			} else if name != "onto an existing link" {
				require.Error(t, err)
			}
			requireUntouched(t, around)
			_, err = os.Lstat(to + "/a")
			if strings.HasPrefix(name, "hard link") {
				require.Error(t, err)
			}
		})
	}
}

// requireUntouched requires that nothing next to the directory was created or changed.
func requireUntouched(t testing.TB, around string) {
	t.Helper()
	text, err := os.ReadFile(around + "/victim")
	require.NoError(t, err)
	require.Equal(t, "victim", string(text))
	st, err := os.Stat(around + "/victim")
	require.NoError(t, err)
	require.EqualValues(t, 1, st.Sys().(*syscall.Stat_t).Nlink)
	require.Equal(t, os.FileMode(0o600), st.Mode())
	in, err := os.ReadDir(around)
	require.NoError(t, err)
	require.Len(t, in, 2)
}

// TestUnpackRefusesHugeSparseFile expects that a small archive that declares a file of one
// exabyte fails at its start.
func TestUnpackRefusesHugeSparseFile(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 512, Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{
		"GNX.sparse.major": "1", "GNX.sparse.minor": "0", "GNX.sparse.name": "a", "GNX.sparse.realsize": "1152921504606846976"}}))
	_, err := w.Write(append([]byte("0\n"), make([]byte, 510)...))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	u, err := Unpack(UnpackOptions{Directory: t.TempDir()})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := u.Write(bytes.ReplaceAll(b.Bytes(), []byte("GNX."), []byte("GNU."))) // the writer refuses this record
		done <- errors.Join(err, u.Commit(t.Context()))
	}()
	select {
	case err := <-done:
		require.ErrorContains(t, err, "GNU.sparse")
	case <-time.After(testenv.Timeout()):
		t.Fatal("it does not end")
	}
}

// TestUnfinishedFolderBelowSetgid expects that a new folder inherits setgid from its parent, and
// is still recognized as unfinished.
func TestUnfinishedFolderBelowSetgid(t *testing.T) {
	t.Parallel()
	to := t.TempDir()
	require.NoError(t, unix.Chmod(to, 0o2755))
	require.NoError(t, unix.Mkdir(to+"/a", unfinished)) // interrupted here
	a, err := unpack(t, forged(t, tar.Header{Name: "a/", Typeflag: tar.TypeDir}), UnpackOptions{Directory: to})
	require.NoError(t, err)
	require.True(t, a.Unfinished)
	st, err := os.Stat(to + "/a")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), st.Mode().Perm())
}

func FuzzUnpack(f *testing.F) {
	f.Add(forged(f, tar.Header{Name: "a/", Typeflag: tar.TypeDir}, tar.Header{Name: "a/b", Typeflag: tar.TypeReg},
		tar.Header{Name: "a/c", Typeflag: tar.TypeSymlink, Linkname: "../.."}, tar.Header{Name: "d", Typeflag: tar.TypeLink, Linkname: "a/b"}))
	f.Fuzz(func(t *testing.T, archive []byte) {
		around, err := os.MkdirTemp("/dev/shm", "") // small contents
		require.NoError(t, err)
		defer os.RemoveAll(around)
		require.NoError(t, os.Mkdir(around+"/to", 0o700))
		require.NoError(t, os.WriteFile(around+"/victim", []byte("victim"), 0o600))
		_, _ = unpack(t, archive, UnpackOptions{Directory: around + "/to", Overwrite: true})
		requireUntouched(t, around)
	})
}

// TestOpenLinkRefusesFile expects openLink to refuse a file that replaced a link.
func TestOpenLinkRefusesFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/f", nil, 0o600))
	require.NoError(t, os.Symlink("f", dir+"/l"))
	d, err := os.Open(dir)
	require.NoError(t, err)
	defer d.Close()
	_, err = openLink(int(d.Fd()), "f")
	require.ErrorContains(t, err, "another file replaced it")
	l, err := openLink(int(d.Fd()), "l")
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
