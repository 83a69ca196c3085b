package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/files"
	"zxfer/pkg/testenv"
)

// requireSameTree requires two directories to have the same files, including owners, times
// and attributes.
func requireSameTree(t *testing.T, want, got string) {
	t.Helper()
	list := func(dir string) (all []files.File) {
		root, err := os.Open(dir)
		require.NoError(t, err)
		defer root.Close()
		for part := 1; part <= files.Parts; part++ {
			d, err := files.Read(t.Context(), root, files.Query{Snapshot: "a@settled", Sample: 1, Within: part}, nil)
			require.NoError(t, err)
			require.Empty(t, d.Problems)
			for _, f := range d.Listed {
				if f.Path != "." {
					all = append(all, f)
				}
			}
		}
		return all
	}
	require.Equal(t, list(want), list(got))
}

// createFiles creates files of all kinds in a dataset on alpha and returns its mountpoint.
func createFiles(t *testing.T, ds string) (dir string) {
	t.Helper()
	dir = mountpoint(t, ds)
	run(t, "mkdir", "-p", dir+"/alice/docs/deep", dir+"/empty")
	fill(t, ds, "alice/docs/big", 5<<20)
	fill(t, ds, "alice/docs/deep/small", 17)
	fill(t, ds, "other", 1<<10)
	require.NoError(t, os.Link(dir+"/alice/docs/big", dir+"/alice/docs/deep/linked"))
	require.NoError(t, os.Symlink("/etc/passwd", dir+"/alice/docs/link"))
	require.NoError(t, os.Chown(dir+"/alice/docs/big", 1234, 4321))
	require.NoError(t, os.Chown(dir+"/alice/docs", 1234, 4321))
	require.NoError(t, os.Chmod(dir+"/alice/docs", 0o2750))
	// On older kernels tmpfs, into which tests restore, does not support user attributes.
	if unix.Setxattr(t.TempDir(), "user.note", []byte("kept"), 0) == nil {
		require.NoError(t, unix.Setxattr(dir+"/alice/docs/big", "user.note", []byte("kept"), 0))
	}
	run(t, "touch", "-h", "-d", "2001-02-03 04:05:06.789", dir+"/alice/docs/link", dir+"/alice/docs/deep/small", dir+"/alice/docs")
	return dir
}

// TestZFSRestoreFiles restores files over transports that differ in the path of the data: tls with
// several streams, and ssh. The long level adds signed and plain.
func TestZFSRestoreFiles(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "atime=off", src)
	dir := createFiles(t, src)
	zfsCmd(t, "snapshot", src+"@one")
	mustRunLocal(t, "send", src, dst)
	listed := func() string { // reading makes a clone for a moment, so that used may change
		return zfsCmd(t, "list", "-H", "-t", "all", "-o", "name,guid,userrefs,mounted,readonly,canmount", "-r", alphaPool, betaPool)
	}
	before := listed()
	wires := [][]string{{"--wire", "tls", "--streams", "3"}, {"--wire", "ssh"}}
	if testenv.Long() {
		wires = append(wires, []string{"--wire", "signed"}, []string{"--wire", "plain", "--trusted-link"})
	}
	for i, wire := range wires {
		to := filepath.Join(t.TempDir(), "new")
		args := append([]string{"restore", "--files", "/", "beta:" + dst, to}, wire...)
		if i == 0 {
			o := mustZxfer(t, append([]string{"restore", "-n"}, args[1:]...)...)
			require.Contains(t, o.stdout, "alice/docs/big")
			require.NoDirExists(t, to)
		}
		mustZxfer(t, args...)
		requireSameTree(t, dir, to)
		if i == 0 {
			o := mustZxfer(t, args...)
			require.Contains(t, o.stdout, "up to date")
		}
	}
	require.Equal(t, before, listed())

	to := t.TempDir()
	mustZxfer(t, "restore", "--files", "alice/docs/", "--files", "other", "beta:"+dst+"@one", to)
	requireSameTree(t, dir+"/alice/docs", to+"/docs")
	require.FileExists(t, to+"/other")
	mustZxfer(t, "restore", "--files", "alice", src, "beta:"+to+"/there") // in the other direction, and of a dataset that is not a copy
	requireSameTree(t, dir+"/alice", to+"/there/alice")
	mustZxfer(t, "restore", "--files", "alice", dst, to+"/local") // both pools belong to one kernel

	require.NoError(t, os.WriteFile(to+"/other", []byte("mine"), 0o600))
	o := runLocal(t, "restore", "--files", "other", dst, to)
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "1 different file exists: other")
	require.Contains(t, o.stderr, "--overwrite")
	mustRunLocal(t, "restore", "--overwrite", "--files", "other", dst, to)
	for _, name := range []string{"nope", "alice/docs/link/x"} {
		o = runLocal(t, "restore", "--files", name, dst, to)
		require.Equal(t, 3, o.code, o.String())
	}
	requireNoLeftovers(t)
	zfsCmd(t, "destroy", dst+"@one") // no hold is left
}

// TestZFSRestoreFilesEncrypted reads files with a key file, which it needs if the
// key is not loaded. If the reader is killed, nothing remains mounted, and its agent
// unloads the key.
func TestZFSRestoreFilesEncrypted(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	dir := createFiles(t, src)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	to := t.TempDir()
	o := zxfer(t, "restore", "--files", "/", "beta:"+dst, to)
	require.NotEqual(t, 0, o.code)
	require.Contains(t, o.stderr, "the key of "+dst+" is not loaded")
	require.Contains(t, o.stderr, "zfs load-key "+dst)
	mustZxfer(t, "restore", "--key-file", key, "--files", "/", "beta:"+dst, to)
	requireSameTree(t, dir, to)
	require.Equal(t, "unavailable", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keystatus", dst)))

	fill(t, src, "alice/docs/slow", 20<<20)
	zfsCmd(t, "snapshot", src+"@two")
	mustZxfer(t, "send", src, "beta:"+dst)
	interrupted := filepath.Join(t.TempDir(), "cut")
	args := []string{"restore", "--key-file", key, "--files", "alice", "beta:" + dst, interrupted}
	p := start(t, append(args, "--bwlimit", "4MiB")...)
	require.Eventually(t, func() bool { _, err := os.Stat(interrupted + "/alice/docs/link"); return err == nil }, testenv.Timeout(), 50*time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	p.wait(t)
	require.NoFileExists(t, interrupted+"/alice/docs/slow")
	require.Eventually(t, func() bool {
		return strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keystatus", dst)) == "unavailable"
	}, testenv.Timeout(), time.Second)
	o = mustZxfer(t, args...)
	require.Contains(t, o.stdout, " skipped (")
	requireSameTree(t, dir+"/alice", interrupted+"/alice")
	left, err := filepath.Glob(interrupted + "/alice/docs/.zxfer-*")
	require.NoError(t, err)
	require.Empty(t, left)
	requireNoLeftovers(t)
}

// TestRestrictedKeyReadsGrantedFiles reads files of an unencrypted dataset with a
// key that may send it. The key may not write files to its host, nor use a key file there.
func TestRestrictedKeyReadsGrantedFiles(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	dir := createFiles(t, src)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	rsh, _ := restrictedKey(t, "--allow", "send="+dst)
	to := t.TempDir()
	mustZxfer(t, "restore", "-e", rsh, "--files", "/", "beta:"+dst, to)
	requireSameTree(t, dir, to)
	o := zxfer(t, "restore", "-e", rsh, "--files", "/", src, "beta:"+to+"/evil")
	require.NotEqual(t, 0, o.code)
	require.NoDirExists(t, to+"/evil")
	o = zxfer(t, "restore", "-e", rsh, "--key-file", "/etc/shadow", "--files", "/", "beta:"+dst, to)
	require.NotEqual(t, 0, o.code)
	t.Log(o)
}

// TestZFSRestoreFilesDamagedCopy expects a restore to name the damaged files and to
// restore all others.
func TestZFSRestoreFilesDamagedCopy(t *testing.T) {
	lab(t)
	dir := t.TempDir()
	disk, pool := dir+"/disk", "zxdamaged"
	run(t, "truncate", "-s", "128M", disk)
	run(t, "zpool", "create", "-O", "mountpoint="+dir+"/mnt", "-O", "compression=off", pool, disk)
	t.Cleanup(func() { _ = exec.Command("zpool", "destroy", "-f", pool).Run() })
	marked := bytes.Repeat([]byte("what is to be damaged, and nothing else is like it....."), 6000)
	require.NoError(t, os.WriteFile(dir+"/mnt/bad", marked, 0o600))
	require.NoError(t, os.Link(dir+"/mnt/bad", dir+"/mnt/worse"))
	require.NoError(t, os.WriteFile(dir+"/mnt/good", []byte("good"), 0o600))
	require.NoError(t, os.WriteFile(dir+"/mnt/zgood", []byte("good, too"), 0o600))
	run(t, "zfs", "snapshot", pool+"@x")
	run(t, "zpool", "export", pool)
	raw, err := os.ReadFile(disk)
	require.NoError(t, err)
	at := bytes.Index(raw, marked[:4096])
	require.Positive(t, at)
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("junk"), 1000), int64(at))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	run(t, "zpool", "import", "-d", disk, pool)

	to := dir + "/back"
	for range 2 { // the second run retries the damaged files
		o := zxfer(t, "restore", "--files", "/", pool, to)
		t.Log(o)
		require.Equal(t, 1, o.code, o.String())
		require.Contains(t, o.stderr, "bad: damaged: input/output error")
		require.Contains(t, o.stderr, "2 files were not restored correctly")
		in, err := os.ReadDir(to)
		require.NoError(t, err)
		require.Len(t, in, 2)
		text, err := os.ReadFile(to + "/zgood")
		require.NoError(t, err)
		require.Equal(t, "good, too", string(text))
	}
}

// TestZFSRestoreFilesWithACLs restores a file with an ACL. If the target dataset does not
// support ACLs, the restore reports that the ACL was lost.
func TestZFSRestoreFilesWithACLs(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "acltype=posix", src)
	dir := createFiles(t, src)
	// user::rw- user:1234:r-- group::r-- mask::r-- other::---
	acl := []byte("\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xd2\x04\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff")
	const name = "system.posix_acl_access"
	require.NoError(t, unix.Setxattr(dir+"/other", name, acl, 0))
	zfsCmd(t, "snapshot", src+"@one")
	mustRunLocal(t, "send", src, dst)
	zfsCmd(t, "set", "acltype=posix", dst)
	zfsCmd(t, "create", "-o", "acltype=posix", src+"/back")
	mustRunLocal(t, "restore", "--files", "other", dst, mountpoint(t, src+"/back"))
	got := make([]byte, 100)
	n, err := unix.Getxattr(mountpoint(t, src+"/back")+"/other", name, got)
	require.NoError(t, err)
	require.Equal(t, acl, got[:n])
	// Without ACLs on the target, the restore writes the file and reports the loss.
	zfsCmd(t, "set", "acltype=off", src+"/back")
	o := runLocal(t, "restore", "--files", "other", dst, mountpoint(t, src+"/back")+"/more")
	require.Equal(t, 1, o.code, o.String())
	require.Contains(t, o.stderr, "other: its "+name+" could not be kept: operation not supported")
}
