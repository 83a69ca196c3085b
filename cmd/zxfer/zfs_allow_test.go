package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/preflight"
)

// runAsBackup runs a program on alpha as a user who is not root.
func runAsBackup(t *testing.T, argv ...string) cmdResult {
	t.Helper()
	argv = append([]string{"--reuid=backup", "--regid=backup", "--clear-groups", "env", "HOME=/var/tmp"}, argv...)
	return startAs(t, nil, "setpriv", argv...).wait(t)
}

// TestZFSPrintedPermissionsSuffice runs the commands of doctor --print-allow, and expects
// full and incremental sends, plain and raw, to succeed as an ordinary user. If ZFS has
// receive:append, this user cannot destroy data of the copy.
func TestZFSPrintedPermissionsSuffice(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsVersion, err := os.ReadFile("/sys/module/zfs/version")
	require.NoError(t, err)
	receive := preflight.ReceivePermission(strings.TrimSpace(string(zfsVersion)), false)
	device, err := os.Stat("/dev/zfs")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Chmod("/dev/zfs", device.Mode().Perm()) })
	require.NoError(t, os.Chmod("/dev/zfs", 0o666), "permissions of /dev/zfs with udev")
	zfsCmd(t, "create", "-o", "canmount=off", src)
	zfsCmd(t, "create", src+"/plain")
	encryptedDataset(t, src+"/raw")
	for _, kind := range []string{"plain", "raw"} {
		from, to := src+"/"+kind, dst+"-"+kind
		t.Cleanup(func() { releaseAll(to) })
		for _, names := range [][]string{{"a"}, {"b", "c"}} {
			for _, name := range names {
				fill(t, from, name, 1<<20)
				zfsCmd(t, "snapshot", from+"@"+name)
			}
			o := runAsBackup(t, alphaBin, "send", from, to)
			require.NotEqual(t, 0, o.code, o.String())
			require.Contains(t, o.stderr, "ermission")
			printed := strings.ReplaceAll(mustZxfer(t, "doctor", "--print-allow", from, to).stdout, " USER ", " backup ")
			require.Regexp(t, "(?m)^# as root on \\S+ .*\\nzfs allow -u backup [a-z:,]+ .*\\nzfs allow -u backup .*\\n$", printed)
			require.Contains(t, strings.FieldsFunc(printed, func(r rune) bool { return r == ' ' || r == ',' }), receive)
			run(t, "sh", "-ec", printed) // exactly as printed
			undo := strings.ReplaceAll(printed, "zfs allow", "zfs unallow")
			o = runAsBackup(t, alphaBin, "send", from, to)
			require.Equal(t, 0, o.code, o.String())
			require.Equal(t, guids(t, from), guids(t, to))
			if receive == "receive:append" && names[0] == "b" {
				before := guids(t, to)
				for _, command := range []string{
					"zfs send -w " + from + "@b | zfs receive -u -F " + to,
					"zfs send -w -i @a " + from + "@b | zfs receive -u -F " + to,
					"zfs rollback -r " + to + "@a", "zfs destroy " + to + "@a",
				} {
					require.NotEqual(t, 0, runAsBackup(t, "sh", "-c", command).code, command)
				}
				require.Equal(t, before, guids(t, to))
			}
			run(t, "sh", "-ec", undo)
		}
	}
}

// TestZFSPrintedPermissionsSufficeForKey sends raw streams with an append-only key of an
// ordinary user. The incremental send succeeds only after all printed commands.
func TestZFSPrintedPermissionsSufficeForKey(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	device, err := os.Stat("/dev/zfs")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Chmod("/dev/zfs", device.Mode().Perm()) })
	require.NoError(t, os.Chmod("/dev/zfs", 0o666), "permissions of /dev/zfs with udev")
	encryptedDataset(t, src)
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	t.Cleanup(func() { releaseAll(dst) })
	rsh := filepath.Join(t.TempDir(), "rsh")
	require.NoError(t, os.WriteFile(rsh, []byte("#!/bin/sh\nexec ssh -F "+labDir+"/ssh_config \"$1\" setpriv --reuid=backup --regid=backup --clear-groups env HOME=/var/tmp "+
		alphaBin+" agent --allow receive="+dst+" --append-only --audit /dev/null\n"), 0o755))
	zfsCmd(t, "snapshot", src+"@a")
	lines := strings.Split(strings.TrimSpace(mustZxfer(t, "doctor", "--print-allow", src, "beta:"+dst+"/copy").stdout), "\n")
	require.Len(t, lines, 6)
	require.True(t, strings.HasPrefix(lines[2], "# as root on beta") && strings.HasPrefix(lines[4], "# as root on beta, only where its key is --append-only"), lines)
	allow := func(line string) {
		line = strings.Replace(line, " USER ", " backup ", 1)
		require.Regexp(t, "^zfs allow -u backup [a-z:,]+ "+dst+"$", line)
		run(t, "sh", "-c", line)
	}
	allow(lines[3])
	mustZxfer(t, "send", "-e", rsh, src, "beta:"+dst+"/copy")
	zfsCmd(t, "snapshot", src+"@b")
	o := zxfer(t, "send", "-e", rsh, src, "beta:"+dst+"/copy")
	require.NotEqual(t, 0, o.code, o.String())
	require.Contains(t, o.stderr, "zfs allow -u USER send ")
	allow(lines[5])
	mustZxfer(t, "send", "-e", rsh, src, "beta:"+dst+"/copy")
	require.Equal(t, guids(t, src), guids(t, dst+"/copy"))

	zfsCmd(t, "create", src+"/other")
	zfsCmd(t, "snapshot", src+"/other@a")
	o = zxfer(t, "doctor", "--print-allow", src+"/other", "beta:"+dst+"/copy") // the target is a copy of another dataset
	require.Equal(t, 3, o.code, o.String())
	require.Empty(t, o.stdout)
	require.Contains(t, o.stderr, "common")
}

// TestZFSOldFilesystemWithLargeDnodes sends a filesystem of ZPL version 4 with large
// dnodes, and expects a refusal before anything changes. The bug openzfs#18773 would free
// contents of files in the copy.
func TestZFSOldFilesystemWithLargeDnodes(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "version=4", "-o", "dnodesize=1k", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	fill(t, src, "b", 1<<20)
	zfsCmd(t, "snapshot", src+"@two")
	before := state(t)
	o := zxfer(t, "send", src, "beta:"+dst)
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "ZPL version 4")
	require.Equal(t, before, state(t))
}
