package device

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

func inspectFile(t *testing.T, name string) Facts {
	t.Helper()
	f, err := Inspect(context.Background(), name)
	require.NoError(t, err)
	return f
}

func TestCopyFile(t *testing.T) {
	t.Parallel()
	const size = 5*mib + 12345
	for _, opt := range []struct {
		sparse, buffered bool
		page             int64 // page size of the kernel; 0 is the real one
	}{{}, {sparse: true}, {buffered: true}, {sparse: true, buffered: true}, {page: 64 << 10}, {sparse: true, page: 64 << 10}} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		want := noise(size)
		clear(want[mib : 3*mib])
		require.NoError(t, os.WriteFile(from, want, 0o600))
		src, err := OpenSource(context.Background(), inspectFile(t, from), false)
		require.NoError(t, err)
		f := inspectFile(t, to)
		require.Equal(t, KindMissing, f.Kind)
		dst, err := OpenTarget(context.Background(), f, size, opt.sparse)
		require.NoError(t, err)
		if opt.page > 0 {
			src.align, dst.align = opt.page, opt.page
		}
		if opt.buffered {
			require.NoError(t, errors.Join(src.setDirect(false), dst.setDirect(false)))
		}
		var g sync.WaitGroup
		for off := int64(0); off < size; off += mib {
			g.Go(func() {
				p := AlignedBuffer(int(min(mib, size-off)))
				_, err := src.ReadAt(p, off)
				if IsZero(p) {
					err = errors.Join(err, dst.Zero(off, int64(len(p))))
				} else {
					_, werr := dst.WriteAt(p, off)
					err = errors.Join(err, werr)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		g.Wait()
		require.NoError(t, dst.Sync())
		require.NoError(t, dst.DropCache())
		got := AlignedBuffer(int(size))
		_, err = dst.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		n, err := dst.ReadAt(got[:100], size-50)
		require.Equal(t, 50, n)
		require.Equal(t, io.EOF, err)
		require.NoError(t, dst.Commit())
		require.NoError(t, errors.Join(dst.Close(), src.Close()))
		all, err := os.ReadFile(to)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, all), "%+v", opt)
		st, err := os.Stat(to)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode())
	}
}

func TestHoles(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "sparse")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	require.NoError(t, os.Truncate(name, 8*mib))
	require.False(t, inspectFile(t, name).HasData)
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("data"), 4*mib)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	facts := inspectFile(t, name)
	require.True(t, facts.HasData)
	if facts.Allocated > 4*mib {
		t.Skip("this file system has no holes")
	}
	src, err := OpenSource(context.Background(), facts, false)
	require.NoError(t, err)
	defer src.Close()
	start, end, err := src.NextData(0)
	require.NoError(t, err)
	require.True(t, start > 0 && start <= 4*mib && end > 4*mib && end <= 5*mib, "%d to %d", start, end)
	start, end, err = src.NextData(end)
	require.NoError(t, err)
	require.Equal(t, []int64{8 * mib, 8 * mib}, []int64{start, end})
}

func TestChangedSource(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(name string) error{
		"longer":   func(name string) error { return os.Truncate(name, 2*mib) },
		"shorter":  func(name string) error { return os.Truncate(name, 100) },
		"written":  func(name string) error { return os.WriteFile(name, noise(mib), 0o600) },
		"replaced": func(name string) error { return errors.Join(os.Remove(name), os.WriteFile(name, noise(mib), 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "image")
			require.NoError(t, os.WriteFile(file, noise(mib), 0o600))
			facts := inspectFile(t, file)
			src, err := OpenSource(context.Background(), facts, false)
			require.NoError(t, err)
			defer src.Close()
			require.NoError(t, src.Unchanged())
			require.NoError(t, change(file))
			if name != "replaced" { // the opened file itself is unchanged
				require.ErrorContains(t, src.Unchanged(), file)
			}
			_, err = OpenSource(context.Background(), facts, false)
			require.Error(t, err)
			if name == "replaced" {
				_, err = OpenTarget(context.Background(), facts, mib, false)
				require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
			}
		})
	}
}

func TestReplacedTarget(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image")
	dst, err := OpenTarget(context.Background(), inspectFile(t, file), mib, false)
	require.NoError(t, err)
	defer dst.Close()
	require.NoError(t, dst.Identity())
	require.NoError(t, os.Rename(file, file+".old"))
	require.Error(t, dst.Commit())
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, dst.Commit(), "was replaced")
	_, err = OpenTarget(context.Background(), Facts{Path: file, Real: file, Kind: KindMissing}, mib, false)
	require.ErrorContains(t, err, "after the copy was planned")
}

// TestLongerTarget expects that a longer file is truncated to the source's size, but only at
// commit.
func TestLongerTarget(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(file, noise(2*mib), 0o600))
	dst, err := OpenTarget(context.Background(), inspectFile(t, file), 1, false)
	require.NoError(t, err)
	_, err = dst.WriteAt([]byte{7}, 0)
	require.NoError(t, err)
	require.NoError(t, dst.Sync())
	all, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, append([]byte{7}, noise(2 * mib)[1:]...), all)
	require.NoError(t, dst.Commit())
	require.NoError(t, dst.Close())
	all, err = os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, []byte{7}, all)
}

func TestInspectRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(filepath.Join(dir, "nothing"), link))
	for path, want := range map[string]string{
		dir:                              "is a directory",
		"/dev/null":                      "neither a block device nor a regular file",
		link:                             "dangling symbolic link",
		filepath.Join(dir, "no", "file"): "there is no directory",
	} {
		_, err := Inspect(context.Background(), path)
		require.ErrorContains(t, err, want)
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.NotEmpty(t, fault.HintOf(err))
	}
}

func TestConcurrentCopiesToOneFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "image")
	first, err := OpenTarget(context.Background(), inspectFile(t, name), 4, false)
	require.NoError(t, err)
	_, err = OpenTarget(context.Background(), inspectFile(t, name), 2*mib, false)
	require.ErrorContains(t, err, "another copy to "+name+" is running")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	st, err := os.Stat(name)
	require.NoError(t, err)
	require.EqualValues(t, 4, st.Size(), "the second copy changed nothing")
	copied, err := unix.Dup(int(first.f.Fd())) // as in a process that another goroutine starts
	require.NoError(t, err)
	defer unix.Close(copied)
	require.NoError(t, first.Close())
	second, err := OpenTarget(context.Background(), inspectFile(t, name), 2*mib, false)
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

func TestDiscardRemovesOnlyNewFile(t *testing.T) {
	t.Parallel()
	fresh, kept := filepath.Join(t.TempDir(), "fresh"), filepath.Join(t.TempDir(), "kept")
	require.NoError(t, os.WriteFile(kept, []byte("mine"), 0o600))
	for _, name := range []string{fresh, kept} {
		dst, err := OpenTarget(context.Background(), inspectFile(t, name), 4, false)
		require.NoError(t, err)
		require.FileExists(t, name)
		require.NoError(t, dst.Discard())
	}
	require.NoFileExists(t, fresh)
	require.FileExists(t, kept)
}

func TestMapfile(t *testing.T) {
	t.Parallel()
	var bad badRanges
	for _, r := range []Range{{1024, 512}, {0, 512}, {1536, 512}, {1024, 512}} {
		bad.add(r.Start, r.Length)
	}
	require.Equal(t, []Range{{0, 512}, {1024, 1024}}, bad.list())
	var b strings.Builder
	require.NoError(t, WriteMapfile(&b, 4096, bad.list()))
	require.Equal(t, `# Mapfile. Created by zxfer dev --skip-errors
# current_pos  current_status  current_pass
0x00001000     +               1
#      pos        size  status
0x00000000  0x00000200  -
0x00000200  0x00000200  +
0x00000400  0x00000400  -
0x00000800  0x00000800  +
`, b.String())
}

// TestDirectAccessFallback expects that if concurrent accesses all fail before O_DIRECT is
// turned off, each of them is retried.
func TestDirectAccessFallback(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(name, noise(1<<16), 0o600))
	h, err := openHandle(inspectFile(t, name), unix.O_RDONLY)
	require.NoError(t, err)
	defer h.f.Close()
	if !h.direct.Load() {
		t.Skip("no O_DIRECT here")
	}
	require.False(t, h.disableDirect(true, unix.EIO))
	require.True(t, h.disableDirect(true, unix.EINVAL))
	require.False(t, h.direct.Load())
	require.True(t, h.disableDirect(true, unix.EINVAL), "it started earlier")
	require.False(t, h.disableDirect(false, unix.EINVAL), "another error")
}

// TestDiscardKeepsReplacedFile expects that Discard keeps a file that replaced the one created
// for the copy.
func TestDiscardKeepsReplacedFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "image")
	dst, err := OpenTarget(context.Background(), inspectFile(t, name), 4, false)
	require.NoError(t, err)
	require.NoError(t, os.Remove(name))
	require.NoError(t, os.WriteFile(name, []byte("another's"), 0o600))
	require.NoError(t, dst.Discard())
	require.FileExists(t, name)
}
