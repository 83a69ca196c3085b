package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// newDrillJob returns the replication of a job "home" with drill as its [job.drill] table,
// after one run.
func newDrillJob(t *testing.T, source, to, drill, rest string) *replication {
	t.Helper()
	r := newReplication(t, "")
	r.writeDrill(t, source, to, drill, rest)
	run(t, "zpool", "sync")
	o := r.run(t, "run", "home")
	require.Equal(t, 0, o.code, o)
	return r
}

func (r *replication) writeDrill(t *testing.T, source, to, drill, rest string) {
	t.Helper()
	r.write(t, fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nrecursive = true\nsnapshots = { take = \"s-%%Y%%m%%dT%%H%%M%%SZ\" }\n%s\n"+
		"target = [{ name = \"t\", to = %q }]\n[job.drill]\n%s\n", source, rest, to, drill))
}

func (r *replication) run(t *testing.T, verb string, args ...string) cmdResult {
	t.Helper()
	return start(t, append([]string{"replicate", verb, "-c", r.file, "--state-dir", r.state}, args...)...).wait(t)
}

// drill runs a drill. It returns the drill's record, and how the command ended.
func (r *replication) drill(t *testing.T, args ...string) (*statedir.Drill, cmdResult) {
	t.Helper()
	o := r.run(t, "drill", append(args, "--json", "home")...)
	var out struct{ Drills []*statedir.Drill }
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &out), o)
	require.Len(t, out.Drills, 1, o)
	return out.Drills[0], o
}

// listClones lists the existing clones of drills.
func listClones(t *testing.T) (out []string) {
	t.Helper()
	for _, n := range strings.Fields(zfsCmd(t, "list", "-H", "-o", "name")) {
		if zfs.IsDrillClone(n) {
			out = append(out, n)
		}
	}
	return out
}

// TestZFSDrill drills copies of filesystems and of a volume on another host, all of their files and
// a sample, with a command in each clone. Then it drills them on this host with commands that fail.
// Package files checks that a seed chooses the same sample again.
func TestZFSDrill(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", "-o", "compression=lz4", src+"/a")
	zfsCmd(t, "create", "-V", "8m", src+"/vol")
	for i := range 40 {
		fill(t, src+"/a", fmt.Sprint(i), 10<<10)
	}
	check := filepath.Join(t.TempDir(), "check")
	script := func(text string) { testenv.WriteProgram(t, check, "#!/bin/sh\n"+text) }
	script("echo looked at $ZXFER_DRILL_COPY; pwd; ls | wc -l; ! touch new 2>/dev/null")
	r := newDrillJob(t, src, "beta:"+dst, fmt.Sprintf("command = [%q]", check), "")
	listed := func() string {
		return zfsCmd(t, "list", "-t", "all", "-H", "-o", "name,guid,userrefs,readonly,canmount", "-r", alphaPool, betaPool)
	}
	before := listed()
	d, o := r.drill(t)
	require.Equal(t, 0, o.code, o)
	require.Len(t, d.Copies, 3)
	for _, c := range d.Copies {
		require.Equal(t, outcome.Done, c.Outcome, c)
		require.True(t, c.Compared, c)
	}
	require.Equal(t, "stream", d.Copies[2].Read)
	require.EqualValues(t, 40, d.Copies[1].Files)
	require.Contains(t, d.Copies[1].Output, "looked at "+dst+"/a\n")
	require.Contains(t, d.Copies[1].Output, "\n40")
	require.Equal(t, before, listed(), "the drill left changes")

	d, _ = r.drill(t, "--sample", "20%", "--seed", "7")
	read := d.Copies[1].Files
	require.Less(t, read, uint64(40))
	require.NotZero(t, read)
	o = r.run(t, "status", "home")
	require.Equal(t, 0, o.code, o)
	require.Contains(t, o.stdout, "drill: 3 copies good")

	// The following drills do not need another host.
	script("echo it is broken; exit 3")
	r.writeDrill(t, src, dst, fmt.Sprintf("command = [%q]", check), "")
	d, o = r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, d.Copies[0].Error, "exit status 3")
	require.Contains(t, d.Copies[0].Output, "it is broken")
	o = r.run(t, "status", "home")
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stdout, "NOT GOOD")

	script("sleep infinity & trap '' TERM; sleep infinity")
	r.writeDrill(t, src, dst, fmt.Sprintf("command = [%q]\ntimeout = \"2s\"", check), "")
	d, o = r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, d.Copies[0].Error, "it did not end within 2s")

	testenv.WriteProgram(t, check, "#!/none\n") // no program can run this script
	d, o = r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Equal(t, statedir.Unverified, d.Outcome, o)

	zfsCmd(t, "set", "readonly=on", betaPool) // a writable clone does not inherit this
	t.Cleanup(func() { zfsCmd(t, "inherit", "readonly", betaPool) })
	script("echo recovered > $ZXFER_DRILL_DIR/new && cat new")
	r.writeDrill(t, src, dst, fmt.Sprintf("command = [%q]\nwritable = true", check), "")
	d, o = r.drill(t)
	require.Equal(t, 0, o.code, o)
	require.Equal(t, "recovered", d.Copies[0].Output)
	zfsCmd(t, "inherit", "readonly", betaPool)
	require.Equal(t, before, listed())
	requireNoLeftovers(t)
}

// TestZFSDrillDeadline drills a huge file with holes, a file whose data needs longer than the deadline, and a host
// that stalls.
func TestZFSDrillDeadline(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "compression=lz4", src)
	f, err := os.Create(filepath.Join(mountpoint(t, src), "holes"))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(1<<40))
	for i := range int64(6) {
		_, err := f.WriteAt(bytes.Repeat([]byte("data"), 256<<10), i<<37)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	r := newDrillJob(t, src, "beta:"+dst, fmt.Sprintf("deadline = %q", testenv.Timeout()), "")
	d, o := r.drill(t)
	require.Equal(t, 0, o.code, o)
	require.True(t, d.Copies[0].Compared, d.Copies[0])

	notFinished := func(d *statedir.Drill, o cmdResult) {
		t.Helper()
		require.Equal(t, 1, o.code, o)
		require.Equal(t, statedir.NotFinished, d.Outcome, o)
		for _, c := range d.Copies { // none, if the deadline passed before
			require.Equal(t, statedir.NotFinished, c.DisplayOutcome(), o)
		}
		require.Contains(t, o.stderr, "the drill passed its deadline of 1s")
		require.Contains(t, r.run(t, "status", "home").stdout, "not finished")
	}
	// The data is small on disk. No guest reads 1 GiB in a second.
	run(t, "sh", "-c", "yes dense | head -c 1G >"+mountpoint(t, src)+"/dense")
	run(t, "zpool", "sync")
	o = r.run(t, "run", "home")
	require.Equal(t, 0, o.code, o)
	r.writeDrill(t, src, "beta:"+dst, `deadline = "1s"`, "")
	notFinished(r.drill(t))

	require.NoError(t, os.Remove(mountpoint(t, src)+"/dense"))
	nextSecond(t)
	o = r.run(t, "run", "home")
	require.Equal(t, 0, o.code, o)

	// The agent of the copy's host stalls.
	r.writeDrill(t, src, "beta:"+dst, fmt.Sprintf("deadline = %q\ncommand = [\"/bin/sleep\", \"infinity\"]", testenv.Timeout()/6), "")
	p := start(t, "replicate", "drill", "-c", r.file, "--state-dir", r.state, "--json", "home")
	agents := func() []int {
		return pidsOn(t, betaPool, func(argv []string) bool { return len(argv) > 1 && argv[1] == "agent" })
	}
	require.Eventually(t, func() bool { return len(agents()) > 0 && len(listClones(t)) > 0 }, testenv.Timeout(), 250*time.Millisecond)
	for _, pid := range agents() {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	}
	o = p.wait(t)
	// If the deadline is later than the silence that ends a connection, the drill is interrupted.
	want := map[int]string{1: `"outcome":"not finished"`, 4: `"outcome":"interrupted"`}[o.code]
	require.NotEmpty(t, want, o)
	require.Contains(t, o.stdout, want, o)
	for _, pid := range agents() {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	require.Eventually(t, func() bool { return len(agents()) == 0 }, testenv.Timeout(), 100*time.Millisecond)
	r.writeDrill(t, src, "beta:"+dst, "", "")
	_, o = r.drill(t)
	require.Equal(t, 0, o.code, o)
	require.Empty(t, listClones(t))
}

// TestZFSDrillKilled kills a drill. The next drill destroys the clone that it left, and no other clone.
func TestZFSDrillKilled(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 1<<20)
	r := newDrillJob(t, src, "beta:"+dst, `command = ["/bin/sleep", "infinity"]`, "")
	p := start(t, "replicate", "drill", "-c", r.file, "--state-dir", r.state, "home")
	require.Eventually(t, func() bool { return len(listClones(t)) == 1 }, testenv.Timeout(), 500*time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	p.wait(t)
	left := listClones(t)
	require.Len(t, left, 1)
	o := r.run(t, "run", "home")
	require.Equal(t, 0, o.code, "the leftover clone must not stop a run: %s", o)
	otherClone := betaPool + "/zxfer-drill-mine"
	zfsCmd(t, "clone", "-o", "canmount=off", dst+"@"+snapshotNames(t, dst)[0], otherClone)
	r.writeDrill(t, src, "beta:"+dst, "", "")
	_, o = r.drill(t)
	require.Equal(t, 0, o.code, o)
	require.Equal(t, []string{otherClone}, listClones(t))
	zfsCmd(t, "destroy", otherClone)
}

// TestZFSDrillEncrypted drills an encrypted copy without its key, and expects the outcome
// "not proved". With a key file, the drill reads the copy and unloads the key afterwards.
func TestZFSDrillEncrypted(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	zfsCmd(t, "create", "-V", "8m", src+"/vol")
	fill(t, src, "f", 1<<20)
	r := newDrillJob(t, src, "beta:"+dst, "", "")
	d, o := r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Equal(t, statedir.Unverified, d.Outcome)
	for _, c := range d.Copies {
		require.Equal(t, statedir.Unverified, c.Outcome, c)
		require.Equal(t, "stream", c.Read, c)
		require.True(t, c.Compared, c)
	}
	o = r.run(t, "check", "home")
	require.Contains(t, o.stdout, "it cannot verify 2 copies without")

	r.writeDrill(t, src, "beta:"+dst, fmt.Sprintf("key_file = %q\ncommand = [\"/bin/ls\", \"f\"]", key), "")
	d, o = r.drill(t)
	require.Equal(t, 0, o.code, o)
	require.Equal(t, "files", d.Copies[0].Read)
	require.True(t, d.Copies[0].Compared, d.Copies[0])
	require.Equal(t, "passed", d.Copies[0].Command)
	require.Equal(t, "unavailable", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keystatus", dst)))

	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, bytes.Repeat([]byte("x"), 32), 0o600))
	r.writeDrill(t, src, "beta:"+dst, fmt.Sprintf("key_file = %q", other), "")
	d, o = r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Equal(t, outcome.Failed, d.Outcome, o)
	require.Empty(t, listClones(t))
}

// TestZFSDrillVolumeEncryptedOnTarget drills a volume that is encrypted only in the copy. The drill reads
// it with the key of the job file, and unloads the key.
func TestZFSDrillVolumeEncryptedOnTarget(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, dst)
	zfsCmd(t, "create", "-o", "canmount=off", src)
	zfsCmd(t, "create", "-V", "8m", src+"/vol")
	r := newDrillJob(t, src, dst+"/copy", "", "")
	run(t, "sh", "-c", "zfs unmount -f "+dst+"; zfs unmount "+dst+"/copy; zfs unload-key -r "+dst)
	d, o := r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Equal(t, statedir.Unverified, d.Outcome, o)
	r.writeDrill(t, src, dst+"/copy", fmt.Sprintf("key_file = %q", key), "")
	d, o = r.drill(t)
	require.Equal(t, 0, o.code, o)
	for _, c := range d.Copies {
		require.True(t, c.Compared, c)
	}
	require.Equal(t, "stream", d.Copies[1].Read)
	require.Equal(t, "unavailable", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keystatus", dst)))
}

// TestZFSDrillCommands drills with commands that leave processes and mounts, fail, are killed or are
// interrupted. A drill ends their processes and destroys its clone. Its record has the outcome and the
// output of the command.
func TestZFSDrillCommands(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 1<<20)
	check := filepath.Join(t.TempDir(), "check")
	drillCommand := fmt.Sprintf("command = [%q]", check)
	r := newDrillJob(t, src, dst, drillCommand, "")
	script := func(text string) { testenv.WriteProgram(t, check, "#!/bin/bash\n"+text) }
	host := alphaPool
	sleepers := func(seconds string) []int {
		return pidsOn(t, host, func(argv []string) bool { return slices.Equal(argv, []string{"sleep", seconds}) })
	}
	for _, test := range []struct{ name, script, outcome, output string }{
		{"output above limit", "head -c 2000000 /dev/urandom; echo; echo the end", outcome.Done, "the end"},
		{"daemons use the mount", "exec 3<f; setsid sleep 4711 </dev/null & setsid bash -c 'cd /; exec sleep 4711' 4<f >/dev/null 2>&1 & echo left", outcome.Done, "left"},
		{"mount over clone", "mount -t tmpfs none $ZXFER_DRILL_DIR; mkdir -p /run/x; mount --bind . /run/x; echo mounted", outcome.Done, "mounted"},
		{"killed by signal", "bash -c 'kill -SEGV $$'; exit $?", outcome.Failed, ""},
		{"exit code 125", "echo no database here; exit 125", statedir.Unverified, ""},
	} {
		script(test.script)
		d, o := r.drill(t)
		c := d.Copies[0]
		require.Equal(t, test.outcome, c.Outcome, "%s: %v", test.name, o)
		require.True(t, strings.HasSuffix(c.Output, test.output), "%s: %q", test.name, c.Output)
		require.LessOrEqual(t, len(c.Output), zfs.MaxDrillOutput)
		require.Empty(t, listClones(t), test.name)
		require.Empty(t, sleepers("4711"), test.name)
	}
	// On another host, ssh and an agent are between zxfer and the command.
	host = betaPool
	r.writeDrill(t, src, "beta:"+dst, drillCommand, "")
	drill := func() *process {
		p := start(t, "replicate", "drill", "-c", r.file, "--state-dir", r.state, "--json", "home")
		require.Eventually(t, func() bool { return len(sleepers("4712")) == 1 }, testenv.Timeout(), 100*time.Millisecond)
		require.Contains(t, r.run(t, "status", "home").stdout, "a drill is running")
		return p
	}
	script("exec sleep 4712")
	p := drill()
	require.NoError(t, syscall.Kill(sleepers("4712")[0], syscall.SIGKILL))
	o := p.wait(t)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stdout, `"outcome":"not proved"`)
	require.Contains(t, o.stderr, "killed")
	require.Empty(t, listClones(t))

	p = drill()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	o = p.wait(t)
	require.Equal(t, 4, o.code, o)
	require.Empty(t, listClones(t))
	require.Empty(t, sleepers("4712"))
	require.Contains(t, r.run(t, "status", "home").stdout, "INTERRUPTED")
	requireNoLeftovers(t)
}

// TestZFSDrillFindsDamage damages a file of a copy, and expects the drill to name this
// file.
func TestZFSDrillFindsDamage(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", "-o", "compression=off", src)
	fill(t, src, "good", 1<<20)
	fill(t, src, "bad", 1<<20)
	disk := filepath.Join(t.TempDir(), "disk")
	run(t, "truncate", "-s", "200m", disk)
	run(t, "zpool", "create", "-O", "mountpoint=none", "zxdrill", disk)
	t.Cleanup(func() { run(t, "zpool", "destroy", "-f", "zxdrill") })
	r := newDrillJob(t, src, "zxdrill/copy", "", "")
	_, o := r.drill(t)
	require.Equal(t, 0, o.code, o)

	text, err := os.ReadFile(filepath.Join(mountpoint(t, src), "bad"))
	require.NoError(t, err)
	run(t, "zpool", "export", "zxdrill")
	pool, err := os.ReadFile(disk)
	require.NoError(t, err)
	at := bytes.Index(pool, text[256<<10:][:512])
	require.Positive(t, at)
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("junk"), 16<<10), int64(at))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	run(t, "zpool", "import", "-d", filepath.Dir(disk), "zxdrill")
	d, o := r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Equal(t, outcome.Failed, d.Copies[0].Outcome)
	require.Contains(t, strings.Join(d.Copies[0].Differ, "\n"), "bad")
	require.NotContains(t, strings.Join(d.Copies[0].Differ, "\n"), "good")
	require.Empty(t, listClones(t))

	// A run records the errors of the target's pool, here from a scrub, and still succeeds.
	run(t, "zpool", "scrub", "-w", "zxdrill")
	fill(t, src, "new", 1<<20)
	o = r.run(t, "run", "home")
	require.Equal(t, 0, o.code, o)
	o = r.run(t, "status", "home")
	require.Contains(t, o.stdout, "damaged: to t: pool zxdrill has data errors")
	if oldZFS(t) {
		require.Contains(t, o.stdout, "OpenZFS before 2.2 cannot heal")
	} else {
		require.Contains(t, o.stdout, "zxfer heal --job home --config "+r.file)
	}
}

// TestRestrictedAgentDrill drills with a key that may only drill. The agent clones and reads the
// datasets of the grant, and runs no command.
func TestRestrictedAgentDrill(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 1<<20)
	r := newDrillJob(t, src, "beta:"+dst, "", "")
	rsh, _ := restrictedKey(t, "--allow", "drill="+dst)
	transfer := fmt.Sprintf("transfer = { rsh = %q }", rsh)
	r.writeDrill(t, src, "beta:"+dst, "", transfer)
	d, o := r.drill(t)
	require.Equal(t, 0, o.code, o)
	require.True(t, d.Copies[0].Compared, d.Copies[0])
	require.Equal(t, "files", d.Copies[0].Read)
	require.Empty(t, listClones(t))

	r.writeDrill(t, src, "beta:"+dst, `command = ["/bin/true"]`, transfer)
	d, o = r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Equal(t, statedir.Unverified, d.Outcome)
	require.Contains(t, d.Copies[0].Error, "a restricted key cannot run commands")
	require.Empty(t, listClones(t))

	// Anyone with the key can create clones in the name of another job. This job keeps
	// them.
	snapshot := dst + "@" + snapshotNames(t, dst)[0]
	for i := range zfs.MaxDrillClones {
		zfsCmd(t, "clone", "-o", "canmount=off", "-o", zfs.DrillCloneProperty+"=other", snapshot, zfs.DrillCloneName(betaPool, fmt.Sprint(i)))
	}
	r.writeDrill(t, src, "beta:"+dst, "", transfer)
	d, o = r.drill(t)
	require.Equal(t, 1, o.code, o)
	require.Equal(t, statedir.Unverified, d.Outcome)
	require.Contains(t, d.Copies[0].Error, "already has 16 drill clones")
	require.Len(t, listClones(t), zfs.MaxDrillClones)

	// holds lists the clones of jobs that this host does not know, and destroys them with --gc.
	r.writeDrill(t, src, "beta:"+dst, "", "")
	otherClone := betaPool + "/zxfer-drill-mine"
	zfsCmd(t, "clone", "-o", "canmount=off", snapshot, otherClone)
	o = r.run(t, "holds")
	require.Contains(t, o.stdout, "stale\tbeta:"+zfs.DrillCloneName(betaPool, "0")+"\tclone of "+snapshot+", drill of other\n")
	require.Len(t, listClones(t), zfs.MaxDrillClones+1)
	for grant, want := range map[string]int{"drill=" + dst: zfs.MaxDrillClones, "receive=" + dst: 0} { // also with a key that may drill
		rsh, _ := restrictedKey(t, "--allow", "receive="+dst, "--allow", grant)
		r.writeDrill(t, src, "beta:"+dst, "", fmt.Sprintf("transfer = { rsh = %q }", rsh))
		o = r.run(t, "holds")
		require.Equal(t, 0, o.code, o)
		require.Equal(t, want, strings.Count(o.stdout, "drill of other"), o)
	}
	r.write(t, "job = []\n") // the file has no jobs any more
	o = r.run(t, "holds", "--gc")
	require.Equal(t, 0, o.code, o)
	require.Contains(t, o.stdout, "\tzxfer:home:t\n")
	require.NotContains(t, o.stdout, "needed")
	require.Equal(t, 2, r.run(t, "run", "--all").code)
	require.Contains(t, o.stdout, "released\tbeta:"+zfs.DrillCloneName(betaPool, "0"))
	require.Equal(t, []string{otherClone}, listClones(t))
	zfsCmd(t, "destroy", otherClone)

	rsh, _ = restrictedKey(t, "--allow", "receive="+dst)
	r.writeDrill(t, src, "beta:"+dst, "", fmt.Sprintf("transfer = { rsh = %q }", rsh))
	_, o = r.drill(t)
	require.NotEqual(t, 0, o.code, o)
	require.Contains(t, o.stderr, "policy forbids")
}
