package files

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// tree creates files below a new directory.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	long := time.Unix(1700000000, 123456789)
	for name, text := range map[string]string{"a": "one", "b/c": "two", "b/d/e": "three", "b-": "four", "odd\n\xff": "five", "empty": ""} {
		p := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
		require.NoError(t, os.Chtimes(p, long, long))
	}
	require.NoError(t, os.Symlink("/etc", filepath.Join(dir, "out")))
	require.NoError(t, unix.Lutimes(filepath.Join(dir, "out"), []unix.Timeval{{Sec: 1}, {Sec: 1}}))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for _, d := range []string{"pipe", "b/d", "b", "."} {
		require.NoError(t, os.Chtimes(filepath.Join(dir, d), long, long))
	}
	return dir
}

func read(t *testing.T, dir string, q Query) Digest {
	t.Helper()
	root, err := os.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	if q.Sample == 0 {
		q.Sample = 1
	}
	d, err := Read(t.Context(), root, q, nil)
	require.NoError(t, err)
	return d
}

// list returns all files of a directory, part by part.
func list(t *testing.T, dir string, q Query) (all []File) {
	t.Helper()
	for q.Within = 1; q.Within <= Parts; q.Within++ {
		all = append(all, read(t, dir, q).Listed...)
	}
	return all
}

func TestReadDetectsEveryChange(t *testing.T) {
	t.Parallel()
	whole := read(t, tree(t), Query{})
	require.Equal(t, whole, read(t, tree(t), Query{}), "the location does not matter")
	require.EqualValues(t, 11, whole.Files)
	require.EqualValues(t, 6, whole.Read)
	require.EqualValues(t, 19, whole.Bytes)
	require.Empty(t, whole.Problems)

	dir := tree(t)
	same := list(t, dir, Query{})
	require.Len(t, same, 11)
	old := time.Unix(1700000000, 123456789)
	for name, c := range map[string]struct {
		change func(string)
		want   []Difference
	}{
		"contents": {func(d string) {
			require.NoError(t, os.WriteFile(d+"/b/c", []byte("TWO"), 0o644))
			require.NoError(t, os.Chtimes(d+"/b/c", old, old))
		}, []Difference{{"b/c", "has different contents"}}},
		"mode":  {func(d string) { require.NoError(t, os.Chmod(d+"/a", 0o600)) }, []Difference{{"a", "has different attributes"}}},
		"time":  {func(d string) { require.NoError(t, os.Chtimes(d+"/a", old, old.Add(1))) }, []Difference{{"a", "has different attributes"}}},
		"xattr": {func(d string) { require.NoError(t, unix.Setxattr(d+"/a", "user.x", []byte("1"), 0)) }, []Difference{{"a", "has different attributes"}}},
		"link": {func(d string) {
			require.NoError(t, os.Remove(d+"/out"))
			require.NoError(t, os.Symlink("/usr", d+"/out"))
			require.NoError(t, unix.Lutimes(d+"/out", []unix.Timeval{{Sec: 1}, {Sec: 1}}))
			require.NoError(t, os.Chtimes(d, old, old))
		}, []Difference{{"out", "has different attributes"}}},
		"deleted": {func(d string) {
			require.NoError(t, os.Remove(d+"/b/d/e"))
			require.NoError(t, os.Chtimes(d+"/b/d", old, old))
		}, []Difference{{"b/d/e", "is missing"}}},
		"new": {func(d string) {
			require.NoError(t, os.WriteFile(d+"/new", nil, 0o644))
			require.NoError(t, os.Chtimes(d, old, old))
		}, []Difference{{"new", "is not in the source"}}},
	} {
		t.Run(name, func(t *testing.T) {
			other := tree(t)
			c.change(other)
			parts := whole.DifferentParts(read(t, other, Query{}))
			require.Len(t, parts, 1)
			require.Equal(t, c.want, Compare(read(t, dir, Query{Sample: 1, Within: parts[0]}).Listed, read(t, other, Query{Within: parts[0]}).Listed))
		})
	}
}

func TestReadSampleIsDeterministic(t *testing.T) {
	t.Parallel()
	sampled := func(seed uint64) (out []string) {
		for _, f := range list(t, tree(t), Query{Sample: 0.5, Seed: seed}) {
			if f.Sum != "" {
				out = append(out, f.Path)
			}
		}
		return out
	}
	seen := map[int]bool{}
	for seed := range uint64(8) {
		require.Equal(t, sampled(seed), sampled(seed))
		seen[len(sampled(seed))] = true
	}
	require.Greater(t, len(seen), 1, "another seed chooses other files")
}

func TestReadPath(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	require.EqualValues(t, 4, read(t, dir, Query{Path: "/b/"}).Files)
	require.EqualValues(t, 1, read(t, dir, Query{Path: "b/c"}).Files)
	root, err := os.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	for p, want := range map[string]string{"b/../../x": "leaves", "out/passwd": "not a directory", "nope": "no such file"} {
		_, err := Read(t.Context(), root, Query{Sample: 1, Path: p}, nil)
		require.ErrorContains(t, err, want, p)
	}
	for _, q := range []Query{{Sample: 0}, {Sample: 1.1}, {Sample: 1, Within: Parts + 1}, {Sample: 1, KeyFile: "key"}} {
		_, err := Read(t.Context(), root, q, nil)
		require.Error(t, err)
	}
}

func TestReadReportsProgressAndCancels(t *testing.T) {
	t.Parallel()
	root, err := os.Open(tree(t))
	require.NoError(t, err)
	defer root.Close()
	var last transfer.Progress
	_, err = Read(t.Context(), root, Query{Sample: 1}, func(p transfer.Progress) { last = p })
	require.NoError(t, err)
	require.EqualValues(t, 11, last.Files)
	require.EqualValues(t, 19, last.Bytes)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Read(ctx, root, Query{Sample: 1}, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// forbid makes a system call fail permanently in this thread only.
func forbid(t *testing.T, call uint32, errno unix.Errno) {
	runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(errno)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                 // SECCOMP_RET_ALLOW
	}
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	require.NoError(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0))
}

// TestReadWithoutOpenat2 expects one error with a hint, instead of one for each file, if the kernel
// or the container lacks openat2.
func TestReadWithoutOpenat2(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM} {
		t.Run(errno.Error(), func(t *testing.T) {
			forbid(t, unix.SYS_OPENAT2, errno)
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(dir+"/f", []byte("f"), 0o600))
			root, err := os.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			_, err = Read(t.Context(), root, Query{Sample: 1}, nil)
			require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotSupported})
			_, err = Read(t.Context(), root, Query{Sample: 1, Path: "f"}, nil)
			require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotSupported})
		})
	}
}
