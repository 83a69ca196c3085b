package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// User and groups of the ACL that denyGroup sets.
const namedUser, otherUser, deniedGroup = "4001", "4002", "4100"

// denyGroup creates a file of the group deniedGroup, whose ACL denies that group access and grants it to
// namedUser. Without the ACL, the mask would become the permissions of the group.
func denyGroup(t *testing.T, file string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte("secret"), 0o600))
	require.NoError(t, os.Chown(file, 0, 4100))
	acl := binary.LittleEndian.AppendUint32(nil, 2)
	const none = ^uint32(0)
	for _, e := range []struct {
		tag, may uint16
		id       uint32
	}{{1, 6, none}, {2, 6, 4001}, {4, 0, none}, {8, 0, 4100}, {16, 7, none}, {32, 0, none}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.may)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	require.NoError(t, unix.Setxattr(file, "system.posix_acl_access", acl, 0))
}

// requireDenied expects that namedUser can read a file, and that deniedGroup cannot. within is the command prefix of
// the host.
func requireDenied(t *testing.T, file string, within ...string) {
	t.Helper()
	read := func(user string) cmdResult {
		argv := append(within[:len(within):len(within)], "setpriv", "--reuid="+user, "--regid="+deniedGroup, "--clear-groups", "cat", file)
		return result(exec.Command(argv[0], argv[1:]...))
	}
	require.Equal(t, "secret", read(namedUser).stdout)
	o := read(otherUser)
	require.NotEqual(t, 0, o.code, "a group that the ACL denies reads the file: %s", o)
	require.Contains(t, o.stderr, "Permission denied")
}

// TestZFSAccessFollows runs a job, restores, switches there and back, and promotes. A file remains closed to a group that
// its ACL denies, and the new source has the restrictions of the former one.
func TestZFSAccessFollows(t *testing.T) {
	l := newFailoverLab(t, "/mnt/zxfer-access")
	zfsCmd(t, "set", "acltype=posix", "exec=off", "quota=300M", "reservation=1M", "snapshot_limit=1000", l.src)
	zfsCmd(t, "set", "devices=off", "exec=on", "refquota=200M", l.src+"/child")
	zfsCmd(t, "set", "sync=always", "atime=off", "snapdir=visible", "com.acme:owner=ann", l.src+"/child")
	denyGroup(t, l.mountpoint+"/child/secret")
	requireDenied(t, l.mountpoint+"/child/secret")
	l.must(t, "run", "home")
	has := func(root string) {
		t.Helper()
		require.Equal(t, "posix\noff", value(t, root, "acltype,exec"))
		require.Equal(t, "posix\noff\noff", value(t, root+"/child", "acltype,exec,devices"))
	}
	has(l.dst)
	_, source := get(t, "acltype", l.dst+"/child")
	require.Equal(t, "inherited from "+l.dst, source)
	require.Equal(t, "0", value(t, l.dst, "quota"))

	// A copy of an earlier version lacks the properties. check lists it, and a run sets them.
	zfsCmd(t, "inherit", "acltype", l.dst)
	zfsCmd(t, "inherit", "exec", l.dst)
	require.Contains(t, l.must(t, "check", "home").stdout, "SETS acltype=posix, exec=off on "+l.dst)
	l.must(t, "run", "home")
	has(l.dst)
	require.NotContains(t, l.must(t, "check", "home").stdout, "SETS")

	// A restore sets them before it mounts.
	restored := l.src + "-restored"
	t.Cleanup(func() { cleanUp(restored) })
	mustZxfer(t, "restore", "-R", "--mount", "-o", "mountpoint=/mnt/zxfer-access-restored", "beta:"+l.dst, restored)
	has(restored)
	zfsCmd(t, "mount", restored) // with the mounts of this test
	zfsCmd(t, "mount", restored+"/child")
	requireDenied(t, "/mnt/zxfer-access-restored/child/secret")
	mustZxfer(t, "restore", "-x", "acltype", "beta:"+l.dst, restored+"-plain")
	t.Cleanup(func() { cleanUp(restored + "-plain") })
	require.Equal(t, "off", value(t, restored+"-plain", "acltype"))

	o := l.must(t, "switch", "home")
	has(l.dst)
	require.Equal(t, fmt.Sprint(300<<20)+"\n1000\n0", value(t, l.dst, "quota,snapshot_limit,reservation"))
	require.Equal(t, fmt.Sprint(200<<20), value(t, l.dst+"/child", "refquota"))
	require.Contains(t, o.stdout+o.stderr, l.dst+": not set on the new source: reservation=1048576")
	require.Contains(t, o.stdout+o.stderr, l.dst+"/child: not set on the new source: exec=on")
	others := l.dst + "/child: not set on the new source: atime=off, com.acme:owner=ann, snapdir=visible, sync=always; its source has them"
	require.Contains(t, o.stdout+o.stderr, others)
	require.NotRegexp(t, "not set on the new source:.* zxfer:", o.stdout+o.stderr)
	requireDenied(t, l.mountpoint+"/child/secret", onBeta(t)...)
	l.must(t, "run", "home")
	l.must(t, "switch", "home")
	requireDenied(t, l.mountpoint+"/child/secret")
	require.Equal(t, fmt.Sprint(300<<20)+"\n1000\n1048576", value(t, l.src, "quota,snapshot_limit,reservation"))
	require.Equal(t, "on", value(t, l.src+"/child", "exec"))

	// Promote sets the quota again, but does not replace a limit of the copy.
	l.must(t, "run", "home")
	zfsCmd(t, "set", "quota=none", l.dst)
	zfsCmd(t, "inherit", "acltype", l.dst)
	zfsCmd(t, "set", "refquota=150M", l.dst+"/child")
	const other = "/mnt/zxfer-access-beta" // the source is still mounted
	l.must(t, "promote", "--source-alive", "--mountpoint", other, "home")
	require.Equal(t, fmt.Sprint(300<<20), value(t, l.dst, "quota"))
	require.Equal(t, fmt.Sprint(150<<20), value(t, l.dst+"/child", "refquota"))
	has(l.dst)
	requireDenied(t, other+"/child/secret", onBeta(t)...)
	require.Equal(t, "-", value(t, l.dst, "zxfer:settings"))
}

// TestZFSAccessWithoutZxfer runs a job to a host without zxfer, promotes the copy there, and restores there. A switch is
// refused, because it cannot compare block sizes there.
func TestZFSAccessWithoutZxfer(t *testing.T) {
	lab(t)
	agentlessAccount(t, "nas", loginShell)
	src, dst := dataset(t)
	dir := t.TempDir()
	t.Cleanup(func() { cleanUp(src) }) // before the directory
	zfsCmd(t, "create", "-o", "mountpoint="+dir+"/data", "-o", "acltype=posix", "-o", "exec=off", "-o", "quota=300M", "-o", "snapshot_limit=1000", src)
	zfsCmd(t, "create", "-o", "devices=off", "-o", "setuid=off", "-o", "exec=on", "-o", "refquota=200M", src+"/child")
	longname := exec.Command("zfs", "set", "longname=on", src).Run() == nil
	l := &failoverLab{newReplication(t, fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nrecursive = true\nmount_below = [\"/tmp\"]\n"+
		"snapshots = { take = \"{job}-%%Y%%m%%dT%%H%%M%%SZ\" }\n[[job.target]]\nname = \"near\"\nto = \"nas:%s\"\n", src, dst)), src, dst, dir + "/data"}
	has := func(root string) {
		t.Helper()
		require.Equal(t, "posix\noff", value(t, root, "acltype,exec"))
		require.Equal(t, "posix\noff\noff", value(t, root+"/child", "acltype,devices,setuid"))
		if longname {
			require.Equal(t, "on", value(t, root+"/child", "longname"))
		}
	}
	l.must(t, "run", "home")
	has(dst)
	require.Equal(t, "0", value(t, dst, "quota"))
	require.Contains(t, value(t, dst, "zxfer:settings"), "quota")
	zfsCmd(t, "inherit", "acltype", dst)
	zfsCmd(t, "inherit", "exec", dst)
	require.Contains(t, l.must(t, "check", "home").stdout, "SETS acltype=posix, exec=off on "+dst)
	l.must(t, "run", "home")
	has(dst)

	back := dst + "-back"
	t.Cleanup(func() { cleanUp(back) })
	mustZxfer(t, "restore", "-R", src, "nas:"+back)
	has(back)

	zfsCmd(t, "inherit", "acltype", dst)
	o := l.must(t, "promote", "--source-alive", "home")
	has(dst)
	require.Equal(t, "off\noff", value(t, dst, "setuid,devices"))
	require.Equal(t, fmt.Sprint(300<<20)+"\n1000", value(t, dst, "quota,snapshot_limit"))
	require.Equal(t, fmt.Sprint(200<<20), value(t, dst+"/child", "refquota"))
	require.Contains(t, o.stdout+o.stderr, dst+"/child: not set on the new source: exec=on")
}

// TestZFSAccessSent sends access properties with plain and raw streams, to an existing copy, and with a restricted key.
func TestZFSAccessSent(t *testing.T) {
	key, _ := restrictedKey(t, "--allow", "receive="+betaPool+"/granted", "--append-only")
	src, dst := dataset(t)
	t.Cleanup(func() { cleanUp(betaPool + "/granted") })
	zfsCmd(t, "create", "-o", "acltype=posix", "-o", "setuid=off", "-o", "com.acme:empty=", src)
	encryptedDataset(t, src+"/raw")
	denyGroup(t, mountpoint(t, src)+"/secret")
	zfsCmd(t, "snapshot", "-r", src+"@1")
	longname := exec.Command("zfs", "set", "longname=on", src).Run() == nil
	has := func(d string) {
		t.Helper()
		require.Equal(t, "posix\noff", value(t, d, "acltype,setuid"))
		if longname {
			require.Equal(t, "on", value(t, d, "longname"), d)
		}
	}
	mustZxfer(t, "send", "-R", src, "beta:"+dst)
	has(dst)
	has(dst + "/raw")
	o := mustZxfer(t, "send", src+"/raw", "beta:"+dst+"-raw") // inherited on the source only
	t.Cleanup(func() { cleanUp(dst + "-raw") })
	require.Equal(t, "posix\noff", value(t, dst+"-raw", "acltype,setuid"))
	require.Equal(t, longname, strings.Contains(o.stdout+o.stderr, "longname=on is not set while the key is not loaded"))

	zfsCmd(t, "inherit", "acltype", dst)
	o = mustZxfer(t, "send", src, "beta:"+dst) // nothing new
	require.Contains(t, o.stdout+o.stderr, "lacks acltype=posix of its source")
	has(dst)
	zfsCmd(t, "inherit", "setuid", dst)
	zfsCmd(t, "snapshot", "-r", src+"@2")
	mustZxfer(t, "send", src, "beta:"+dst)
	has(dst)

	// With a restricted key
	zfsCmd(t, "create", "-o", "canmount=off", betaPool+"/granted")
	to := betaPool + "/granted/copy"
	mustZxfer(t, "send", "-e", key, src, "beta:"+to)
	has(to)
	zfsCmd(t, "inherit", "acltype", to)
	mustZxfer(t, "send", "-e", key, src, "beta:"+to)
	has(to)
	for _, change := range []string{`{"exec":"on"}`, `{"quota":"1"}`, `{"acltype":"off","mountpoint":"/x"}`} {
		_, all := sendHostile(t, key, request("set-properties", fmt.Sprintf(`{"dataset":%q,"set":%s}`, to, change)))
		require.Contains(t, all, "policy forbids", change)
	}
	zfsCmd(t, "set", "readonly=off", to)
	_, all := sendHostile(t, key, request("set-properties", fmt.Sprintf(`{"dataset":%q,"set":{"acltype":"off"}}`, to)))
	require.Contains(t, all, "policy forbids")
	has(to)

	// An empty user property is named, or set if it is requested.
	o = mustZxfer(t, "send", "-p", src, "beta:"+dst+"/p")
	require.Contains(t, o.stdout+o.stderr, "com.acme:empty of "+src)
	mustZxfer(t, "send", "--carry", "com.acme:empty", src, "beta:"+dst+"/carried")
	empty, source := get(t, "com.acme:empty", dst+"/carried")
	require.Equal(t, []string{"", "local"}, []string{empty, source})
}

// TestZFSAccessNotPermitted runs a job of a user who lacks the permission to set acltype. The run succeeds, and it, status
// and check name the copy until the permission is granted.
func TestZFSAccessNotPermitted(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	device, err := os.Stat("/dev/zfs")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Chmod("/dev/zfs", device.Mode().Perm()) })
	require.NoError(t, os.Chmod("/dev/zfs", 0o666), "permissions of /dev/zfs with udev")
	zfsCmd(t, "create", "-o", "acltype=posix", src)
	parent := filepath.Dir(dst)
	home, err := os.MkdirTemp("/var/tmp", "zxfer-access-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	require.NoError(t, os.Chmod(home, 0o777))
	file := home + "/jobs.toml"
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`
[[job]]
name = "home"
source = %q
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
holds = "none"
bookmarks = "none"
[[job.target]]
name = "near"
to = %q
`, src, dst)), 0o644))
	replicate := func(verb string, args ...string) cmdResult {
		return runAsBackup(t, append([]string{alphaBin, "replicate", verb, "-c", file, "--state-dir", home + "/state"}, args...)...)
	}
	zfsCmd(t, "allow", "-u", "backup", "send,snapshot,mount,hold,release", src)
	zfsCmd(t, "allow", "-u", "backup", "receive,create,mount,canmount,readonly,userprop", parent)
	t.Cleanup(func() {
		_ = exec.Command("zfs", "unallow", "-u", "backup", parent).Run()
	})
	o := replicate("run", "home")
	require.Equal(t, 0, o.code, o)
	require.Contains(t, o.stdout+o.stderr, dst+" lacks acltype=posix of its source")
	zfsCmd(t, "inherit", "acltype", dst)
	o = replicate("run", "home")
	require.Equal(t, 0, o.code, o)
	require.Contains(t, o.stdout+o.stderr, "zfs allow -u backup acltype "+dst)
	status := replicate("status", "home").stdout
	require.Contains(t, status, "warning: near: "+dst+" lacks acltype=posix of its source: ")
	require.Contains(t, replicate("status", "--nagios", "home").stdout, "ZXFER WARNING: home: 1 copy lacks properties of the source")
	hint := "zfs allow -u backup acltype " + dst
	require.Contains(t, status, hint)
	check := replicate("check", "home")
	require.Contains(t, check.stdout, "SETS acltype=posix on "+dst)
	require.Regexp(t, "zfs allow -u backup [a-z,:]*acltype", check.stdout)
	run(t, strings.Fields(hint)...)
	o = replicate("run", "home")
	require.Equal(t, 0, o.code, o)
	require.Equal(t, "posix", value(t, dst, "acltype"))
	require.NotContains(t, replicate("status", "home").stdout, "lacks")
}
