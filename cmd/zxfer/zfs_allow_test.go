package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// runAsBackup runs a program on alpha as a user who is not root.
func runAsBackup(t *testing.T, argv ...string) cmdResult {
	t.Helper()
	argv = append([]string{"--reuid=backup", "--regid=backup", "--clear-groups", "env", "HOME=/var/tmp"}, argv...)
	return startAs(t, nil, "setpriv", argv...).wait(t)
}

// openDevZFS lets every account open /dev/zfs, as udev does.
func openDevZFS(t *testing.T) {
	t.Helper()
	device, err := os.Stat("/dev/zfs")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Chmod("/dev/zfs", device.Mode().Perm()) })
	require.NoError(t, os.Chmod("/dev/zfs", 0o666))
}

// TestZFSActsNeedTheirPermissions runs each operation of zfs.Acts as an ordinary user. It succeeds with the
// permissions of the table, and fails without any one of them. With every permission, the user cannot run those
// that only root can.
func TestZFSActsNeedTheirPermissions(t *testing.T) {
	lab(t)
	openDevZFS(t)
	src, dst := dataset(t)
	pool := zfs.PoolOf(src)
	const key = "/tmp/acts.key" // which every user can read
	require.NoError(t, os.WriteFile(key, []byte("12345678\n"), 0o644))
	encrypted := "-o encryption=on -o keyformat=passphrase -o keylocation=file://" + key
	setup := fmt.Sprintf("zfs create -p -o canmount=noauto %[1]s/d && zfs create %[2]s && zfs create %[1]s/e %[3]s && zfs create -u %[1]s/e/x "+
		"&& zfs snapshot %[1]s/d@1 && zfs snapshot %[1]s/d@2 && zfs bookmark %[1]s/d@1 %[1]s/d#1 && zfs send %[1]s/d@1 | zfs receive -u %[2]s/old "+
		"&& zfs hold k %[1]s/d@2 && zfs snapshot %[2]s/old@own && zfs send %[1]s/d@1 >/tmp/acts.full && zfs set canmount=noauto %[2]s", src, dst, encrypted)
	cases := map[string]string{ // commands, with S and D for the datasets
		zfs.OpSend: "zfs send S/d@1 >/tmp/acts.$$", zfs.OpHold: "zfs hold h S/d@1",
		zfs.OpRelease: "zfs release k S/d@2", zfs.OpSnapshot: "zfs snapshot S/d@3", zfs.OpBookmark: "zfs bookmark S/d@2 S/d#2",
		zfs.OpDestroy: "zfs destroy S/d@1", zfs.OpReceive: "zfs receive -u D/new </tmp/acts.full",
		zfs.OpDiscard: "zfs receive -A D/part", zfs.OpCreate: "zfs create -u -o canmount=off D/above",
		zfs.OpSet: "zfs set readonly=on D/old", zfs.OpInherit: "zfs inherit readonly D/old",
		zfs.OpRename: "zfs rename -u D/old D/renamed", zfs.OpRollback: "zfs rollback D/old@own",
		zfs.OpClone: "zfs clone -o canmount=off S/d@1 S/clone", zfs.OpChangeKey: "zfs change-key -o keyformat=passphrase -o keylocation=file://" + key + " S/e/x",
		zfs.OpLoadKey: "zfs load-key S/e", zfs.OpUnloadKey: "zfs unload-key S/e",
		zfs.OpMount: "zfs mount D", zfs.OpUnmount: "zfs unmount D", zfs.OpScrub: "zpool scrub P", zfs.OpImport: "zpool import -N -d /tmp acts", zfs.OpExport: "zpool export P",
	}
	properties := map[string][]string{zfs.OpSet: {"readonly"}, zfs.OpInherit: {"readonly"}, zfs.OpClone: {"canmount"}}
	prepare := map[string]string{
		zfs.OpDiscard:   "head -c 40000 /dev/urandom >/tmp/acts.file && zfs create -o mountpoint=/tmp/acts.mnt S/big && cp /tmp/acts.file /tmp/acts.mnt/f && zfs snapshot S/big@1 && { zfs send S/big@1 | head -c 30000 | zfs receive -s -u D/part || true; }",
		zfs.OpUnloadKey: "zfs unmount S/e", zfs.OpLoadKey: "zfs unmount S/e; zfs unload-key -r S/e", zfs.OpMount: "zfs unmount D || true", zfs.OpUnmount: "zfs mount D || true",
		zfs.OpImport: "rm -f /tmp/acts.pool; truncate -s 100M /tmp/acts.pool; chmod 666 /tmp/acts.pool; zpool create -O canmount=off acts /tmp/acts.pool; zpool export acts",
	}
	word := strings.NewReplacer("S/", src+"/", "D/", dst+"/", " D", " "+dst, " P", " "+pool)
	attempt := func(t *testing.T, op, command string, permissions []string) cmdResult {
		t.Helper()
		_ = destroyAll(src)
		_ = destroyAll(dst)
		run(t, "sh", "-ec", setup)
		if p := prepare[op]; p != "" {
			run(t, "sh", "-ec", word.Replace(p))
		}
		if len(permissions) > 0 {
			zfsCmd(t, "allow", "-u", "backup", strings.Join(permissions, ","), src)
			zfsCmd(t, "allow", "-u", "backup", strings.Join(permissions, ","), dst)
		}
		return runAsBackup(t, "sh", "-ec", word.Replace(command))
	}
	t.Cleanup(func() {
		_ = destroyAll(src)
		_ = destroyAll(dst)
		_ = exec.Command("zpool", "destroy", "acts").Run()
	})
	all := map[string]bool{}
	for _, a := range zfs.Acts() {
		for _, p := range a.Permissions {
			all[p] = true
		}
	}
	every := slices.Sorted(maps.Keys(all))
	for _, a := range zfs.Acts() {
		t.Run(a.Op, func(t *testing.T) {
			command := cases[a.Op]
			require.NotEmpty(t, command)
			if a.Root {
				require.NotEqual(t, 0, attempt(t, a.Op, command, every).code, command)
				if a.Op != zfs.OpExport { // the tests need this pool
					run(t, "sh", "-ec", word.Replace(command)) // root can
				}
				return
			}
			need := zfs.Work{Ops: []string{a.Op}, Properties: properties[a.Op]}.Permissions()
			o := attempt(t, a.Op, command, need)
			require.Equal(t, 0, o.code, "%s with %s: %s", command, need, o)
			for i, p := range need {
				o := attempt(t, a.Op, command, slices.Concat(need[:i], need[i+1:]))
				require.NotEqual(t, 0, o.code, "%s does not need %s", command, p)
				require.Regexp(t, "[Pp]ermission denied", o.stdout+o.stderr, command)
			}
		})
	}
}

// TestZFSJobNeedsPrintedPermissions runs a job as an ordinary user. With the lines of check, everything that
// check announced works, and check prints no line any more. Without any one permission, check names exactly
// this one, and the run fails or reports it.
func TestZFSJobNeedsPrintedPermissions(t *testing.T) {
	lab(t)
	openDevZFS(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "compression=lz4", "-o", "canmount=noauto", src)
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	t.Cleanup(func() { releaseAll(src); releaseAll(dst) })
	home, err := os.MkdirTemp("/var/tmp", "zxfer-allow-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	require.NoError(t, os.Chmod(home, 0o777))
	file := home + "/jobs.toml"
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`
[[job]]
name = "home"
source = %q
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 1 }
[[job.target]]
name = "near"
to = %q
retention = { last = 1 }
`, src, dst+"/copy")), 0o644))
	replicate := func(verb string, args ...string) cmdResult {
		return runAsBackup(t, append([]string{alphaBin, "replicate", verb, "-c", file, "--state-dir", home + "/state"}, append(args, "home")...)...)
	}
	lines := func() []string { // as zfs allow -u USER PERMISSIONS DATASET
		t.Helper()
		o := replicate("check")
		require.Equal(t, 0, o.code, o.String())
		return regexp.MustCompile(`(?m)zfs allow -u backup .*$`).FindAllString(o.stdout, -1)
	}
	printed := lines()
	require.Len(t, printed, 2)
	given := map[string][]string{} // by dataset
	for _, l := range printed {
		words := strings.Fields(l)
		given[words[5]] = strings.Split(words[4], ",")
	}
	grant := func(except string) {
		t.Helper()
		for d, permissions := range given {
			zfsCmd(t, "unallow", "-u", "backup", d)
			have := slices.DeleteFunc(slices.Clone(permissions), func(p string) bool { return p+" "+d == except })
			zfsCmd(t, "allow", "-u", "backup", strings.Join(have, ","), d)
		}
	}
	t.Cleanup(func() {
		for d := range given {
			_ = exec.Command("zfs", "unallow", "-u", "backup", d).Run()
		}
	})
	grant("")
	for range 3 { // takes snapshots, sends, places and releases holds, and destroys
		o := replicate("run")
		require.Equal(t, 0, o.code, o.String())
		require.NotRegexp(t, "denied|not permitted", o.stdout+o.stderr)
		nextSecond(t) // another second in the name of the snapshot
	}
	require.Len(t, guids(t, dst+"/copy"), 1)
	require.Empty(t, lines())
	require.Contains(t, replicate("check", "-v").stdout, "backup is not root on this host: nothing is missing")
	for d, permissions := range given {
		for _, p := range permissions {
			releaseAll(dst + "/copy")
			_ = destroyAll(dst + "/copy")
			require.NoError(t, os.RemoveAll(home+"/state"))
			grant(p + " " + d)
			require.Equal(t, []string{"zfs allow -u backup " + p + " " + d}, lines())
			reported, all := false, ""
			for range 3 {
				o := replicate("run")
				text := o.stdout + o.stderr
				reported = reported || o.code != 0 || strings.Contains(text, "denied") || strings.Contains(text, "operation not permitted") || strings.Contains(text, "zfs allow") || strings.Contains(text, "lacks the permission")
				all += o.String()
				nextSecond(t)
			}
			assert.True(t, reported, "%s on %s is superfluous: %s", p, d, all)
		}
	}

	// By a group, by everyone, and by a set.
	grant("")
	for d, permissions := range given {
		zfsCmd(t, "unallow", "-u", "backup", d)
		zfsCmd(t, "allow", "-s", "@zxfer", strings.Join(permissions[1:], ","), d)
		zfsCmd(t, "allow", "-g", "backup", "@zxfer", d)
		zfsCmd(t, "allow", "-e", permissions[0], d)
		t.Cleanup(func() { _ = exec.Command("zfs", "unallow", "-r", d).Run() })
	}
	require.Empty(t, lines())
}

// TestZFSPrintedPermissionsSuffice runs the commands of doctor --print-allow, and expects
// full and incremental sends, plain and raw, to succeed as an ordinary user. If ZFS has
// receive:append, this user cannot destroy data of the copy.
func TestZFSPrintedPermissionsSuffice(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsVersion, err := os.ReadFile("/sys/module/zfs/version")
	require.NoError(t, err)
	receive := zfs.Work{ZFS: strings.TrimSpace(string(zfsVersion)), Ops: []string{zfs.OpReceive}}.Permissions()[2]
	openDevZFS(t)
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
			seen := runAsBackup(t, alphaBin, "doctor", "--print-allow", from, to)
			require.Equal(t, 0, seen.code, seen.String())
			require.NotContains(t, seen.stdout, "# as root")
			require.Equal(t, 2, strings.Count(seen.stdout, "# nothing is missing"), seen.stdout)
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
	openDevZFS(t)
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
