package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/outcome"
	"zxfer/pkg/zfs"
)

// accessList returns an access control list as the kernel stores it, with an entry for a named group.
func accessList(group uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 6, 1<<32 - 1}, {4, 0, 1<<32 - 1}, {8, 0, group}, {16, 4, 1<<32 - 1}, {32, 0, 1<<32 - 1}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

func attribute(t *testing.T, path, name string) []byte {
	t.Helper()
	b := make([]byte, 4096)
	n, err := unix.Getxattr(path, name, b)
	require.NoError(t, err, path)
	return b[:n]
}

// createRareFiles creates files with access control lists, with holes, and with times that few
// programs use.
func createRareFiles(t *testing.T, dir string) (times map[string]unix.Timespec) {
	t.Helper()
	require.NoError(t, os.Mkdir(dir+"/shared", 0o750))
	require.NoError(t, os.WriteFile(dir+"/shared/secret", []byte("secret"), 0o640))
	require.NoError(t, unix.Setxattr(dir+"/shared/secret", "system.posix_acl_access", accessList(1234), 0))
	require.NoError(t, unix.Setxattr(dir+"/shared", "system.posix_acl_default", accessList(1234), 0))
	f, err := os.Create(dir + "/huge")
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("data"), 50_000), 3<<40)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(1<<62)) // 4 EiB
	require.NoError(t, f.Close())
	times = map[string]unix.Timespec{"1820": {Sec: -4733510400, Nsec: 7}, "2300": {Sec: 10413792000, Nsec: 5}, "30000": {Sec: 884541340800}}
	for name, at := range times {
		require.NoError(t, os.WriteFile(dir+"/"+name, nil, 0o600))
		require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/"+name, []unix.Timespec{at, at}, 0))
	}
	return times
}

// TestZFSLossless drills and restores a copy with acltype=off. It expects that access control lists,
// the holes of a file of 4 EiB, and times far away arrive, and that the drill reads only data.
func TestZFSLossless(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	back := src + "-back"
	t.Cleanup(func() { cleanUp(back) })
	zfsCmd(t, "create", "-o", "acltype=posix", "-o", "xattr=sa", src)
	zfsCmd(t, "create", "-o", "acltype=posix", "-o", "xattr=sa", back)
	dir, to := mountpoint(t, src), mountpoint(t, back)+"/new"
	times := createRareFiles(t, dir)
	r := newDrillJob(t, src, dst, "", "")
	zfsCmd(t, "set", "acltype=off", dst)
	d, o := r.drill(t)
	require.Equal(t, 0, o.code, o)
	require.Equal(t, outcome.Done, d.Copies[0].Outcome)
	require.True(t, d.Copies[0].Compared, d.Copies[0])
	require.Equal(t, "files", d.Copies[0].Read)
	require.Less(t, d.Copies[0].Bytes, uint64(1<<20))

	o = mustRunLocal(t, "restore", "--files", "/", dst, to)
	require.Regexp(t, `[1-9]\d\d(\.\d)? KiB`, o.stdout, "only data counts")
	require.NotContains(t, o.stdout, "were not restored")
	require.Empty(t, listClones(t))
	requireSameTree(t, dir, to)
	require.Equal(t, accessList(1234), attribute(t, to+"/shared/secret", "system.posix_acl_access"))
	require.Equal(t, accessList(1234), attribute(t, to+"/shared", "system.posix_acl_default"))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(to+"/huge", &st))
	require.EqualValues(t, 1<<62, st.Size)
	for name, at := range times {
		require.NoError(t, unix.Stat(filepath.Join(to, name), &st))
		require.Equal(t, at, st.Mtim, name)
	}
	o = mustRunLocal(t, "restore", "--files", "/", dst, to)
	require.Contains(t, o.stdout, "up to date")
}

// TestZFSLongNames restores names of 1,023 bytes onto a filesystem that stores them, and onto one that
// does not.
func TestZFSLongNames(t *testing.T) {
	lab(t)
	if moduleRelease(t).Before(zfs.Release{2, 4, 0}) {
		t.Skip("this OpenZFS lacks the feature longname")
	}
	src, dst := dataset(t)
	back := src + "-back"
	t.Cleanup(func() { cleanUp(back) })
	zfsCmd(t, "create", "-o", "longname=on", src)
	zfsCmd(t, "create", "-o", "longname=on", back)
	long := strings.Repeat("n", 1023)
	require.NoError(t, os.Mkdir(mountpoint(t, src)+"/"+long, 0o755))
	fill(t, src, long+"/"+long, 1000)
	fill(t, src, "short", 1000)
	zfsCmd(t, "snapshot", src+"@a")
	mustRunLocal(t, "send", "--verify", src, dst)
	mustRunLocal(t, "restore", "--files", "/", dst, mountpoint(t, back)+"/new")
	requireSameTree(t, mountpoint(t, src), mountpoint(t, back)+"/new")
	to := t.TempDir()
	o := runLocal(t, "restore", "--files", "/", dst, to)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.String(), "the target's filesystem cannot store so long a name: nothing below it was restored")
	require.FileExists(t, to+"/short")
}
