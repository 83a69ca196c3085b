package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// newSmallPool creates a pool of some MiB, which is destroyed afterwards.
func newSmallPool(t *testing.T, name string, mebibytes int) {
	t.Helper()
	file := filepath.Join(labDir, "disk", name)
	run(t, "truncate", "-s", fmt.Sprintf("%dM", mebibytes), file)
	run(t, "zpool", "create", "-O", "mountpoint="+poolDir(name), name, file)
	t.Cleanup(func() {
		_ = exec.Command("zpool", "destroy", "-f", name).Run()
		_ = os.Remove(file)
	})
}

// TestZFSRestoreIntoFullPool restores into a pool that becomes full. Restored snapshots and other
// datasets keep their data, and the same command completes the restore when there is room.
func TestZFSRestoreIntoFullPool(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "one", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	fill(t, src, "two", 20<<20)
	zfsCmd(t, "snapshot", src+"@two")
	mustRunLocal(t, "send", src, dst)
	newSmallPool(t, "tight", 128)
	zfsCmd(t, "create", "tight/other")
	fill(t, "tight/other", "f", 1<<20)
	ballast := mountpoint(t, "tight/other") + "/f"
	kept := run(t, "sha256sum", ballast)
	args := []string{"restore", "beta:" + dst, "tight/back"}
	p := start(t, append(args, "--bwlimit", "1MiB")...)
	waitReceived(t, p, alphaPool, isZFS("receive"), 2<<20) // while @two arrives
	receives := pidsOn(t, alphaPool, isZFS("receive"))
	signal := func(s syscall.Signal) {
		for _, pid := range receives {
			_ = syscall.Kill(pid, s)
		}
	}
	signal(syscall.SIGSTOP) // it cannot complete before the pool is full
	// If data arrives between the two commands, the second one fails and both are repeated.
	require.Eventually(t, func() bool {
		available, err := strconv.ParseInt(value(t, "tight", "available"), 10, 64)
		return err == nil && exec.Command("zfs", "set", fmt.Sprintf("reservation=%d", available), "tight/other").Run() == nil
	}, testenv.Timeout(), 10*time.Millisecond)
	signal(syscall.SIGCONT)
	o := p.wait(t)
	t.Log(o)
	require.Contains(t, []int{1, 4}, o.code, o)
	require.Contains(t, o.stderr, "out of space\nhint: free space, then run the same command again")
	want := guids(t, "tight/back")
	require.Len(t, want, 1)
	o = zxfer(t, args...)
	t.Log(o)
	require.Contains(t, []int{1, 3, 4}, o.code, o)
	require.Contains(t, o.stderr, "space")
	require.Equal(t, kept, run(t, "sha256sum", ballast))
	require.Equal(t, want, guids(t, "tight/back"))
	require.Equal(t, "on", value(t, "tight/back", "readonly"))
	zfsCmd(t, "set", "reservation=none", "tight/other")
	mustZxfer(t, args...)
	require.Equal(t, guids(t, src), guids(t, "tight/back"))
	require.Empty(t, localSettings(t, "tight/back"))
	requireSameFiles(t, src, "tight/back")
}

// TestZFSRestoreKilledInLastStage kills a restore before or after an operation of its last
// stage, and expects the same command to complete it with the same result. It does so at
// each operation at the long level, otherwise at every fifth.
func TestZFSRestoreKilledInLastStage(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	key := passphraseDataset(t, src+"/sealed", "correct horse battery")
	zfsCmd(t, "create", "-o", "atime=off", "-o", "org.example:note=x", src+"/sealed/a")
	zfsCmd(t, "snapshot", "-r", src+"@one")
	mustRunLocal(t, "send", "-R", "--carry", "org.example:note", src, dst)
	below := []string{"", "/sealed", "/sealed/a"}
	want := map[string]map[string]string{}
	for b, all := range properties(t, src) {
		want[b] = localProperties(all)
	}
	require.Len(t, want, len(below))
	want[src]["setuid"], want[src]["devices"] = "off", "off"
	zfsCmd(t, "rename", src, src+"-lost")
	t.Cleanup(func() { cleanUp(src + "-lost") })

	dir := t.TempDir()
	zfs := strings.TrimSpace(run(t, "sh", "-c", "command -v zfs"))
	require.NoError(t, os.WriteFile(dir+"/zfs", fmt.Appendf(nil, `#!/bin/sh
case $1 in set|inherit|mount|change-key) ;; *) exec %[1]s "$@" ;; esac
echo "$*" >>%[2]s/calls
n=$(wc -l <%[2]s/calls) at=$(cat %[2]s/at)
[ $n$1 != $((at))$1 ] || [ $((n %% 2)) = 0 ] || { kill -9 $PPID; exit 1; }
%[1]s "$@"; code=$?
[ $n != $at ] || kill -9 $PPID
exit $code
`, zfs, dir), 0o755))
	restore := func(at int) (o cmdResult, calls string) {
		require.NoError(t, os.WriteFile(dir+"/at", fmt.Append(nil, at), 0o600))
		require.NoError(t, os.RemoveAll(dir+"/calls"))
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(alphaBin, "restore", "-R", "--mount", "--carry", "org.example:note", dst, src)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // the caller checks its exit code
		return cmdResult{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, fileText(dir + "/calls")
	}
	for at := 1; ; at += testenv.Rounds(5, 5, 1) {
		o, calls := restore(at)
		killed := o.code == -1
		if killed {
			t.Logf("killed at %q", slices.Collect(strings.Lines(calls))[at-1])
			o, _ = restore(0)
		}
		require.Equal(t, 0, o.code, "killed at %d: %s", at, o)
		now := properties(t, src)
		for _, b := range below {
			all := now[src+b]
			require.Equal(t, want[src+b], localProperties(all), "%s, killed at %d", b, at)
			require.Equal(t, "off", all["readonly"].value, "%s, killed at %d", b, at)
			require.NotContains(t, all, "zxfer:restore", "%s, killed at %d", b, at)
			require.NotContains(t, all, "zxfer:stream", "%s, killed at %d", b, at)
			require.Equal(t, all["mounted"].value == "yes", all["canmount"].value == "on", "%s, killed at %d", b, at)
		}
		require.Equal(t, src+"/sealed", now[src+"/sealed/a"]["encryptionroot"].value, "killed at %d", at)
		require.Equal(t, "yes", now[src]["mounted"].value, "killed at %d", at)
		if !killed {
			require.Greater(t, at, 6, calls)
			break
		}
		require.NoError(t, destroyAll(src))
		require.Less(t, at, 40)
	}
	zfsCmd(t, "load-key", "-L", "file://"+key, src+"/sealed")
	o, _ := restore(0)
	require.Equal(t, 0, o.code, o)
	require.Equal(t, "yes", value(t, src+"/sealed/a", "mounted"))
}

// localProperties returns the local properties that a restore sets again. A key's location belongs
// to the host. If a limit was set in a pool, ZFS reports counts as local.
func localProperties(all map[string]property) map[string]string {
	set := map[string]string{}
	for name, p := range all {
		switch name {
		case "keylocation", "canmount", zfs.CanMountProperty, zfs.DirectionProperty, "filesystem_count", "snapshot_count":
			continue
		}
		if p.source == "local" {
			set[name] = p.value
		}
	}
	return set
}

// TestZFSRestoreParallel restores several datasets of a tree in parallel, also after a
// kill.
func TestZFSRestoreParallel(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	below := []string{"", "/a", "/a/b", "/c", "/d", "/e"}
	for _, b := range below {
		zfsCmd(t, "create", src+b)
		fill(t, src+b, "f", 2<<20)
	}
	zfsCmd(t, "snapshot", "-r", src+"@one")
	mustRunLocal(t, "send", "-R", src, dst)
	zfsCmd(t, "rename", src, src+"-lost")
	t.Cleanup(func() { cleanUp(src + "-lost") })
	args := []string{"restore", "-R", "--parallel", "3", "beta:" + dst, src}
	p := start(t, append(args, "--bwlimit", "2MiB")...)
	require.Eventually(t, func() bool { return exec.Command("zfs", "list", src+"/a").Run() == nil }, testenv.Timeout(), 500*time.Millisecond, "%s", p.stderr)
	require.NoError(t, p.cmd.Process.Kill())
	<-p.done
	requireNoLeftovers(t)
	mustZxfer(t, args...)
	all := properties(t, src)
	for _, b := range below {
		require.Equal(t, guids(t, src+"-lost"+b), guids(t, src+b))
		require.Empty(t, localProperties(all[src+b]))
		zfsCmd(t, "mount", src+b)
		run(t, "cmp", mountpoint(t, src+"-lost"+b)+"/f", mountpoint(t, src+b)+"/f")
	}
}

// partition adds a first partition to a device, or deletes it.
func partition(t *testing.T, device string, op int32) {
	t.Helper()
	f, err := os.Open(device)
	require.NoError(t, err)
	defer f.Close()
	p := struct { // blkpg_partition of linux/blkpg.h
		start, length int64
		number        int32
		names         [2][64]byte
	}{1 << 20, 2 << 20, 1, [2][64]byte{}}
	arg := unix.BlkpgIoctlArg{Op: op, Datalen: int32(unsafe.Sizeof(p)), Data: (*byte)(unsafe.Pointer(&p))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg)))
	require.Zero(t, errno)
}

// TestZFSRestoreOverVolumeInUse restores over a volume while a process has it or a
// partition of it open. The restore refuses, changes nothing and names the process.
func TestZFSRestoreOverVolumeInUse(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	devices := func() []string {
		all, err := filepath.Glob("/dev/zd*")
		require.NoError(t, err)
		return all
	}
	src += " vm"
	before := devices()
	zfsCmd(t, "create", "-V", "8m", src)
	t.Cleanup(func() { cleanUp(src) })
	device := ""
	require.Eventually(t, func() bool {
		for _, d := range devices() {
			if !slices.Contains(before, d) {
				device = d
			}
		}
		return device != ""
	}, testenv.Timeout(), 50*time.Millisecond)
	link := zfs.DeviceOf(src) // the guest has no udev
	require.Equal(t, "/dev/zvol/"+run(t, "/usr/lib/udev/zvol_id", device), link+"\n")
	require.NoError(t, os.MkdirAll(filepath.Dir(link), 0o755))
	if err := os.Symlink(device, link); err != nil {
		require.ErrorIs(t, err, os.ErrExist)
	}
	t.Cleanup(func() { _ = os.Remove(link) })
	for _, s := range []string{"one", "two"} {
		run(t, "dd", "if=/dev/urandom", "of="+device, "bs=64k", "count=8", "conv=fsync")
		zfsCmd(t, "snapshot", src+"@"+s)
	}
	mustRunLocal(t, "send", src, dst)
	zfsCmd(t, "destroy", src+"@two")
	state := guids(t, src)
	partition(t, device, unix.BLKPG_ADD_PARTITION)
	// Open the device also through another node, and then without a link to it.
	other := "/dev/zxfer-test-node" // devices in /tmp cannot be opened
	t.Cleanup(func() { _ = os.Remove(other) })
	var st unix.Stat_t
	require.NoError(t, unix.Stat(device, &st))
	require.NoError(t, unix.Mknod(other, unix.S_IFBLK|0o600, int(st.Rdev)))
	for i, path := range []string{device, device + "p1", other, device, device + "p1", other} {
		if i == 3 {
			require.NoError(t, os.Remove(link))
		}
		held, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer held.Close()
		require.Equal(t, 3, runLocal(t, "restore", dst, src).code)
		o := runLocal(t, "restore", "--rollback", dst, src)
		require.Equal(t, 3, o.code, o)
		require.Contains(t, o.stderr, link+" is in use by ")
		require.Contains(t, o.stderr, fmt.Sprintf("(process %d)", os.Getpid()))
		require.Equal(t, state, guids(t, src))
		require.NoError(t, held.Close())
	}
	partition(t, device, unix.BLKPG_DEL_PARTITION)
	mustRunLocal(t, "restore", "--rollback", dst, src)
	require.Equal(t, guids(t, dst), guids(t, src))
}

// TestZFSRestoreDuringJobRun runs the job of a dataset during its restore. The job does not change it,
// reports why, and continues with incremental sends after the restore.
func TestZFSRestoreDuringJobRun(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 2<<20)
	zfsCmd(t, "snapshot", src+"@mine")
	fill(t, src, "g", 8<<20)
	r := newHomeJob(t, src, dst)
	at := time.Now().UTC().Truncate(time.Second)
	mustRunLocal(t, "send", src+"@mine", dst)
	r.mustRunAt(t, at, "run", "home")
	want := guids(t, dst)
	require.NoError(t, destroyAll(src))
	p := start(t, "restore", "--bwlimit", "1MiB", "beta:"+dst, src)
	require.Eventually(t, func() bool { return exec.Command("zfs", "list", src).Run() == nil }, testenv.Timeout(), 250*time.Millisecond, "%s", p.stderr)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	o := r.runAt(t, at.Add(time.Hour), "run", "home") // the first stream is arriving
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	t.Log(o)
	require.NotEqual(t, 0, o.code, o)
	require.Contains(t, o.stderr, "zxfer restore is receiving local:"+src)
	require.NotContains(t, o.stderr, "run the same command again")
	require.Eventually(t, func() bool { return exec.Command("zfs", "list", src+"@mine").Run() == nil }, testenv.Timeout(), 250*time.Millisecond, "%s", p.stderr)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP)) // it must not end before the run
	o = r.runAt(t, at.Add(2*time.Hour), "run", "home")        // between two streams
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	t.Log(o)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, src+" is running")
	o = p.wait(t)
	require.Equal(t, 0, o.code, o)
	require.Equal(t, want, guids(t, src))
	require.Equal(t, want, guids(t, dst))
	o = r.mustRunAt(t, at.Add(3*time.Hour), "run", "home")
	require.NotContains(t, o.stdout+o.stderr, "full")
	require.Equal(t, guids(t, src), guids(t, dst))
	require.Greater(t, len(guids(t, src)), len(want))
}

// TestZFSRestoreUnavailablePool restores into a pool that is not imported, and into a
// suspended one. The error names the cause, and nothing hangs.
func TestZFSRestoreUnavailablePool(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 300<<10)
	zfsCmd(t, "snapshot", src+"@one")
	mustRunLocal(t, "send", src, dst)
	disk := newLabDisk(t, "sick", 256<<20)
	disk.createPool("sick")
	run(t, "zpool", "export", "sick")
	before := state(t)
	args := []string{"restore", dst, "sick/back"}
	o := zxfer(t, args...)
	t.Log(o)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "zpool import")
	require.Equal(t, before, state(t))
	run(t, "zpool", "import", "-d", "/dev/mapper", "sick")

	disk.setTable(disk.errorTable())
	writes := exec.Command("sh", "-c", "echo x >"+poolDir("sick")+"/x; sync")
	require.NoError(t, writes.Start())
	go func() { _ = writes.Wait() }()
	require.Eventually(t, func() bool {
		return strings.Contains(fileText("/proc/spl/kstat/zfs/sick/state"), "SUSPENDED") // zpool list may hang
	}, testenv.Timeout(), 200*time.Millisecond)
	o = start(t, args...).wait(t)
	t.Log(o)
	require.Contains(t, []int{1, 3}, o.code, o)
	require.Contains(t, strings.ToLower(o.stderr), "suspended")
	disk.setTable(disk.healthyTable())
	run(t, "zpool", "clear", "sick")
	mustZxfer(t, args...)
	requireSameFiles(t, src, "sick/back")
}

// TestZFSRestoreFilesShareKey reads files in two processes with one key. The first process to end or
// to be killed leaves the key loaded for the other, which unloads it.
func TestZFSRestoreFilesShareKey(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	fill(t, src, "f", 24<<20)
	zfsCmd(t, "snapshot", src+"@one")
	mustRunLocal(t, "send", src, dst)
	// startReading starts a restore and stops it with a signal as soon as it reads.
	startReading := func() *process {
		to := t.TempDir()
		p := start(t, "restore", "--key-file", key, "--bwlimit", "3MiB", "--buffer", "2MiB", "--files", "f", dst, to)
		require.Eventually(t, func() bool {
			entries, err := os.ReadDir(to)
			return err == nil && len(entries) > 0
		}, testenv.Timeout(), 5*time.Millisecond, "%s", p.stderr)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		return p
	}
	resume := func(p *process) { require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT)) }
	status := func() string { return value(t, dst, "keystatus") }
	for _, kill := range []bool{false, true} {
		first, second := startReading(), startReading()
		if kill {
			require.NoError(t, first.cmd.Process.Signal(syscall.SIGKILL))
		} else {
			resume(first)
		}
		if o := first.wait(t); !kill {
			require.Equal(t, 0, o.code, o)
			require.False(t, second.ended(), "%s", second.stderr)
		}
		require.Equal(t, "available", status(), "%s", second.stderr)
		resume(second)
		o := second.wait(t)
		require.Equal(t, 0, o.code, o)
		require.Equal(t, "unavailable", status())
	}
}
