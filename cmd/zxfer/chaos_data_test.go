package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/device/devicetest"
	"zxfer/pkg/testenv"
)

// randomReader returns a stream of incompressible bytes.
func randomReader(r *rand.Rand) io.Reader {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(r.Uint32())
	}
	return rand.NewChaCha8(seed)
}

// writeFiles changes a tree and writes n new bytes. It creates, overwrites, truncates, renames
// and deletes files, and makes holes and links.
func writeFiles(t *testing.T, dir string, r *rand.Rand, n int64) {
	t.Helper()
	random := randomReader(r)
	old, err := filepath.Glob(filepath.Join(dir, "*", "f*"))
	require.NoError(t, err)
	old = slices.DeleteFunc(old, func(f string) bool { return strings.HasSuffix(f, ".link") })
	for _, f := range old {
		switch r.IntN(8) {
		case 0:
			require.NoError(t, os.Remove(f))
		case 1:
			require.NoError(t, os.Truncate(f, r.Int64N(1<<20)))
		case 2:
			require.NoError(t, os.Rename(f, f+"-renamed"))
		case 3:
			require.NoError(t, os.Chmod(f, 0o640))
		}
	}
	for i := 0; n > 0; i++ {
		size := min(n, 4096+r.Int64N(2<<20))
		n -= size
		sub := filepath.Join(dir, fmt.Sprintf("d%d", r.IntN(4)))
		require.NoError(t, os.MkdirAll(sub, 0o755))
		f, err := os.Create(filepath.Join(sub, fmt.Sprintf("f%x", r.Uint32())))
		require.NoError(t, err)
		if r.IntN(4) == 0 { // leave a hole at the start
			_, err = f.Seek(r.Int64N(8<<20), io.SeekStart)
			require.NoError(t, err)
		}
		_, err = io.CopyN(f, random, size)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		if r.IntN(4) == 0 {
			require.NoError(t, os.Symlink("../"+filepath.Base(f.Name()), f.Name()+".link"))
		}
		if r.IntN(6) == 0 {
			require.NoError(t, os.WriteFile(f.Name()+".text", bytes.Repeat([]byte("text that compresses\n"), 1+r.IntN(5000)), 0o600))
		}
	}
}

// writeVolume writes n bytes at random offsets of a volume.
func writeVolume(t *testing.T, name string, r *rand.Rand, n int64) {
	t.Helper()
	f, err := os.OpenFile(volumeNode(t, name), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	random := randomReader(r)
	for n > 0 {
		size := min(n, 512*(1+r.Int64N(2000)))
		n -= size
		_, err = io.CopyN(io.NewOffsetWriter(f, 512*r.Int64N(90000)), random, size)
		require.NoError(t, err)
	}
	require.NoError(t, f.Sync())
}

// volumeNode returns the device of a volume or of its snapshot. It finds the device without
// udev, and waits because the device appears shortly after the dataset.
func volumeNode(t *testing.T, name string) (node string) {
	t.Helper()
	const blkZName = 0x8100127d // BLKZNAME of OpenZFS: _IOR(0x12, 125, char[256])
	require.Eventually(t, func() bool {
		all, err := filepath.Glob("/dev/zd*")
		require.NoError(t, err)
		for _, dev := range all {
			f, err := os.Open(dev)
			if err != nil {
				continue
			}
			var label [256]byte
			_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), blkZName, uintptr(unsafe.Pointer(&label)))
			_ = f.Close() // opened read-only
			if errno == 0 && unix.ByteSliceToString(label[:]) == name {
				node = dev
				return true
			}
		}
		return false
	}, testenv.Timeout(), 50*time.Millisecond, "%s has no device", name)
	return node
}

// requireEqualSnapshots compares the contents of two snapshots without zxfer.
func requireEqualSnapshots(t *testing.T, a, b string, volume bool) {
	t.Helper()
	if volume {
		require.Equal(t, volumeDigest(t, a), volumeDigest(t, b), "%s and %s differ", a, b)
		return
	}
	left, right := mountSnapshot(t, a), mountSnapshot(t, b)
	defer func() {
		for _, dir := range []string{left, right} {
			assert.NoError(t, unix.Unmount(dir, 0))
		}
	}()
	names := listTree(t, left)
	require.Equal(t, names, listTree(t, right), "%s and %s differ", a, b)
	for l := range strings.Lines(names) {
		name, kind, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
		if kind[0] != '-' {
			continue
		}
		one, err := os.ReadFile(filepath.Join(left, name))
		require.NoError(t, err)
		other, err := os.ReadFile(filepath.Join(right, name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(one, other), "%s of %s and %s differs", name, a, b)
	}
}

func volumeDigest(t *testing.T, snapshot string) string {
	t.Helper()
	dataset, _, _ := strings.Cut(snapshot, "@")
	zfsCmd(t, "set", "snapdev=visible", dataset)
	defer zfsCmd(t, "inherit", "snapdev", dataset)
	return devicetest.Sum(t, volumeNode(t, snapshot))
}

func mountSnapshot(t *testing.T, snapshot string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount(snapshot, dir, "zfs", unix.MS_RDONLY, ""), "mount %s", snapshot)
	return dir
}

// listTree returns one line for each file: its name and all metadata that is available without
// reading the file.
func listTree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		to, _ := os.Readlink(path) // empty if the file is not a link
		fmt.Fprintf(&b, "%s\t%v %d %d %s\n", strings.TrimPrefix(path, dir), info.Mode(), info.Size(), info.ModTime().UnixNano(), to)
		return nil
	}))
	return b.String()
}
