package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// value returns the value of a property.
func value(t *testing.T, dataset, property string) string {
	t.Helper()
	return strings.TrimSpace(zfsCmd(t, "get", "-Hp", "-o", "value", property, dataset))
}

// property is the value of a property, with the source that zfs get prints.
type property struct{ value, source string }

// properties returns the properties of a dataset and its descendants by name.
func properties(t *testing.T, root string) map[string]map[string]property {
	t.Helper()
	all := map[string]map[string]property{}
	for l := range strings.Lines(zfsCmd(t, "get", "-Hp", "-r", "-t", "filesystem,volume", "-o", "name,property,value,source", "all", root)) {
		f := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		require.Len(t, f, 4, l)
		if all[f[0]] == nil {
			all[f[0]] = map[string]property{}
		}
		all[f[0]][f[1]] = property{f[2], f[3]}
	}
	return all
}

// runLocal runs zxfer in the mount namespace of the test, with both pools on its host. start
// uses ip netns exec, which has separate mounts.
func runLocal(t *testing.T, args ...string) cmdResult {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(alphaBin, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the caller checks its exit code
	return cmdResult{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func mustRunLocal(t *testing.T, args ...string) cmdResult {
	t.Helper()
	o := runLocal(t, args...)
	require.Equal(t, 0, o.code, o)
	return o
}

// localSettings lists the properties that are set on a dataset itself. It omits canmount, which a restore sets, and
// counts, which ZFS also reports as local if a limit was set in the pool.
func localSettings(t *testing.T, dataset string) string {
	t.Helper()
	all := zfsCmd(t, "get", "-H", "-s", "local", "-o", "property,value", "all", dataset)
	return regexp.MustCompile("((filesystem|snapshot)_count|canmount|zxfer:canmount|zxfer:direction)\t.*\n").ReplaceAllString(all, "")
}

// TestZFSRestore restores a filesystem with its history and its properties. The result is
// writable without properties of the copy, and the next incremental send works.
func TestZFSRestore(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "atime=off", "-o", "org.example:note=with a space", src)
	for _, s := range []string{"one", "two"} {
		fill(t, src, s, 300<<10)
		zfsCmd(t, "snapshot", src+"@"+s)
		nextSecond(t)
	}
	mustZxfer(t, "send", "--carry", "org.example:note", src, "beta:"+dst)
	zfsCmd(t, "set", "filesystem_limit=9", dst) // now ZFS reports filesystem_count of the descendants as local
	want, wantLocal := guids(t, src), localSettings(t, src)
	zfsCmd(t, "unmount", src)
	zfsCmd(t, "rename", src, src+"-lost")
	t.Cleanup(func() { cleanUp(src + "-lost") })

	before := state(t)
	o := mustZxfer(t, "restore", "-n", "--mount", "beta:"+dst, src)
	for _, text := range []string{"mounts at " + mountpoint(t, alphaPool) + "/", "finally sets readonly and canmount inherited or default", "dry run: nothing was changed"} {
		require.Contains(t, o.stdout, text)
	}
	require.NotContains(t, o.stdout, "{{")
	require.Equal(t, before, state(t))

	o = mustZxfer(t, "restore", "--carry", "org.example:note", "beta:"+dst, src)
	require.Contains(t, o.stdout, "to use it, run there:\n  zxfer restore --mount "+src)
	require.Equal(t, want, guids(t, src))
	require.Equal(t, wantLocal, localSettings(t, src))
	require.Equal(t, "no", value(t, src, "mounted"))
	require.Equal(t, "noauto", value(t, src, "canmount"), "the next boot must not mount it unchecked")
	o = mustZxfer(t, "restore", "--mount", "beta:"+dst, src)
	require.Contains(t, o.stderr, "mounted "+src+" at "+mountpoint(t, src))
	require.Equal(t, "on", value(t, src, "canmount"))
	require.Equal(t, "-", value(t, src, "zxfer:canmount"))
	requireSameFiles(t, src, dst)
	fill(t, src, "three", 300<<10)
	zfsCmd(t, "snapshot", src+"@three")
	mustZxfer(t, "send", src, "beta:"+dst)
	requireSameFiles(t, src, dst)
}

// passphraseDataset creates a dataset with a passphrase and returns the file with the passphrase.
func passphraseDataset(t *testing.T, name, passphrase string) (keyFile string) {
	t.Helper()
	keyFile = filepath.Join(t.TempDir(), "passphrase")
	require.NoError(t, os.WriteFile(keyFile, []byte(passphrase), 0o600))
	zfsCmd(t, slices.Concat([]string{"create", "-o", "encryption=on"}, keyOptions("passphrase", keyFile), []string{name})...)
	return keyFile
}

// TestZFSRestoreTree restores an encrypted tree as one encryption root, which one zfs
// load-key opens, except for a child with another passphrase. The files are the same, and
// the next incremental sends work.
func TestZFSRestoreTree(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := passphraseDataset(t, src, "correct horse battery")
	zfsCmd(t, "create", src+"/a")
	zfsCmd(t, "create", src+"/a/b")
	zfsCmd(t, "create", "-V", "8m", src+"/vol")
	other := passphraseDataset(t, src+"/own", "another passphrase")
	zfsCmd(t, "create", src+"/own/below")
	filesystems := []string{"", "/a", "/a/b", "/own", "/own/below"}
	for _, below := range filesystems {
		fill(t, src+below, "f", 300<<10)
	}
	zfsCmd(t, "snapshot", "-r", src+"@one")
	mustRunLocal(t, "send", "-R", src, dst)
	renamed := src + "-lost"
	zfsCmd(t, "rename", src, renamed)
	t.Cleanup(func() { cleanUp(renamed) })

	o := mustRunLocal(t, "restore", "-R", "-n", dst, src)
	require.Contains(t, o.stdout, "inherits its key from "+src+" again")
	o = mustRunLocal(t, "restore", "-R", "--mount", dst, src)
	require.Contains(t, o.stdout, "  zfs load-key "+src+"  # the passphrase")
	require.Contains(t, o.stdout, "  zfs load-key "+src+"/own  # the passphrase")
	require.NotContains(t, o.stdout, "load-key "+src+"/a")
	require.NotContains(t, o.stdout, "change-key")
	all := properties(t, src)
	for below, root := range map[string]string{"": "", "/a": "", "/a/b": "", "/vol": "", "/own": "/own", "/own/below": "/own"} {
		require.Equal(t, src+root, all[src+below]["encryptionroot"].value, below)
		require.Equal(t, "unavailable", all[src+below]["keystatus"].value, below)
	}
	zfsCmd(t, "load-key", "-L", "file://"+key, src)
	all = properties(t, src)
	for below, status := range map[string]string{"": "available", "/a": "available", "/a/b": "available", "/vol": "available", "/own": "unavailable"} {
		require.Equal(t, status, all[src+below]["keystatus"].value, below)
	}
	zfsCmd(t, "load-key", "-L", "file://"+other, src+"/own")
	o = mustRunLocal(t, "restore", "-R", "--mount", dst, src)
	require.NotContains(t, o.stdout, "to use it")
	all = properties(t, src)
	for _, below := range filesystems {
		require.Equal(t, "yes", all[src+below]["mounted"].value, below)
		mount(t, renamed+below)
		run(t, "diff", "-r", mountpoint(t, renamed+below), mountpoint(t, src+below))
		fill(t, src+below, "g", 300<<10)
	}
	zfsCmd(t, "snapshot", "-r", src+"@two")
	mustRunLocal(t, "send", "-R", src, dst)
	require.Equal(t, guids(t, src+"/a/b"), guids(t, dst+"/a/b"))
	// Unload and load the keys, to check that the encryption root is also on disk.
	run(t, "zfs", "unmount", src)
	for _, root := range []string{src + "/own", src} {
		require.Eventually(t, func() bool { return exec.Command("zfs", "unload-key", root).Run() == nil }, testenv.Timeout(), 100*time.Millisecond)
	}
	zfsCmd(t, "load-key", "-L", "file://"+key, src)
	zfsCmd(t, "mount", src)
	zfsCmd(t, "mount", src+"/a")
	zfsCmd(t, "mount", src+"/a/b")

	// Restore a part of the tree while the tree's key is loaded.
	zfsCmd(t, "destroy", "-r", src+"/a")
	mustRunLocal(t, "restore", "-R", "--mount", dst+"/a", src+"/a")
	require.Equal(t, "available", value(t, src+"/a/b", "keystatus"))
	require.Equal(t, "yes", value(t, src+"/a/b", "mounted"))
	run(t, "cmp", mountpoint(t, renamed+"/a/b")+"/f", mountpoint(t, src+"/a/b")+"/f")
}

// TestZFSRestoreTreeRawKey restores a tree with a raw key as one encryption root, and
// expects the printed commands to open all of it. If the copy has two encryption roots, the
// printed commands also join them.
func TestZFSRestoreTreeRawKey(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	zfsCmd(t, "create", src+"/a")
	zfsCmd(t, "create", src+"/a/b")
	for _, below := range []string{"/a", "/a/b"} {
		fill(t, src+below, "f", 300<<10)
	}
	zfsCmd(t, "snapshot", "-r", src+"@one")
	mustRunLocal(t, "send", "-R", src, dst)
	for _, joined := range []bool{true, false} {
		if !joined {
			run(t, "python3", "-c", "import libzfs_core as l; l.lzc_change_key(b'"+dst+"/a/b', 'force_new_key')")
		}
		back := src + "-back"
		t.Cleanup(func() { cleanUp(back) })
		o := mustRunLocal(t, "restore", "-R", "-n", dst, back)
		require.Contains(t, o.stdout, "inherits its key from "+back+" again")
		o = mustRunLocal(t, "restore", "-R", "--mount", dst, back)
		_, script, found := strings.Cut(o.stdout, "to use it, run there:\n")
		require.True(t, found, o)
		require.Equal(t, !joined, strings.Contains(script, "zfs change-key -i "+back+"/a/b"), o)
		require.NotContains(t, script, "zfs change-key -i "+back+"/a ")
		require.Equal(t, back, value(t, back+"/a", "encryptionroot"))
		run(t, "sh", "-ec", strings.NewReplacer("file:///PATH", "file://"+key, "zxfer restore", alphaBin+" restore").Replace(script))
		for _, below := range []string{"/a", "/a/b"} {
			require.Equal(t, back, value(t, back+below, "encryptionroot"))
			run(t, "diff", "-r", mountpoint(t, src+below), mountpoint(t, back+below))
		}
		require.NoError(t, destroyAll(back))
	}
}

// TestZFSRestoreAt restores the most recent snapshot at a given time, and prints its name.
// A time before the oldest snapshot is refused.
func TestZFSRestoreAt(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	var between time.Time
	for _, s := range []string{"one", "two", "three"} {
		zfsCmd(t, "snapshot", src+"@"+s)
		if nextSecond(t); s == "two" {
			between = time.Now()
			nextSecond(t)
		}
	}
	mustRunLocal(t, "send", src, dst)
	before := state(t)
	o := runLocal(t, "restore", "--at", "yesterday 18:00", dst, src+"-back")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "the oldest is "+dst+"@one, of ")
	require.Equal(t, before, state(t))
	o = mustZxfer(t, "restore", "--at", "@"+strconv.FormatInt(between.Unix(), 10), "beta:"+dst, src+"-back")
	require.Contains(t, o.stderr, "the most recent is "+dst+"@two, of ")
	require.Contains(t, o.stderr, "the next one is "+dst+"@three")
	require.Len(t, guids(t, src+"-back"), 2)
	mustRunLocal(t, "restore", "--latest-only", dst+"@two", src+"-one")
	require.Len(t, guids(t, src+"-one"), 1)
	cleanUp(src + "-back")
	cleanUp(src + "-one")
}

// TestZFSRestoreOverExisting restores over an existing dataset, also a mounted one that programs read. It
// destroys newer data only with --rollback, and -n lists this data.
func TestZFSRestoreOverExisting(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/below")
	for _, s := range []string{"one", "two"} {
		fill(t, src, s, 300<<10)
		zfsCmd(t, "snapshot", src+"@"+s)
	}
	mustRunLocal(t, "send", src, dst)
	zfsCmd(t, "destroy", src+"@two")
	fill(t, src, "newer", 300<<10)
	zfsCmd(t, "snapshot", src+"@newer")
	fill(t, src, "written", 300<<10)
	before := state(t)
	o := runLocal(t, "restore", dst, src)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "@newer")
	require.Contains(t, o.stderr, "--rollback")
	o = mustRunLocal(t, "restore", "-n", "--rollback", dst, src)
	for _, text := range []string{"LOSES " + src + "@newer", "bytes written", "first unmounts " + src + ", " + src + "/below"} {
		require.Contains(t, o.stdout, text)
	}
	require.Equal(t, before, state(t))
	o = mustRunLocal(t, "restore", "--rollback", "--mount", dst, src)
	require.Equal(t, guids(t, dst), guids(t, src))
	require.Equal(t, "yes", value(t, src, "mounted"))
	require.Equal(t, "yes", value(t, src+"/below", "mounted"))
	require.Equal(t, "default", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "source", "readonly", src)))
	requireSameFiles(t, src, dst)

	// Only access times are newer. Every read changes them.
	mount(t, src)
	zfsCmd(t, "snapshot", src+"@three")
	mustRunLocal(t, "send", src, dst)
	zfsCmd(t, "destroy", src+"@three")
	o = runLocal(t, "restore", dst, src)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "to discard the changes to "+src+", add --rollback")
	run(t, "cat", mountpoint(t, src)+"/one", mountpoint(t, src)+"/two")
	mustRunLocal(t, "restore", "--rollback", dst, src)
	require.Equal(t, "yes", value(t, src, "mounted"), "it was mounted before")
	requireSameFiles(t, src, dst)

	// The dataset has the most recent snapshot of the copy, and newer data.
	mount(t, src)
	fill(t, src, "since", 300<<10)
	o = runLocal(t, "restore", dst, src)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "to roll "+src+" back to @three, add --rollback")
	mustRunLocal(t, "restore", "--rollback", dst, src)
	requireSameFiles(t, src, dst)

	// A dataset with another history is kept.
	zfsCmd(t, "destroy", "-r", src)
	zfsCmd(t, "create", src)
	zfsCmd(t, "snapshot", src+"@one")
	o = runLocal(t, "restore", "--rollback", dst, src)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "zfs rename "+src+" "+src+"-old")
}

// TestZFSSendRollbackWhileRead sends with --rollback to a copy that is mounted and read all
// the time. Each new access time is a change.
func TestZFSSendRollbackWhileRead(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 300<<10)
	zfsCmd(t, "snapshot", src+"@s0")
	mustRunLocal(t, "send", src, dst)
	zfsCmd(t, "set", "readonly=off", "relatime=off", "mountpoint="+t.TempDir(), dst)
	zfsCmd(t, "mount", dst)
	t.Cleanup(func() { run(t, "zfs", "unmount", "-f", dst) })
	reads := exec.Command("sh", "-c", "while :; do cat '"+mountpoint(t, dst)+"/f'; sleep 0.05; done >/dev/null 2>&1")
	require.NoError(t, reads.Start())
	t.Cleanup(func() { _ = reads.Process.Kill(); _ = reads.Wait() })
	for i := range 4 {
		fill(t, src, fmt.Sprintf("f%d", i), 300<<10)
		zfsCmd(t, "snapshot", fmt.Sprintf("%s@s%d", src, i+1))
		mustRunLocal(t, "send", "--rollback", src, dst)
		run(t, "zpool", "sync")
	}
	require.Equal(t, guids(t, src), guids(t, dst))
}

// TestZFSRestoreResumes interrupts a restore, lets it run out of space, and reverts its last
// stage. The same command completes it.
func TestZFSRestoreResumes(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "one", 8<<20)
	zfsCmd(t, "snapshot", src+"@one")
	mustRunLocal(t, "send", src, dst)
	parent := src + "-back"
	zfsCmd(t, "create", parent)
	t.Cleanup(func() { cleanUp(parent) })
	back := parent + "/a"
	p := start(t, "restore", "--bwlimit", "1MiB", "beta:"+dst, back)
	waitReceived(t, p, alphaPool, isZFS("receive"), 1<<20)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	o := p.wait(t)
	require.Equal(t, 4, o.code, o)
	require.Equal(t, "on", value(t, back, "readonly"))
	require.Equal(t, "no", value(t, back, "mounted"))
	zfsCmd(t, "set", "quota=4m", parent)
	o = runLocal(t, "restore", dst, back)
	require.NotEqual(t, 0, o.code, o)
	zfsCmd(t, "set", "quota=none", parent)
	o = mustRunLocal(t, "restore", "--mount", dst, back)
	require.Equal(t, "off", value(t, back, "readonly"))
	require.Equal(t, "devices\toff\nsetuid\toff\n", localSettings(t, back))
	run(t, "diff", "-r", mountpoint(t, src), mountpoint(t, back))

	// An interruption before the last stage leaves this state.
	zfsCmd(t, "unmount", back)
	zfsCmd(t, "set", "readonly=on", "canmount=noauto", "zxfer:restore=on", "zxfer:stream=Lc", back)
	mustRunLocal(t, "restore", "--mount", dst, back)
	require.Equal(t, "yes", value(t, back, "mounted"))
	require.Equal(t, "devices\toff\nsetuid\toff\n", localSettings(t, back))
	// A mount would hide the file.
	zfsCmd(t, "unmount", back)
	require.NoError(t, os.WriteFile(mountpoint(t, back)+"/hidden", nil, 0o600))
	o = runLocal(t, "restore", "--mount", dst, back)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "is not empty (hidden)")
}

// TestRestrictedRestore restores with a key that may only restore, and expects other
// requests to be refused. A key that may only receive must not restore.
func TestRestrictedRestore(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "atime=off", src)
	fill(t, src, "f", 1<<20)
	zfsCmd(t, "snapshot", src+"@a")
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	zfsCmd(t, "create", dst+"/mine")
	restoreKey, _ := restrictedKey(t, "--allow", "restore="+dst, "--append-only")
	receiveKey, _ := restrictedKey(t, "--allow", "receive="+dst, "--append-only")
	o := zxfer(t, "restore", "-e", receiveKey, src, "beta:"+dst+"/b")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "policy forbids")
	o = mustZxfer(t, "restore", "-e", restoreKey, "--mount", src, "beta:"+dst+"/a")
	require.Contains(t, o.stderr, "mounted "+dst+"/a")
	require.Equal(t, "atime\toff\ndevices\toff\nsetuid\toff\n", localSettings(t, dst+"/a"), "the key cannot mount otherwise")
	for _, q := range [][]byte{
		request("set-properties", `{"dataset":"`+dst+`/a","set":{"mountpoint":"/etc"}}`), request("mount", `"`+dst+`/mine"`),
		request("set-properties", `{"dataset":"`+dst+`/a","revert":["setuid"]}`), request("in-use", `["/root"]`),
	} {
		answer, all := sendHostile(t, restoreKey, q)
		require.Contains(t, all, "policy forbids", "%s: %v", q, answer)
	}
}

// newHomeJob returns a job file that replicates a dataset to a target.
func newHomeJob(t *testing.T, src, to string) *replication {
	t.Helper()
	return newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
[[job.target]]
name = "near"
to = %q
`, src, to))
}

// TestZFSRestoreJob destroys the source of a job, and expects the job to print the command
// that restores it. After the restore, the job continues with an incremental send.
func TestZFSRestoreJob(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 300<<10)
	r := newHomeJob(t, src, "beta:"+dst)
	at := time.Now().UTC().Truncate(time.Second)
	r.mustRunAt(t, at, "run", "home")
	require.NoError(t, destroyAll(src))
	o := r.runAt(t, at.Add(time.Hour), "run", "home")
	require.NotEqual(t, 0, o.code, o)
	hint := "zxfer restore beta:" + dst + " " + src
	require.Contains(t, o.stderr, "to restore it: "+hint)
	o = r.runAt(t, at.Add(time.Hour), "status")
	require.Contains(t, o.stdout+o.stderr, hint)
	mustZxfer(t, "restore", "beta:"+dst, src)
	mount(t, src)
	fill(t, src, "g", 300<<10)
	o = r.mustRunAt(t, at.Add(2*time.Hour), "run", "home")
	require.NotContains(t, o.stdout+o.stderr, "full")
	require.Equal(t, guids(t, src), guids(t, dst))
	requireSameFiles(t, src, dst)
}
