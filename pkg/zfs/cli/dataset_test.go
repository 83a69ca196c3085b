package cli_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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
		root, unmount, err := c.MountFiles(t.Context(), source, false)
		require.NoError(t, err)
		defer func() { require.NoError(t, unmount()) }()
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

	_, unmount, err := c.MountFiles(t.Context(), dst+"@x", false)
	require.NoError(t, err)
	p.Snapshot(src, "y")
	run(t, "zfs send -i @x "+src+"@y | zfs receive -u "+dst)
	require.Equal(t, "no", strings.TrimSpace(run(t, "zfs get -Ho value mounted "+dst)))
	require.NoError(t, unmount())
	run(t, "zfs destroy "+dst+"@x")

	live, unmount, err := c.MountFiles(t.Context(), src, false) // mounted read-write
	require.NoError(t, err)
	d, err := files.Read(t.Context(), live, files.Query{Sample: 1}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Read)
	require.NoError(t, unmount())
	p.Write(src, "again", 1, 3)

	_, _, err = c.MountFiles(t.Context(), src+"@nope", false)
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotFound})
}

func run(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", script).CombinedOutput()
	require.NoError(t, err, "%s: %s", script, out)
	return string(out)
}

// acl returns an access control list as the kernel stores it, with an entry for a named user.
func acl(user uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 6, 1<<32 - 1}, {2, 7, user}, {4, 0, 1<<32 - 1}, {16, 7, 1<<32 - 1}, {32, 0, 1<<32 - 1}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// TestMountFilesShowsACLs reads files with access control lists from a copy whose dataset hides them,
// stored in both ways. It expects that they are read, that their difference is noticed, and that no
// clone is left, also of a killed process.
func TestMountFilesShowsACLs(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	c := cli.New(nil)
	t.Cleanup(func() { _ = c.Close() })
	clones := func() string {
		return run(t, "zfs list -H -o name,zxfer:drill -r "+p.Name+" | grep zxfer-drill- || true")
	}
	read := func(snapshot string) (digest files.Digest, of map[string][]byte) {
		root, unmount, err := c.MountFiles(t.Context(), snapshot, true)
		require.NoError(t, err)
		require.True(t, files.ShowsACLs(root))
		of = map[string][]byte{}
		for _, name := range []string{"f", "d"} {
			for _, attr := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
				b := make([]byte, 100)
				if n, err := unix.Getxattr(fmt.Sprintf("/proc/self/fd/%d/%s", root.Fd(), name), attr, b); err == nil {
					of[name+" "+attr] = b[:n]
				}
			}
		}
		digest, err = files.Read(t.Context(), root, files.Query{Snapshot: snapshot, Sample: 1, Replica: true}, nil)
		require.NoError(t, err)
		require.Zero(t, digest.Failed)
		require.NoError(t, unmount())
		return digest, of
	}
	for _, xattr := range []string{"sa", "on"} {
		src, dst := p.Create("src-"+xattr, "-o", "acltype=posix", "-o", "xattr="+xattr), p.Dataset("dst-"+xattr)
		require.NoError(t, os.WriteFile(p.Path(src, "f"), []byte("text"), 0o600))
		require.NoError(t, os.Mkdir(p.Path(src, "d"), 0o700))
		require.NoError(t, unix.Setxattr(p.Path(src, "f"), "system.posix_acl_access", acl(1234), 0))
		require.NoError(t, unix.Setxattr(p.Path(src, "d"), "system.posix_acl_default", acl(1234), 0))
		p.Snapshot(src, "x")
		run(t, "zfs send "+src+"@x | zfs receive -u -o acltype=off "+dst)
		want, acls := read(src + "@x")
		require.Len(t, acls, 2)
		got, copied := read(dst + "@x")
		require.Equal(t, acls, copied)
		require.Empty(t, got.DifferentParts(want))
		require.Equal(t, want.BlockSizes, got.BlockSizes)
		require.Empty(t, clones())

		require.NoError(t, unix.Setxattr(p.Path(src, "f"), "system.posix_acl_access", acl(1235), 0))
		p.Snapshot(src, "y")
		run(t, "zfs send -i @x "+src+"@y | zfs receive -u "+dst)
		changed, _ := read(dst + "@y")
		require.Len(t, changed.DifferentParts(want), 1)

		_, _, err := c.MountFiles(t.Context(), dst, true)
		require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotSupported}, "a dataset in its current state is not cloned")

		_, unmount, err := c.MountFiles(t.Context(), dst+"@x", true) // in use meanwhile
		require.NoError(t, err)
		used, _, _ := strings.Cut(clones(), "\t")
		run(t, "zfs clone -o zxfer:drill='(read)' -o mountpoint=none "+dst+"@y "+p.Name+"/zxfer-drill-left")
		restore := cli.SetReadCloneAge(-time.Hour)
		read(dst + "@y")
		restore()
		require.Equal(t, used, strings.Split(clones(), "\t")[0])
		require.NotContains(t, clones(), "left")
		require.NoError(t, unmount())
		require.Empty(t, clones())
	}
}
