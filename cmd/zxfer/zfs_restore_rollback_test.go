package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// snapshotsAndHolds lists the snapshots, bookmarks and holds of a dataset.
func snapshotsAndHolds(t *testing.T, d string) string {
	t.Helper()
	return zfsCmd(t, "list", "-H", "-d", "1", "-t", "snapshot,bookmark", "-o", "name", d) + strings.Join(holdsOf(t, d), "\n")
}

// TestZFSRestoreRollback deletes files on the source of a job, and rolls the source back to
// its copy. All printed commands work, and the job continues with incremental sends.
func TestZFSRestoreRollback(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "letters", 300<<10)
	r := newHomeJob(t, src, dst)
	at := time.Now().UTC().Truncate(time.Second)
	runJob := func() string {
		t.Helper()
		at = at.Add(time.Hour)
		o := r.mustRunAt(t, at, "run", "home")
		require.NotContains(t, o.stdout+o.stderr, "full")
		names := strings.Fields(zfsCmd(t, "list", "-H", "-d", "1", "-t", "snapshot", "-s", "createtxg", "-o", "name", src))
		_, newest, _ := strings.Cut(names[len(names)-1], "@")
		return newest
	}
	r.mustRunAt(t, at, "run", "home")
	fill(t, src, "more", 300<<10)
	one := runJob()
	want := run(t, "sha256sum", mountpoint(t, src)+"/letters", mountpoint(t, src)+"/more")
	digests := func() string { return run(t, "sha256sum", mountpoint(t, src)+"/letters", mountpoint(t, src)+"/more") }
	back := []string{"restore", "--rollback", "--mount", "beta:" + dst, src}

	// Directly after a run, the property "written" does not show the change yet.
	require.NoError(t, os.Remove(mountpoint(t, src)+"/letters"))
	o := mustZxfer(t, back...)
	require.Contains(t, o.stderr+o.stdout, "rolled back to "+src+"@"+one, o)
	require.Equal(t, want, digests())
	fill(t, src, "new", 100<<10)
	two := runJob()

	// The job has run again, and another program has taken a snapshot.
	require.NoError(t, os.RemoveAll(mountpoint(t, src)+"/more"))
	zfsCmd(t, "snapshot", src+"@auto")
	fill(t, src, "since", 100<<10)
	o = runLocal(t, "restore", dst, src)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "to roll "+src+" back to @"+two+", add --rollback")
	before := state(t)
	o = mustRunLocal(t, "restore", "-n", "--rollback", dst, src)
	for _, text := range []string{"LOSES " + src + "@auto on the target", "bytes written to " + src + " since @auto", "rolls back to @" + two, "zfs rollback -r " + src + "@" + two} {
		require.Contains(t, o.stdout, text)
	}
	require.Equal(t, before, state(t))

	// While the dataset is in use, the restore fails and loses no snapshots.
	sleep := exec.Command("sleep", "1000")
	sleep.Dir = mountpoint(t, src)
	require.NoError(t, sleep.Start())
	names := snapshotsAndHolds(t, src)
	back = []string{"restore", "--rollback", dst, src} // in the mount namespace of that process; it mounts again what it unmounts
	o = runLocal(t, back...)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "busy")
	require.Contains(t, o.stderr, "list its users: fuser -vm")
	require.Equal(t, names, snapshotsAndHolds(t, src))
	require.NoError(t, sleep.Process.Kill())
	_ = sleep.Wait()
	mustRunLocal(t, back...)
	require.Equal(t, "yes", value(t, src, "mounted"))
	require.Equal(t, guids(t, dst), guids(t, src))
	require.FileExists(t, mountpoint(t, src)+"/new")
	fill(t, src, "later", 100<<10)
	three := runJob()
	require.Equal(t, guids(t, dst), guids(t, src))

	// Roll back further than the copy's most recent snapshot, which a job holds on both
	// sides. Another hold and a clone prevent that.
	zfsCmd(t, "hold", "mine", src+"@"+three)
	zfsCmd(t, "clone", "-o", "mountpoint=none", src+"@"+three, src+"-clone")
	older := []string{"restore", "--rollback", "--mount", "beta:" + dst + "@" + one, src}
	before = state(t)
	o = zxfer(t, older...)
	require.Equal(t, 3, o.code, o)
	require.Equal(t, before, state(t))
	commands := regexp.MustCompile(`zfs (release|destroy) \S+( \S+)?`).FindAllString(o.stderr, -1)
	require.Len(t, commands, 2, o)
	for _, c := range commands {
		run(t, "sh", "-ec", c)
	}
	o = mustZxfer(t, append([]string{"restore", "-n"}, older[1:]...)...)
	require.Contains(t, o.stdout, "LOSES "+src+"#zxfer:home:"+three)
	require.Contains(t, o.stdout, "moves the hold zxfer:home:near to "+src+"@"+one)
	o = mustZxfer(t, older...)
	require.Equal(t, want, digests())
	require.NotContains(t, snapshotsAndHolds(t, src), three)
	require.Contains(t, guids(t, dst), three, "the target lost a snapshot")
	command := regexp.MustCompile(`(?m)^  zxfer (send --rollback .*)$`).FindStringSubmatch(o.stdout)
	require.NotNil(t, command, o)
	o = mustZxfer(t, strings.Fields(command[1])...)
	fill(t, src, "last", 100<<10)
	four := runJob()
	require.Equal(t, guids(t, dst), guids(t, src))
	require.Equal(t, []string{src + "@" + four + " zxfer:home:near"}, holdsOf(t, src))
	require.Equal(t, []string{dst + "@" + four + " zxfer:home:near"}, holdsOf(t, dst))
	requireSameFiles(t, src, dst)
}

// TestZFSRestoreRollbackCommands runs the equivalent commands that -n prints, and expects the
// same result.
func TestZFSRestoreRollbackCommands(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 100<<10)
	zfsCmd(t, "snapshot", src+"@one")
	zfsCmd(t, "bookmark", src+"@one", src+"#one")
	mustRunLocal(t, "send", src, dst)
	zfsCmd(t, "snapshot", src+"@two")
	zfsCmd(t, "hold", "zxfer:home:near", src+"@two")
	zfsCmd(t, "bookmark", src+"@two", src+"#two")
	require.NoError(t, os.Remove(mountpoint(t, src)+"/f"))
	o := mustRunLocal(t, "restore", "-n", "--rollback", dst, src)
	_, script, found := strings.Cut(o.stdout, "equivalent commands\n")
	require.True(t, found, o)
	script, _, _ = strings.Cut(script, "\n\n")
	var lines []string
	for l := range strings.Lines(script) {
		if strings.HasPrefix(l, "  zfs ") {
			lines = append(lines, l)
		}
	}
	require.Len(t, lines, 3, o)
	run(t, "sh", "-ec", strings.Join(lines, ""))
	require.Equal(t, src+"@one\n"+src+"#one\n"+src+"@one zxfer:home:near", snapshotsAndHolds(t, src))
	require.FileExists(t, mountpoint(t, src)+"/f")
}

// TestZFSRestoreRollbackShares rolls back filesystems that NFS shares. They are shared again.
func TestZFSRestoreRollbackShares(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	const exportfs = "/usr/sbin/exportfs"
	require.NoFileExists(t, exportfs, "the guest shares nothing")
	t.Cleanup(func() { _ = os.Remove(exportfs) })
	testenv.WriteProgram(t, exportfs, "#!/bin/sh\n")
	zfsCmd(t, "create", "-o", "sharenfs=on", src)
	zfsCmd(t, "create", src+"/a")
	zfsCmd(t, "snapshot", "-r", src+"@one")
	mustRunLocal(t, "send", "-R", src, dst)
	fill(t, src, "new", 1000)
	shared := func() []bool {
		text := fileText("/etc/exports.d/zfs.exports")
		return []bool{strings.Contains(text, mountpoint(t, src)+" "), strings.Contains(text, mountpoint(t, src)+"/a ")}
	}
	require.Equal(t, []bool{true, true}, shared())
	mustRunLocal(t, "restore", "-R", "--rollback", dst, src)
	require.NoFileExists(t, mountpoint(t, src)+"/new")
	require.Equal(t, []bool{true, true}, shared())
}

// TestZFSRestoreRollbackKilled kills a restore after each of its changes, and expects the
// same command to complete it. Only the long level kills before each change, which should
// leave the same state as a kill after the previous one.
func TestZFSRestoreRollbackKilled(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	dir := t.TempDir()
	zfs := strings.TrimSpace(run(t, "sh", "-c", "command -v zfs"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "zfs"), fmt.Appendf(nil, `#!/bin/sh
case $1 in unmount|hold|release|destroy|rollback|mount) ;; *) exec %[1]s "$@" ;; esac
echo "$*" >>%[2]s/calls
n=$(wc -l <%[2]s/calls) at=$(cat %[2]s/at)
[ $((2 * n)) != $at ] || { kill -9 $PPID; exit 1; }
%[1]s "$@"; code=$?
[ $((2 * n + 1)) != $at ] || kill -9 $PPID
exit $code
`, zfs, dir), 0o755))
	// Without the helper for libzfs_core, every change is a command.
	testenv.WriteProgram(t, filepath.Join(dir, "python3"), "#!/bin/sh\nexit 1\n")
	restore := func(at int) (code int, calls string) {
		require.NoError(t, os.WriteFile(dir+"/at", fmt.Append(nil, at), 0o600))
		require.NoError(t, os.RemoveAll(dir+"/calls"))
		var out bytes.Buffer
		cmd := exec.Command(alphaBin, "restore", "--rollback", "--mount", dst+"@one", src)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // the caller checks its exit code
		t.Log(out.String())
		return cmd.ProcessState.ExitCode(), fileText(dir + "/calls")
	}
	zfsCmd(t, "create", src)
	fill(t, src, "f", 100<<10)
	zfsCmd(t, "snapshot", src+"@one")
	fill(t, src, "g", 100<<10)
	zfsCmd(t, "snapshot", src+"@two")
	mustRunLocal(t, "send", src, dst)
	var done string
	for at := testenv.Rounds(3, 3, 2); ; at += testenv.Rounds(2, 2, 1) {
		zfsCmd(t, "hold", "zxfer:home:near", src+"@two")
		zfsCmd(t, "bookmark", src+"@two", src+"#two")
		fill(t, src, "h", 100<<10)
		code, calls := restore(at)
		if code != -1 {
			require.Equal(t, 0, code, calls)
			done = calls
			break
		}
		require.Contains(t, snapshotsAndHolds(t, src), src+"@one\n", "killed at %d: %s", at, calls)
		mustRunLocal(t, "restore", "--rollback", "--mount", dst+"@one", src)
		require.Equal(t, src+"@one\n"+src+"@one zxfer:home:near", snapshotsAndHolds(t, src), "killed at %d: %s", at, calls)
		mount(t, src)
		require.NoFileExists(t, mountpoint(t, src)+"/g", "killed at %d", at)
		require.FileExists(t, mountpoint(t, src)+"/f")
		run(t, "sh", "-ec", fmt.Sprintf("zfs release zxfer:home:near %[1]s@one; zfs send -i @one %[2]s@two | zfs receive -F %[1]s", src, dst))
		mount(t, src)
		require.FileExists(t, mountpoint(t, src)+"/g")
	}
	for _, verb := range []string{"unmount ", "hold ", "release ", "destroy ", "rollback ", "mount "} {
		require.Contains(t, done, verb)
	}
}

// TestZFSRestoreRollbackVolume restores a volume with --rollback.
func TestZFSRestoreRollbackVolume(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-V", "8m", src)
	zfsCmd(t, "snapshot", src+"@one")
	mustRunLocal(t, "send", src, dst)
	zfsCmd(t, "snapshot", src+"@two")
	zfsCmd(t, "hold", "zxfer:home:near", src+"@two")
	mustRunLocal(t, "restore", "--rollback", dst, src)
	require.Equal(t, src+"@one\n"+src+"@one zxfer:home:near", snapshotsAndHolds(t, src))
}
