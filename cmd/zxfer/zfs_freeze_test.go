package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// applications is a chroot with real databases and a real guest agent, built by
// scripts/databases. ZFS filesystems have the same mountpoint inside and outside.
type applications struct{ root string }

func newApplications(t *testing.T) *applications {
	t.Helper()
	from := os.Getenv("TEST_DATABASES")
	if from == "" {
		t.Skip("scripts/databases did not run: set TEST_DATABASES")
	}
	lab(t)
	a := &applications{"/tmp/" + strings.ToLower(t.Name())}
	require.NoError(t, os.MkdirAll(a.root, 0o755))
	run(t, "mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", a.root)
	t.Cleanup(func() { run(t, "umount", "-R", "-l", a.root) })
	entries, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, e := range entries {
		target := filepath.Join(a.root, e.Name())
		if link, err := os.Readlink(filepath.Join(from, e.Name())); err == nil {
			require.NoError(t, os.Symlink(link, target))
			continue
		}
		require.NoError(t, os.Mkdir(target, 0o755))
		if e.Name() != "tmp" && e.Name() != "run" && e.Name() != "dev" {
			run(t, "mount", "--bind", filepath.Join(from, e.Name()), target)
		}
	}
	run(t, "mount", "--rbind", "/dev", a.root+"/dev")
	run(t, "mount", "--make-rslave", a.root+"/dev") // otherwise its umount also unmounts /dev/pts
	run(t, "mount", "-t", "proc", "proc", a.root+"/proc")
	run(t, "chmod", "1777", a.root+"/tmp", a.root+"/run")
	return a
}

// bindMount mounts a mountpoint at the same path in the chroot.
func (a *applications) bindMount(t *testing.T, mountpoint string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(a.root+mountpoint, 0o755))
	run(t, "mount", "--bind", mountpoint, a.root+mountpoint)
}

// command returns a command that runs in the chroot as an account.
func (a *applications) command(account string, argv ...string) *exec.Cmd {
	return exec.Command("chroot", append([]string{"--userspec=" + account, a.root, "/bin/sh", "-c", `umask 0; exec "$@"`, "sh"}, argv...)...)
}

func (a *applications) must(t *testing.T, account string, argv ...string) string {
	t.Helper()
	out, err := a.command(account, argv...).CombinedOutput()
	require.NoError(t, err, "%q: %s", argv, out)
	return strings.TrimSpace(string(out))
}

// serve runs a program until the test ends or stop is called.
func (a *applications) serve(t *testing.T, account string, argv ...string) (stop func()) {
	t.Helper()
	cmd := a.command(account, argv...)
	log := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = log, log, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT) // SIGQUIT also stops databases fast
		timer := time.AfterFunc(testenv.Timeout(), func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		defer timer.Stop()
		_ = cmd.Wait()
		if t.Failed() {
			text := log.String()
			t.Logf("%s: %s", argv[0], text[max(0, len(text)-4000):])
		}
	}
	t.Cleanup(stop)
	return stop
}

// installClient makes a program of the chroot available in the PATH of jobs.
func (a *applications) installClient(t *testing.T, name, program string) {
	t.Helper()
	installFile(t, "/usr/local/bin/"+name, "#!/bin/sh\nexec chroot "+a.root+" "+program+" \"$@\"\n", 0o755)
}

const frozenJob = `
[[job]]
name = "f"
source = %q
recursive = true
snapshots = { take = "s-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 9 }
`

// TestZFSFreezeGuestAgent freezes a filesystem on a volume through a real guest agent, and
// expects no writes during the freeze and a snapshot that needs no recovery. If the run or
// its watchdog is killed, the filesystem is thawed.
func TestZFSFreezeGuestAgent(t *testing.T) {
	a := newApplications(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", "-s", "-V", "256m", src+"/disk")
	disk := volumeNode(t, src+"/disk")
	run(t, "mkfs.ext4", "-q", disk)
	vm := a.root + "/vm"
	require.NoError(t, os.Mkdir(vm, 0o755))
	run(t, "mount", disk, vm)
	require.NoError(t, os.WriteFile(vm+"/log", nil, 0o600))
	a.serve(t, "0:0", "/usr/sbin/qemu-ga", "-m", "unix-listen", "-p", "/run/qga", "-t", "/run", "-f", "/run/qga.pid")
	require.Eventually(t, func() bool { _, err := os.Stat(a.root + "/run/qga"); return err == nil }, testenv.Timeout(), 50*time.Millisecond)
	a.serve(t, "0:0", "/bin/sh", "-c", "i=0; while :; do i=$((i+1)); echo $i >>/vm/log; done")
	written := func() int64 {
		s, err := os.Stat(vm + "/log")
		require.NoError(t, err)
		return s.Size()
	}
	waitWritten := func() {
		t.Helper()
		before := written()
		require.Eventually(t, func() bool { return written() > before }, testenv.Timeout(), 10*time.Millisecond)
	}
	waitWritten()

	head := fmt.Sprintf(frozenJob, src) + fmt.Sprintf("[[job.freeze]]\nkind = \"guest-agent\"\nname = \"web1\"\ndatasets = [\"disk\"]\nsocket = %q\n", a.root+"/run/qga")
	r := newReplication(t, head)
	o := r.run(t, "check", "f")
	require.Contains(t, o.stdout, "for 1 dataset of them web1: freeze by the guest agent of the machine at "+a.root+"/run/qga, for at most 30s; on failure, takes no snapshot")
	o = r.run(t, "run", "f")
	require.Equal(t, 0, o.code, o)
	snapshot := src + "/disk@" + snapshotNames(t, src+"/disk")[0]
	require.Equal(t, "web1\n", zfsCmd(t, "get", "-H", "-o", "value", "zxfer:consistent", snapshot))
	require.Equal(t, "-\n", zfsCmd(t, "get", "-H", "-o", "value", "zxfer:consistent", strings.Replace(snapshot, "/disk@", "@", 1)))
	require.Contains(t, r.run(t, "status").stdout, ", consistent")
	zfsCmd(t, "clone", snapshot, src+"/clone")
	clone := volumeNode(t, src+"/clone")
	require.NotContains(t, run(t, "dumpe2fs", "-h", clone), "needs_recovery", "the snapshot needs journal recovery")
	run(t, "e2fsck", "-fn", clone)
	waitWritten()

	// The second freeze command never ends, and both timeouts are longer than the test
	// waits for writes. Only zxfer's cleanup can thaw in time.
	slow := head + "timeout = \"10m\"\n[[job.freeze]]\nkind = \"command\"\ndatasets = [\"disk\"]\nfreeze = [\"/bin/sleep\", \"infinity\"]\nthaw = [\"/bin/true\"]\ntimeout = \"10m\"\n"
	sleeps := func(argv []string) bool { return slices.Equal(argv, []string{"/bin/sleep", "infinity"}) }
	startRun := func() *process {
		r := newReplication(t, slow)
		return start(t, "replicate", "run", "-c", r.file, "--state-dir", r.state, "f")
	}
	startFrozen := func() *process {
		p := startRun()
		require.Eventually(t, func() bool { return len(pidsOn(t, alphaPool, sleeps)) == 1 }, testenv.Timeout(), 10*time.Millisecond, "%s", p.stderr)
		before := written()
		time.Sleep(200 * time.Millisecond) // on a slow machine this may miss a write, but never fails
		require.Equal(t, before, written(), "the filesystem is not frozen")
		return p
	}
	pidsWith := func(verb string) []int {
		return pidsOn(t, alphaPool, func(argv []string) bool { return len(argv) > 1 && argv[1] == verb })
	}
	for name, killed := range map[string]func(p *process){
		"run":      func(p *process) { require.NoError(t, p.cmd.Process.Kill()) },
		"watchdog": func(*process) { require.NoError(t, syscall.Kill(pidsWith("freeze-guard")[0], syscall.SIGKILL)) },
	} {
		p := startFrozen()
		killed(p)
		waitWritten()
		o = p.wait(t)
		require.NotEqual(t, 0, o.code, name)
		require.Eventually(t, func() bool { return len(pidsWith("freeze-guard")) == 0 }, testenv.Timeout(), 50*time.Millisecond)
		waitEnded(t, alphaPool, sleeps)
	}
	require.Len(t, snapshotNames(t, src+"/disk"), 1, "a failed freeze took a snapshot")

	// The timeout ends a freeze.
	slow = strings.Replace(slow, "timeout = \"10m\"", "timeout = \"3s\"", 1)
	o = startRun().wait(t)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "timeout of 3s")
	waitWritten()
	require.Len(t, snapshotNames(t, src+"/disk"), 1, "a failed freeze took a snapshot")
	run(t, "umount", "-l", vm)
	requireNoLeftovers(t)
}

// TestZFSFreezeRemoteHost pulls from beta, and expects the agent to freeze the applications
// there. A restricted key may not freeze applications.
func TestZFSFreezeRemoteHost(t *testing.T) {
	rsh, _ := restrictedKey(t, "--allow", "send="+betaPool, "--append-only")
	dst, src := dataset(t) // the source is on beta
	zfsCmd(t, "create", src)
	log := filepath.Join(t.TempDir(), "log")
	text := fmt.Sprintf(frozenJob, "beta:"+src) + fmt.Sprintf("target = [{ name = \"t\", to = %q }]\n[[job.freeze]]\nkind = \"command\"\n"+
		"freeze = [\"/bin/sh\", \"-c\", \"ip netns identify $$ >>%[2]s; echo $ZXFER_HOOK >>%[2]s\"]\nthaw = [\"/bin/sh\", \"-c\", \"echo $ZXFER_HOOK >>%[2]s\"]\n", dst, log)
	r := newReplication(t, text)
	o := r.run(t, "run", "f")
	require.Equal(t, 0, o.code, o)
	require.Equal(t, betaPool+"\nfreeze\nthaw\n", fileText(log))
	require.Equal(t, "command\n", zfsCmd(t, "get", "-H", "-o", "value", "zxfer:consistent", src+"@"+snapshotNames(t, src)[0]))
	require.Equal(t, "-\n", zfsCmd(t, "get", "-H", "-o", "value", "zxfer:consistent", dst+"@"+snapshotNames(t, dst)[0]))
	require.Contains(t, r.run(t, "status").stdout, ", consistent")

	r.write(t, strings.Replace(text, "recursive = true", "recursive = true\ntransfer = { rsh = \""+rsh+"\" }", 1))
	nextSecond(t) // names of snapshots have a resolution of one second
	o = r.run(t, "run", "f")
	require.NotEqual(t, 0, o.code)
	require.Contains(t, o.stderr, "a restricted key cannot freeze applications")
	checked := r.run(t, "check", "f")
	require.Equal(t, 1, checked.code)
	require.Regexp(t, "source: freeze: .*a restricted key cannot freeze applications", checked.stdout)
	require.Contains(t, o.stderr, "run the job on that host")
	require.Equal(t, betaPool+"\nfreeze\nthaw\n", fileText(log))
}

// TestZFSFreezePostgreSQL takes a snapshot of a database under load, with its WAL in
// another dataset, and expects complete transactions in clones. If the snapshot does not
// include that dataset, the run refuses.
func TestZFSFreezePostgreSQL(t *testing.T) {
	a := newApplications(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/pg")
	zfsCmd(t, "create", src+"/wal")
	root := mountpoint(t, src)
	for _, d := range []string{root + "/pg", root + "/wal"} {
		require.NoError(t, os.Chown(d, 65534, 65534))
	}
	for _, d := range []string{root, root + "/pg", root + "/wal"} {
		a.bindMount(t, d)
	}
	const nobody = "65534:65534"
	a.must(t, nobody, "/pg/initdb", "-D", root+"/pg/data", "-X", root+"/wal/pg", "-A", "trust", "-U", "postgres", "--no-sync", "--locale=C")
	a.serve(t, nobody, "/pg/postgres", "-D", root+"/pg/data", "-k", "/run", "-c", "listen_addresses=", "-c", "shared_buffers=16MB")
	sql := func(port, statement string) string {
		out, err := a.command(nobody, "/pg/psql", "-XAtq", "-h", "/run", "-p", port, "-U", "postgres", "postgres", "-c", statement).CombinedOutput()
		if err != nil {
			return err.Error() + ": " + string(out)
		}
		return strings.TrimSpace(string(out))
	}
	require.Eventually(t, func() bool { return sql("5432", "SELECT 1") == "1" }, testenv.Timeout(), 100*time.Millisecond)
	a.must(t, nobody, "/pg/pgbench", "-i", "-q", "-h", "/run", "-U", "postgres", "postgres")
	a.installClient(t, "psql", "/pg/psql")

	text := fmt.Sprintf(frozenJob, src) + "[[job.freeze]]\nkind = \"postgresql\"\nhost = \"/run\"\nuser = \"postgres\"\ndatasets = [\"pg\"]\n"
	r := newReplication(t, text)
	o := r.run(t, "run", "f")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "its data in "+root+"/pg/data/pg_wal is on "+src+"/wal, which is not part of the snapshot")

	r.write(t, strings.Replace(text, `["pg"]`, `["pg", "wal"]`, 1))
	stop := a.serve(t, nobody, "/pg/pgbench", "-T", "300", "-c", "4", "-n", "-h", "/run", "-U", "postgres", "postgres")
	require.Eventually(t, func() bool { return sql("5432", "SELECT count(*) > 100 FROM pgbench_history") == "t" }, testenv.Timeout(), 100*time.Millisecond)
	o = r.run(t, "run", "f")
	require.Equal(t, 0, o.code, o)
	stop()
	name := snapshotNames(t, src+"/pg")[0]
	require.Equal(t, "postgresql\n", zfsCmd(t, "get", "-H", "-o", "value", "zxfer:consistent", src+"/pg@"+name))
	log := r.run(t, "log", "--json", "f").stdout
	require.Regexp(t, `"position":\s*"WAL [0-9A-F]+/[0-9A-F]+"`, log)

	for _, d := range []string{"pg", "wal"} {
		zfsCmd(t, "clone", "-o", "mountpoint="+a.root+"/clone/"+d, src+"/"+d+"@"+name, src+"/clone-"+d)
	}
	data := "/clone/pg/data"
	require.NoError(t, os.Remove(a.root+data+"/pg_wal"))
	require.NoError(t, os.Symlink("/clone/wal/pg", a.root+data+"/pg_wal"))
	require.NoError(t, os.Remove(a.root+data+"/postmaster.pid"))
	stop = a.serve(t, nobody, "/pg/postgres", "-D", data, "-k", "/run", "-p", "5433", "-c", "listen_addresses=", "-c", "shared_buffers=16MB")
	sums := ""
	require.Eventually(t, func() bool {
		sums = sql("5433", "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history), (SELECT count(*) > 100 FROM pgbench_history)")
		return strings.HasSuffix(sums, "|t")
	}, testenv.Timeout(), 100*time.Millisecond, sums)
	f := strings.Split(sums, "|")
	require.Equal(t, []string{f[0], f[0], f[0], f[0], "t"}, f, "incomplete transactions")
	stop()
}

// TestZFSFreezeMariaDB takes a snapshot of a database under load and expects intact tables
// in a clone. MyISAM tables have no crash recovery that could repair them.
func TestZFSFreezeMariaDB(t *testing.T) {
	a := newApplications(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	root := mountpoint(t, src)
	a.bindMount(t, root)
	require.NoError(t, os.Mkdir(root+"/data", 0o755))
	serve := func(data, socket string) (stop func()) {
		return a.serve(t, "0:0", "/usr/sbin/mariadbd", "--no-defaults", "--user=root", "--datadir="+data, "--socket="+socket, "--pid-file="+socket+".pid",
			"--skip-networking", "--skip-grant-tables", "--innodb-buffer-pool-size=16M", "--loose-innodb-buffer-pool-size-max=64M", "--innodb-log-file-size=8M", "--lc-messages-dir=/usr/share/mysql/english")
	}
	sql := func(socket, statement string) string {
		out, err := a.command("0:0", "/usr/bin/mariadb", "--no-defaults", "--socket="+socket, "-BN", "-e", statement).CombinedOutput()
		if err != nil {
			return err.Error() + ": " + string(out)
		}
		return strings.TrimSpace(string(out))
	}
	stop := serve(root+"/data", "/run/m.sock")
	require.Eventually(t, func() bool { return sql("/run/m.sock", "SELECT 1") == "1" }, testenv.Timeout(), 100*time.Millisecond)
	require.Empty(t, sql("/run/m.sock", "CREATE DATABASE d; CREATE TABLE d.i (n INT PRIMARY KEY AUTO_INCREMENT, t TEXT) ENGINE=InnoDB; CREATE TABLE d.m (n INT PRIMARY KEY AUTO_INCREMENT, t TEXT, KEY (t(20))) ENGINE=MyISAM"))
	a.installClient(t, "mariadb", "/usr/bin/mariadb")
	for _, table := range []string{"i", "m"} {
		a.serve(t, "0:0", "/bin/sh", "-c", `while :; do echo "INSERT INTO d.$0 (t) VALUES (REPEAT(UUID(), 20));"; done | /usr/bin/mariadb --no-defaults --socket=/run/m.sock`, table)
	}
	require.Eventually(t, func() bool {
		return sql("/run/m.sock", "SELECT (SELECT COUNT(*) FROM d.i) > 50 AND (SELECT COUNT(*) FROM d.m) > 50") == "1"
	}, testenv.Timeout(), 100*time.Millisecond)
	r := newReplication(t, fmt.Sprintf(frozenJob, src)+"[[job.freeze]]\nkind = \"mysql\"\nsocket = \"/run/m.sock\"\n")
	o := r.run(t, "run", "f")
	require.Equal(t, 0, o.code, o)
	stop()
	name := snapshotNames(t, src)[0]
	require.Equal(t, "mysql\n", zfsCmd(t, "get", "-H", "-o", "value", "zxfer:consistent", src+"@"+name))
	zfsCmd(t, "clone", "-o", "mountpoint="+a.root+"/clone", src+"@"+name, src+"/clone")
	serve("/clone/data", "/run/c.sock")
	require.Eventually(t, func() bool { return sql("/run/c.sock", "SELECT 1") == "1" }, testenv.Timeout(), 100*time.Millisecond)
	require.Equal(t, "d.i\tcheck\tstatus\tOK\nd.m\tcheck\tstatus\tOK", sql("/run/c.sock", "CHECK TABLE d.i, d.m"))
	require.Equal(t, "1", sql("/run/c.sock", "SELECT (SELECT COUNT(*) FROM d.i) > 50 AND (SELECT COUNT(*) = MAX(n) AND COUNT(*) > 50 FROM d.m)"))
}

// TestZFSFreezeUnit kills and stops a run in its systemd unit during a freeze, and expects
// the watchdog to thaw. The commands run as the account in run_as.
func TestZFSFreezeUnit(t *testing.T) {
	m := bootSystemd(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	const binary, config, stateDir, unit = "/usr/local/bin/zxfer", "/etc/zxfer/replicate.toml", "/var/lib/zxfer", "zxfer-replicate-f.service"
	require.NoError(t, installSelf(t, binary))
	t.Cleanup(func() { _ = os.Remove(binary); _ = os.RemoveAll(stateDir) })
	log := stateDir + "/log"
	installFile(t, log, "", 0o666)
	require.NoError(t, os.Chmod(log, 0o666))
	logHook := "[\"/bin/sh\", \"-c\", \"echo $(id -un) $ZXFER_HOOK >>" + log + "\"]"
	installFile(t, config, fmt.Sprintf(frozenJob, src)+"[[job.freeze]]\nkind = \"command\"\nname = \"a\"\nrun_as = \"nobody\"\nfreeze = "+logHook+"\nthaw = "+logHook+
		"\n[[job.freeze]]\nkind = \"command\"\nfreeze = [\"/bin/sleep\", \"infinity\"]\nthaw = [\"/bin/true\"]\ntimeout = \"10m\"\n", 0o644)
	m.run(t, binary, "replicate", "install")
	t.Cleanup(func() { _ = m.command(binary, "replicate", "uninstall").Run() })
	for _, how := range [][]string{{"kill", "--kill-whom=main", "--signal=KILL"}, {"stop"}} {
		require.NoError(t, os.Truncate(log, 0))
		m.run(t, "systemctl", "start", "--no-block", unit)
		require.Eventually(t, func() bool { return fileText(log) == "nobody freeze\n" }, testenv.Timeout(), 20*time.Millisecond, m.journal(unit))
		m.run(t, append(append([]string{"systemctl"}, how...), unit)...)
		require.Eventually(t, func() bool { return fileText(log) == "nobody freeze\nnobody thaw\n" }, testenv.Timeout(), 10*time.Millisecond, fileText(log))
		m.run(t, "systemctl", "stop", unit)
		require.Eventually(t, func() bool {
			return len(pidsOn(t, alphaPool, func(argv []string) bool { return len(argv) > 1 && argv[1] == "freeze-guard" })) == 0
		}, testenv.Timeout(), 50*time.Millisecond)
	}
	// If the watchdog is killed too, the next run thaws before it freezes.
	require.NoError(t, os.Truncate(log, 0))
	startRun := func(want string) {
		t.Helper()
		m.run(t, "systemctl", "start", "--no-block", unit)
		require.Eventually(t, func() bool { return fileText(log) == want }, testenv.Timeout(), 20*time.Millisecond, m.journal(unit))
	}
	startRun("nobody freeze\n")
	m.run(t, "systemctl", "kill", "--signal=KILL", unit)
	require.Eventually(t, func() bool { return m.show(t, unit, "MainPID") == "0" }, testenv.Timeout(), 50*time.Millisecond)
	m.run(t, "systemctl", "stop", unit)
	require.Equal(t, "nobody freeze\n", fileText(log))
	startRun("nobody freeze\nnobody thaw\nnobody freeze\n")
	m.run(t, "systemctl", "stop", unit)
	require.Empty(t, snapshotNames(t, src))
}
