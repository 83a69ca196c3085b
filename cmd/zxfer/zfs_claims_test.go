package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/outcome"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// claimLab is a source with the snapshots @a and @b, and a copy that has @a. Each case changes a clone of
// @b, and gives its increment the GUID of @b and the change and modification times of its files, so that
// only the changed value differs.
type claimLab struct {
	*replication
	src, dst string
	times    map[uint64][]byte // of each object in @b, as its OBJECT record has them
}

// posixACL returns an access control list in which one user may read, as an extended attribute.
//
// https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/include/uapi/linux/posix_acl_xattr.h
func posixACL(user uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{{1, 6, 0xffffffff}, {2, 4, user}, {4, 4, 0xffffffff}, {0x10, 4, 0xffffffff}, {0x20, 4, 0xffffffff}} {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return b
}

func newClaimLab(t *testing.T) *claimLab {
	t.Helper()
	lab(t)
	l := &claimLab{replication: newReplication(t, ""), times: map[uint64][]byte{}}
	l.src, l.dst = dataset(t)
	t.Cleanup(func() { cleanUp(l.src + "-mod") })
	zfsCmd(t, "create", "-o", "compression=off", "-o", "acltype=posix", "-o", "xattr=sa", "-o", "atime=off", l.src)
	at := mountpoint(t, l.src)
	for _, name := range []string{"f", "g", "sparse", "big"} {
		fill(t, l.src, name, 300<<10)
	}
	fill(t, l.src, "one", 10<<10)
	require.NoError(t, os.Truncate(at+"/sparse", 1<<20))
	require.NoError(t, os.Mkdir(at+"/d", 0o755))
	require.NoError(t, os.Symlink("f", at+"/link"))
	require.NoError(t, unix.Mknod(at+"/node", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	for _, name := range []string{"f", "d"} {
		require.NoError(t, unix.Setxattr(at+"/"+name, "user.small", []byte("a"), 0))
		require.NoError(t, unix.Setxattr(at+"/"+name, "system.posix_acl_access", posixACL(1234), 0))
	}
	require.NoError(t, unix.Setxattr(at+"/d", "system.posix_acl_default", posixACL(1234), 0))
	require.NoError(t, unix.Setxattr(at+"/big", "user.big", []byte(strings.Repeat("a", 8000)), 0))
	zfsCmd(t, "snapshot", l.src+"@a")
	mustZxfer(t, "send", l.src, l.dst)
	fill(t, l.src, "new", 1000)
	zfsCmd(t, "snapshot", l.src+"@b")
	for _, r := range zfstest.ParseStream(t, []byte(run(t, "zfs", "send", "-L", l.src+"@b"))) {
		if object, times := timesOf(&r); times != nil {
			l.times[object] = times
		}
	}
	l.writeDrill(t, l.src, l.dst, "", "")
	return l
}

// timesOf returns the modification and change time in an OBJECT record of a file, or nil. The order of the
// first attributes is that of zfs_mknode in OpenZFS: mode, size, generation, owner, group, parent, flags,
// access, modification and change time.
func timesOf(r *zfstest.Record) (object uint64, times []byte) {
	const systemAttributes = 44
	if r.Type() != zfs.RecordObject || binary.LittleEndian.Uint32(r.Header[20:]) != systemAttributes {
		return 0, nil
	}
	at := int(binary.LittleEndian.Uint16(r.Payload[4:])>>10)*8 + 72
	return binary.LittleEndian.Uint64(r.Header[8:]), r.Payload[at : at+32]
}

// forge makes the next zfs receive store the change that a function makes in the directory of a clone of @b.
func (l *claimLab) forge(t *testing.T, keepTimes bool, change func(t *testing.T, mod, at string)) {
	t.Helper()
	mod := l.src + "-mod"
	zfsCmd(t, "clone", "-o", "compression=off", "-o", "acltype=posix", "-o", "xattr=sa", "-o", "atime=off", l.src+"@b", mod)
	t.Cleanup(func() { zfsCmd(t, "destroy", "-r", mod) })
	change(t, mod, mountpoint(t, mod))
	zfsCmd(t, "snapshot", mod+"@b")
	guid, err := strconv.ParseUint(strings.TrimSpace(zfsCmd(t, "get", "-Hpo", "value", "guid", l.src+"@b")), 10, 64)
	require.NoError(t, err)
	s := zfstest.ParseStream(t, []byte(run(t, "zfs", "send", "-L", "-i", l.src+"@a", mod+"@b"))).As(l.src+"@b", guid)
	s[0].Header[36] &^= 1 // DRR_FLAG_CLONE
	for i := range s {
		if object, times := timesOf(&s[i]); !keepTimes && times != nil && l.times[object] != nil {
			copy(times, l.times[object])
		}
	}
	file := filepath.Join(t.TempDir(), "stream")
	require.NoError(t, os.WriteFile(file, s.Bytes(), 0o600))
	real, err := exec.LookPath("zfs")
	require.NoError(t, err)
	wrapper := filepath.Join(labDir, "bin", "zfs")
	testenv.WriteProgram(t, wrapper, fmt.Appendf(nil, "#!/bin/sh\n[ \"$1\" = receive ] || exec %[1]s \"$@\"\ncat >/dev/null\nexec %[1]s \"$@\" <%[2]s\n", real, file))
	t.Cleanup(func() { _ = os.Remove(wrapper) })
}

// TestZFSClaims makes each kind of difference by hand, and expects exactly those that "What a claim compares"
// in docs/reference/output.md names to be found, by send --verify and by a drill.
func TestZFSClaims(t *testing.T) {
	l := newClaimLab(t)
	ok := func(t *testing.T, errs ...error) {
		t.Helper()
		for _, err := range errs {
			require.NoError(t, err)
		}
	}
	rewrite := func(t *testing.T, path string, at int64, b []byte) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteAt(b, at)
		ok(t, err, f.Close())
	}
	punch := func(t *testing.T, path string, at, n int64) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		require.NoError(t, err)
		ok(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n), f.Close())
	}
	touched := func(t *testing.T, _, at string) {
		ok(t, os.Chown(at+"/g", 0, 0)) // its owner and group
	}
	const both, verify, none = "send --verify and drill", "send --verify", ""
	for _, c := range []struct {
		name, found string
		change      func(t *testing.T, mod, at string)
		keepTimes   bool
	}{
		{name: "nothing", change: func(*testing.T, string, string) {}},
		{name: "only the times, which are those of @b", change: touched},
		{"change time", both, touched, true},
		{"modification time", both, func(t *testing.T, _, at string) { ok(t, os.Chtimes(at+"/g", time.Time{}, time.Unix(1, 5))) }, true},
		{"access time", verify, func(t *testing.T, _, at string) { ok(t, os.Chtimes(at+"/g", time.Unix(1, 5), time.Time{})) }, false},
		{"owner", both, func(t *testing.T, _, at string) { ok(t, os.Chown(at+"/f", 1234, -1)) }, false},
		{"group", both, func(t *testing.T, _, at string) { ok(t, os.Chown(at+"/f", -1, 1234)) }, false},
		{"mode", both, func(t *testing.T, _, at string) { ok(t, os.Chmod(at+"/g", 0o600)) }, false},
		{"another link", both, func(t *testing.T, _, at string) { ok(t, os.Link(at+"/f", at+"/d/f2")) }, false},
		{"extended attribute", both, func(t *testing.T, _, at string) { ok(t, unix.Setxattr(at+"/f", "user.small", []byte("b"), 0)) }, false},
		{"extended attribute of a directory", both, func(t *testing.T, _, at string) { ok(t, unix.Setxattr(at+"/d", "user.small", []byte("b"), 0)) }, false},
		{"extended attribute, stored as a file", both, func(t *testing.T, mod, at string) {
			zfsCmd(t, "set", "xattr=on", mod)
			ok(t, unix.Setxattr(at+"/g", "user.file", []byte("b"), 0))
		}, false},
		{"large extended attribute", both, func(t *testing.T, _, at string) {
			ok(t, unix.Setxattr(at+"/big", "user.big", []byte(strings.Repeat("a", 7999)+"b"), 0))
		}, false},
		{"new large extended attribute", both, func(t *testing.T, _, at string) {
			ok(t, unix.Setxattr(at+"/g", "user.big", []byte(strings.Repeat("a", 8000)), 0))
		}, false},
		{"ACL", both, func(t *testing.T, _, at string) {
			ok(t, unix.Setxattr(at+"/f", "system.posix_acl_access", posixACL(1235), 0))
		}, false},
		{"default ACL", both, func(t *testing.T, _, at string) {
			ok(t, unix.Setxattr(at+"/d", "system.posix_acl_default", posixACL(1235), 0))
		}, false},
		{"zeros in place of a hole", none, func(t *testing.T, _, at string) { rewrite(t, at+"/sparse", 512<<10, make([]byte, 128<<10)) }, false},
		{"zeros in place of data", both, func(t *testing.T, _, at string) { rewrite(t, at+"/f", 128<<10, make([]byte, 128<<10)) }, false},
		{"a hole in place of data", both, func(t *testing.T, _, at string) { punch(t, at+"/f", 128<<10, 128<<10) }, false},
		{"a small hole in place of data", both, func(t *testing.T, _, at string) { punch(t, at+"/f", 4<<10, 512) }, false},
		{"one byte", both, func(t *testing.T, _, at string) { rewrite(t, at+"/f", 200_000, []byte("xyzzy")) }, false},
		{"truncated", both, func(t *testing.T, _, at string) { ok(t, os.Truncate(at+"/f", 299<<10)) }, false},
		{"renamed", both, func(t *testing.T, _, at string) { ok(t, os.Rename(at+"/f", at+"/h")) }, false},
		{"missing", both, func(t *testing.T, _, at string) { ok(t, os.Remove(at+"/f")) }, false},
		{"target of a link", both, func(t *testing.T, _, at string) { ok(t, os.Remove(at+"/link"), os.Symlink("g", at+"/link")) }, false},
		{"device number", both, func(t *testing.T, _, at string) {
			ok(t, os.Remove(at+"/node"), unix.Mknod(at+"/node", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
		}, false},
		{"append-only", verify, func(t *testing.T, _, at string) {
			f, err := os.Open(at + "/g")
			ok(t, err, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_APPEND), f.Close())
		}, false},
		{"block size", none, func(t *testing.T, _, at string) { // blocks grow only
			rewrite(t, at+"/one", 10<<10, make([]byte, 90<<10))
			ok(t, os.Truncate(at+"/one", 10<<10))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Cleanup(func() { zfsCmd(t, "rollback", "-r", l.dst+"@a") })
			l.forge(t, c.keepTimes, c.change)
			o := zxfer(t, "send", "--verify", l.src, l.dst)
			_ = os.Remove(filepath.Join(labDir, "bin", "zfs"))
			d, drilled := l.drill(t)
			require.Len(t, d.Copies, 1)
			got := d.Copies[0]
			require.True(t, got.Compared, drilled)
			if c.found != none {
				require.Equal(t, 1, o.code, o)
				require.Contains(t, o.stderr, "the contents of "+l.dst+"@b differ from "+l.src+"@b: ", o)
			} else {
				require.Equal(t, 0, o.code, o)
			}
			if c.found == both {
				require.Equal(t, outcome.Failed, got.Outcome, drilled)
				require.Contains(t, got.Error, "its files differ from "+l.src+"@b")
			} else {
				require.Equal(t, outcome.Done, got.Outcome, drilled)
			}
			noted := c.name == "block size"
			require.Equal(t, noted, strings.Contains(o.stderr, zfs.OtherBlockSizes), o)
			require.Equal(t, noted, strings.Contains(strings.Join(d.Notes, "\n"), zfs.OtherBlockSizes), d.Notes)
		})
	}
}
