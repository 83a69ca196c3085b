package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// victimDir returns a directory that stands for one of the system. A mount on it would hide its file.
func victimDir(t *testing.T) string {
	t.Helper()
	victim := filepath.Join(t.TempDir(), "etc")
	require.NoError(t, os.Mkdir(victim, 0o755))
	require.NoError(t, os.WriteFile(victim+"/shadow", []byte("mine"), 0o600))
	t.Cleanup(func() { require.FileExists(t, victim+"/shadow", "nothing is mounted on it") })
	return victim
}

// hostileTree creates a tree in which links of the parent stand for the mountpoints of its children: an absolute one, a
// relative one, and one in the middle of a path. below is where the tree will be mounted. It returns the children.
func hostileTree(t *testing.T, src, mountpoint, below, victim string) (children []string) {
	t.Helper()
	zfsCmd(t, "create", "-o", "mountpoint="+mountpoint, src)
	relative, err := filepath.Rel(below, victim)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(victim, mountpoint+"/absolute"))
	require.NoError(t, os.Symlink(relative, mountpoint+"/relative"))
	require.NoError(t, os.Symlink(filepath.Dir(victim), mountpoint+"/middle"))
	zfsCmd(t, "create", "-u", "-o", "canmount=off", src+"/middle")
	for _, name := range []string{"/absolute", "/relative", "/middle/etc"} {
		zfsCmd(t, "create", "-u", src+name)
		children = append(children, name)
	}
	return children
}

// requireNotAtBoot expects that the next boot mounts none of the datasets.
func requireNotAtBoot(t *testing.T, datasets ...string) {
	t.Helper()
	run(t, "zfs", "mount", "-a")
	for _, d := range datasets {
		require.Equal(t, "no noauto", value(t, d, "mounted")+" "+value(t, d, "canmount"), d)
	}
}

// TestZFSRestoreMountLink restores a tree with hostile links. Only its root is mounted, also by the printed command and at
// the next boot.
func TestZFSRestoreMountLink(t *testing.T) {
	lab(t)
	victim := victimDir(t)
	src, dst := dataset(t)
	back := src + "-back"
	t.Cleanup(func() { cleanUp(back) })
	dir := t.TempDir()
	children := hostileTree(t, src, dir+"/data", dir+"/back", victim)
	zfsCmd(t, "snapshot", "-r", src+"@one")
	mustRunLocal(t, "send", "-R", src, dst)
	o := mustRunLocal(t, "restore", "-R", "-o", "mountpoint="+dir+"/back", dst, back)
	require.Contains(t, o.stdout, "zxfer restore --mount -R "+back)
	require.NotContains(t, o.stdout, "zfs mount")
	requireNotAtBoot(t, back, back+"/absolute", back+"/relative", back+"/middle/etc")
	o = runLocal(t, "restore", "--mount", "-R", back)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, back+"/absolute is not mounted at "+dir+"/back/absolute: "+dir+"/back/absolute is a symbolic link in a ZFS filesystem")
	require.Equal(t, "yes on", value(t, back, "mounted")+" "+value(t, back, "canmount"))
	for _, name := range children {
		o = runLocal(t, "restore", "--mount", back+name)
		require.Equal(t, 1, o.code, o)
		require.Contains(t, o.stderr, "is a symbolic link in a ZFS filesystem")
		requireNotAtBoot(t, back+name)
	}
	require.NoError(t, os.Remove(dir+"/back/absolute"))
	o = mustRunLocal(t, "restore", "--mount", back+"/absolute")
	require.Contains(t, o.stdout, back+"/absolute: mounted 1 filesystem\n")
	require.Equal(t, "yes on", value(t, back+"/absolute", "mounted")+" "+value(t, back+"/absolute", "canmount"))

	// The first restore with --mount ends at the link, too.
	other := src + "-other"
	t.Cleanup(func() { cleanUp(other) })
	o = runLocal(t, "restore", "-R", "--mount", "-o", "mountpoint="+dir+"/other", dst, other)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "the data was received, but: ")
	requireNotAtBoot(t, other+"/absolute", other+"/relative", other+"/middle/etc")
}

// TestZFSRestoreForeignPrograms expects that setuid programs and devices of a restored dataset have no effect, also after
// the next boot, unless the administrator permits them, and that a dataset keeps its own properties.
func TestZFSRestoreForeignPrograms(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-p", src+"/a")
	zfsCmd(t, "snapshot", "-r", src+"@one")
	mustRunLocal(t, "send", "-R", src, dst)
	atBoot := func(root string) (out string) {
		t.Helper()
		zfsCmd(t, "unmount", root)
		zfsCmd(t, "mount", "-a")
		for _, d := range []string{root, root + "/a"} {
			require.Equal(t, "yes on", value(t, d, "mounted")+" "+value(t, d, "canmount"))
			options := strings.Split(strings.TrimSpace(run(t, "findmnt", "-n", "-o", "OPTIONS", "-S", d)), ",")
			out += fmt.Sprint(slices.Contains(options, "nosuid"), slices.Contains(options, "nodev"), " ")
		}
		return out
	}
	for name, args := range map[string][]string{"plain": {"--mount"}, "later": nil, "permitted": {"--mount", "-o", "setuid=on", "-o", "devices=on"}} {
		back := src + "-" + name
		t.Cleanup(func() { cleanUp(back) })
		o := mustRunLocal(t, append(append([]string{"restore", "-R"}, args...), dst, back)...)
		if name == "later" {
			require.Equal(t, "on", value(t, back, "setuid"))
			o = mustRunLocal(t, "restore", "--mount", "-R", back)
		}
		want, note := "true true true true ", "set devices=off, setuid=off on "+back+": its files come from another host"
		if name == "permitted" {
			require.NotContains(t, o.stderr, "its files come")
			require.Equal(t, "false false false false ", atBoot(back), name)
			continue
		}
		require.Equal(t, 1, strings.Count(o.stderr, "its files come"), o)
		require.Contains(t, o.stderr, note)
		require.Equal(t, want, atBoot(back), name)
	}
	fill(t, src, "newer", 1000)
	zfsCmd(t, "snapshot", "-r", src+"@two")
	mustRunLocal(t, "restore", "-R", "--rollback", "--mount", dst, src)
	require.Equal(t, "false false false false ", atBoot(src), "data of this host")
}

// TestZFSPromoteLinkWithoutZxfer promotes a copy with hostile links on a host without zxfer. Nothing is mounted there, also
// not at the next boot. A switch, which cannot compare the block sizes there, changes nothing.
func TestZFSPromoteLinkWithoutZxfer(t *testing.T) {
	lab(t)
	agentlessAccount(t, "nas", loginShell)
	for _, verb := range []string{"promote", "switch"} {
		t.Run(verb, func(t *testing.T) { linkWithoutZxfer(t, verb) })
	}
}

func linkWithoutZxfer(t *testing.T, verb string) {
	victim := victimDir(t)
	src, dst := dataset(t)
	dir := t.TempDir()
	children := hostileTree(t, src, dir+"/data", dir+"/data", victim)
	l := &failoverLab{newReplication(t, fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nrecursive = true\nmount_below = [\"/tmp\"]\n"+
		"snapshots = { take = \"{job}-%%Y%%m%%dT%%H%%M%%SZ\" }\n[[job.target]]\nname = \"near\"\nto = \"nas:%s\"\n", src, dst)), src, dst, dir + "/data"}
	l.must(t, "run", "home")
	args := []string{"home"}
	if verb == "promote" {
		args = []string{"--source-alive", "home"}
	}
	nextSecond(t)
	argv := l.onAlpha(verb, args...)
	o := result(exec.Command(argv[0], argv[1:]...))
	require.NotContains(t, o.stdout+o.stderr, "zfs mount", verb)
	if verb == "switch" { // which also needs zxfer there
		require.Equal(t, 3, o.code, o)
		require.Equal(t, "off on", value(t, src, "readonly")+" "+value(t, dst, "readonly"))
	} else {
		require.Equal(t, 0, o.code, o)
		require.Equal(t, "off", value(t, dst, "readonly"))
		require.Contains(t, o.stdout, "install zxfer there, then mount", o)
	}
	requireNotAtBoot(t, dst)
	for _, name := range children {
		requireNotAtBoot(t, dst+name)
	}
}

// TestZFSRecordedMountpoints promotes copies whose recorded mountpoints this host did not permit. A source chooses the
// record.
func TestZFSRecordedMountpoints(t *testing.T) {
	lab(t)
	dir := t.TempDir()
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/child")
	l := &failoverLab{newReplication(t, fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nrecursive = true\n"+
		"snapshots = { take = \"{job}-%%Y%%m%%dT%%H%%M%%SZ\" }\n[[job.target]]\nname = \"near\"\nto = %q\n", src, dst)), src, dst, ""}
	l.must(t, "run", "home")
	for _, at := range []string{"/home/alice/.ssh", "/home/alice", "/root", "/var/lib/cloud/scripts/per-boot", "/var/lib/extensions", "/var/lib/confexts",
		"/opt/bin", "/efi", "/boot/efi", "/etc/cron.d", "/run/systemd/system", "/usr/local/bin", "/srv/../etc", "/srv", "/mnt", "/srv/.ssh"} {
		for _, name := range []string{dst, dst + "/child"} {
			if name != dst && len(at) < len("/home/alice/.ssh") && !testenv.Long() { // the same rule
				continue
			}
			zfsCmd(t, "set", `zxfer:origin={"set":{"mountpoint":"/srv/zxfer-test"}}`, dst)
			zfsCmd(t, "set", `zxfer:origin={"set":{"mountpoint":"`+at+`"}}`, name)
			before := state(t)
			argv := l.onAlpha("promote", "--source-alive", "home")
			o := result(exec.Command(argv[0], argv[1:]...))
			require.Equal(t, 3, o.code, "%s of %s: %s", at, name, o)
			require.Contains(t, o.stderr, "the recorded mountpoint is not used", at)
			require.Equal(t, before, state(t), at)
			zfsCmd(t, "inherit", "zxfer:origin", name)
		}
	}
	// With --mountpoint, the record of the child is not used.
	zfsCmd(t, "set", `zxfer:origin={"set":{"mountpoint":"/home/alice/.ssh"}}`, dst+"/child")
	o := l.must(t, "promote", "--source-alive", "--mountpoint", dir+"/copy", "home")
	require.Contains(t, o.stdout+o.stderr, "the recorded mountpoint is not used, the dataset inherits")
	require.Equal(t, dir+"/copy/child", value(t, dst+"/child", "mountpoint"))
	require.NoFileExists(t, "/home/alice")
}

// TestZFSLockedMountpoint promotes and restores to the mountpoint of a raw copy in another pool whose key is not loaded.
// Both would be mounted there later.
func TestZFSLockedMountpoint(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	secret, locked := src+"-secret", dst+"-locked"
	back := src + "-back"
	t.Cleanup(func() { cleanUp(secret); cleanUp(locked); cleanUp(back) })
	zfsCmd(t, "create", "-u", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, secret)
	zfsCmd(t, "snapshot", secret+"@one")
	mustRunLocal(t, "send", secret, locked) // to the other pool
	zfsCmd(t, "set", "mountpoint="+dir+"/data", locked)
	zfsCmd(t, "set", "canmount=on", locked)
	require.Equal(t, "unavailable", value(t, locked, "keystatus"))

	zfsCmd(t, "create", src)
	copied := src + "-copy" // in the pool of the source
	t.Cleanup(func() { cleanUp(copied) })
	l := &failoverLab{newReplication(t, fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nsnapshots = { take = \"{job}-%%Y%%m%%dT%%H%%M%%SZ\" }\n"+
		"[[job.target]]\nname = \"near\"\nto = %q\n", src, copied)), src, copied, ""}
	l.must(t, "run", "home")
	argv := l.onAlpha("promote", "--source-alive", "--mountpoint", dir+"/data", "home")
	o := result(exec.Command(argv[0], argv[1:]...))
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, copied+" cannot mount at "+dir+"/data: it is the mountpoint of "+locked+", which is not mounted now")

	o = runLocal(t, "restore", "--mount", "-o", "mountpoint="+dir+"/data", copied, back)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, back+" mounts at "+dir+"/data, the mountpoint of "+locked+", which is not mounted now")
	o = mustRunLocal(t, "restore", "-o", "mountpoint="+dir+"/data", copied, back)
	require.Contains(t, o.stdout, "zxfer restore --mount "+back)
	o = runLocal(t, "restore", "--mount", back)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "it is the mountpoint of "+locked)
	require.Contains(t, o.stderr, "hint: choose another mountpoint: zfs set mountpoint=/PATH "+back)
	zfsCmd(t, "set", "mountpoint="+dir+"/other", back)
	mustRunLocal(t, "restore", "--mount", back)
	require.Equal(t, "yes on", value(t, back, "mounted")+" "+value(t, back, "canmount"))
}
