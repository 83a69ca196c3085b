package cli_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/files"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfstest"
)

// TestMountFiles expects that a snapshot is read through a private mount while its dataset
// receives. Afterwards, it is not busy.
func TestMountFiles(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	c := cli.New(nil)
	defer c.Close()
	src, dst := p.Create("src"), p.Dataset("dst")
	p.Write(src, "file", 3<<20, 1)
	p.Snapshot(src, "x")
	run(t, "zfs send "+src+"@x | zfs receive -u -o readonly=on "+dst)
	read := func(source string) files.Digest {
		root, err := c.MountFiles(source)
		require.NoError(t, err)
		defer root.Close()
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		require.NoError(t, err)
		require.NotContains(t, string(mounts), source+" ")
		p.Write(src, "more", 1<<20, 2)
		d, err := files.Read(t.Context(), root, files.Query{Sample: 1}, nil)
		require.NoError(t, err)
		return d
	}
	want := read(src + "@x")
	require.EqualValues(t, 1, want.Read)
	require.EqualValues(t, 3<<20, want.Bytes)
	require.Equal(t, want, read(dst+"@x"))

	root, err := c.MountFiles(dst + "@x")
	require.NoError(t, err)
	p.Snapshot(src, "y")
	run(t, "zfs send -i @x "+src+"@y | zfs receive -u "+dst)
	require.Equal(t, "no", strings.TrimSpace(run(t, "zfs get -Ho value mounted "+dst)))
	require.NoError(t, root.Close())
	run(t, "zfs destroy "+dst+"@x")

	live, err := c.MountFiles(src) // mounted read-write
	require.NoError(t, err)
	d, err := files.Read(t.Context(), live, files.Query{Sample: 1}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Read)
	require.NoError(t, live.Close())
	p.Write(src, "again", 1, 3)

	_, err = c.MountFiles(src + "@nope")
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotFound})
}

func run(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", script).CombinedOutput()
	require.NoError(t, err, "%s: %s", script, out)
	return string(out)
}
