package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// machine is a systemd on alpha. It is the first process of a PID namespace with separate
// mounts, /run and cgroups, and runs the guest's units.
type machine struct{ pid string }

// bootSystemd starts a machine and stops it when the test ends. The network is already
// configured.
func bootSystemd(t *testing.T) *machine {
	t.Helper()
	if os.Getenv("ZXFER_GUEST") == "" {
		t.Skip("runs only in a guest: it uses the units of the host")
	}
	const systemd = "/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("systemd is not installed")
	}
	lab(t)
	group := "/sys/fs/cgroup/" + strings.ToLower(t.Name())
	require.NoError(t, os.MkdirAll(group, 0o755))
	log, err := os.Create(filepath.Join(t.TempDir(), "systemd"))
	require.NoError(t, err)
	cmd := exec.Command("ip", "netns", "exec", alphaPool, "sh", "-c", `mount -t cgroup2 cgroup2 /sys/fs/cgroup; echo $$ >`+group+`/cgroup.procs || exit
exec unshare --pid --fork --kill-child --mount --mount-proc --cgroup sh -c "
umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && mount -t tmpfs -o mode=755 tmpfs /run || exit
mkdir -p /run/systemd/system && cd /run/systemd/system && ln -s /dev/null systemd-networkd.service && ln -s /dev/null systemd-networkd-wait-online.service || exit
cd / && exec env -i container=zxfer `+systemd+` --system --unit=sysinit.target --show-status=no --log-level=warning --log-target=journal"`)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // this also kills all its descendants
		_ = cmd.Wait()
	})
	m := &machine{}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := m.command("sh", "-c", "systemctl status --no-pager zxfer-replicate-*; journalctl --no-pager -n 30").CombinedOutput()
			t.Logf("%s%s", fileText(log.Name()), out)
		}
	})
	require.Eventually(t, func() bool {
		out, err := exec.Command("pgrep", "-P", fmt.Sprint(cmd.Process.Pid)).Output()
		m.pid = strings.TrimSpace(string(out))
		if err != nil || m.pid == "" {
			return false
		}
		out, _ = m.command("systemctl", "is-active", "sysinit.target").Output()
		return strings.TrimSpace(string(out)) == "active"
	}, testenv.Timeout(), 500*time.Millisecond, "systemd did not start: %s", fileText(log.Name()))
	return m
}

// command returns a command that runs in the machine.
func (m *machine) command(argv ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", m.pid, "--mount", "--pid", "--net", "--cgroup", "--"}, argv...)...)
}

// run runs a command in the machine. The command must exit with 0.
func (m *machine) run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := m.command(argv...).CombinedOutput()
	require.NoError(t, err, "%s\n%s", strings.Join(argv, " "), out)
	return string(out)
}

// show returns a property of a unit.
func (m *machine) show(t *testing.T, unit, property string) string {
	t.Helper()
	return strings.TrimSpace(m.run(t, "systemctl", "show", "--value", "-p", property, unit))
}

// journal returns the log of a unit.
func (m *machine) journal(unit string) string {
	out, _ := m.command("journalctl", "--no-pager", "-u", unit).CombinedOutput()
	return string(out)
}

func fileText(name string) string {
	text, _ := os.ReadFile(name)
	return string(text)
}

// installFile writes a file and deletes it after the test. It also creates and deletes the
// directory if it did not exist.
func installFile(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	dir := filepath.Dir(name)
	if _, err := os.Stat(dir); err != nil {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	require.NoFileExists(t, name)
	require.NoError(t, os.WriteFile(name, []byte(text), mode))
	t.Cleanup(func() { _ = os.Remove(name) })
}

// TestZFSReplicateUnits runs the units in a systemd with all their restrictions. A timer
// starts a job to another host, systemd restarts an interrupted run, which resumes, and a
// user's job has only the permissions of zfs allow.
func TestZFSReplicateUnits(t *testing.T) {
	m := bootSystemd(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	for _, name := range []string{"timed", "slow", "user"} {
		zfsCmd(t, "create", src+"/"+name)
		fill(t, src+"/"+name, "x", 1<<20)
	}
	fill(t, src+"/slow", "large", 24<<20)
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	run(t, "zfs", "allow", "backup", "send,snapshot,hold,release,bookmark,destroy,mount", src+"/user")
	run(t, "zfs", "allow", "backup", "create,receive,hold,release,destroy,mount,userprop,canmount,mountpoint,readonly,compression,recordsize", dst)

	// Set up alpha like an administrator: ssh with root's configuration, and zxfer in a
	// directory for programs.
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	ssh := filepath.Join(home, ".ssh")
	for _, name := range []string{"user_key", "known_hosts"} {
		text, err := os.ReadFile(filepath.Join(labDir, name))
		require.NoError(t, err)
		installFile(t, filepath.Join(ssh, name), string(text), 0o600)
	}
	installFile(t, filepath.Join(ssh, "config"), "Host beta\nHostName "+betaIP+"\nUser root\nIdentityFile ~/.ssh/user_key\nUserKnownHostsFile ~/.ssh/known_hosts\n", 0o600)
	const binary, config, stateDir = "/usr/local/bin/zxfer", "/etc/zxfer/replicate.toml", "/var/lib/zxfer"
	require.NoError(t, installSelf(t, binary))
	t.Cleanup(func() { _ = os.Remove(binary); _ = os.RemoveAll(stateDir) })
	metrics := "/var/lib/zxfer-metrics/zxfer.prom"
	installFile(t, metrics, "", 0o644)
	jobs := func(limit string) string {
		return fmt.Sprintf(`
[metrics]
textfile = %[1]q
[[job]]
name = "timed"
source = "%[2]s/timed"
schedule = "*:*:0/4"
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 3 }
target = [{ name = "far", to = "beta:%[3]s/timed" }]
[[job]]
name = "slow"
source = "%[2]s/slow"
retries = 0
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
target = [{ name = "far", to = "beta:%[3]s/slow", transfer = { %[4]s } }]
[[job]]
name = "user"
user = "backup"
source = "%[2]s/user"
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
target = [{ name = "near", to = "%[3]s/user" }]
`, metrics, src, dst, limit)
	}
	installFile(t, config, jobs(`bandwidth = "1M"`), 0o644)
	o := m.run(t, binary, "replicate", "install")
	require.Contains(t, o, "wrote /etc/systemd/system/zxfer-replicate-timed.timer")
	t.Cleanup(func() { _ = m.command(binary, "replicate", "uninstall").Run() })
	require.Equal(t, "active", m.show(t, "zxfer-replicate-timed.timer", "ActiveState"))

	const timed, slow, user = "zxfer-replicate-timed.service", "zxfer-replicate-slow.service", "zxfer-replicate-user.service"
	require.Eventually(t, func() bool {
		runs, err := statedir.Peek(stateDir, "timed").Runs(10)
		return err == nil && len(runs) >= 2
	}, testenv.Timeout(), time.Second, "the timer started fewer than two runs")
	require.Equal(t, "success", m.show(t, timed, "Result"), m.journal(timed))
	require.NotEmpty(t, guids(t, dst+"/timed"), m.journal(timed))
	require.Contains(t, fileText(metrics), `job="timed"`, m.journal(timed))
	m.run(t, "systemctl", "stop", "zxfer-replicate-timed.timer", timed)

	// A stop is not a failure, and the next run resumes.
	m.run(t, "systemctl", "start", "--no-block", slow)
	waitCreated(t, dst+"/slow")
	status := ""
	require.Eventually(t, func() bool {
		status = m.show(t, slow, "StatusText")
		return regexp.MustCompile(`^far: ` + src + `/slow@\S+: \S+ MiB of \d+ MiB \(\d+ %\), \S+ [KM]iB/s, ETA `).MatchString(status)
	}, testenv.Timeout(), time.Second, "systemctl status shows no progress")
	m.run(t, "systemctl", "kill", "--kill-whom=main", "--signal=USR1", slow)
	require.Eventually(t, func() bool { return strings.Contains(m.journal(slow), "/slow@") }, testenv.Timeout(), time.Second, "no report after SIGUSR1: %s", m.journal(slow))
	m.run(t, "systemctl", "stop", slow)
	require.Equal(t, "inactive", m.show(t, slow, "ActiveState"), m.journal(slow))
	require.Equal(t, "success", m.show(t, slow, "Result"), m.journal(slow))
	require.Contains(t, m.journal(slow), "stopped; the next run resumes")
	runs, err := statedir.Peek(stateDir, "slow").Runs(10)
	require.NoError(t, err)
	require.Len(t, runs, 1)
	require.Equal(t, outcome.Interrupted, runs[0].Outcome)

	// A lost connection is an interruption with exit code 4. The received data is kept, and
	// systemd restarts the unit.
	drop := "/etc/systemd/system/" + slow + ".d/soon.conf"
	installFile(t, drop, "[Service]\nRestartSec=20s\n", 0o644)
	m.run(t, "systemctl", "daemon-reload")
	m.run(t, "systemctl", "start", "--no-block", slow)
	waitReceived(t, nil, betaPool, isZFS("receive"), 3<<20)
	resetConnections(t, nil)
	require.Eventually(t, func() bool { return m.show(t, slow, "SubState") == "auto-restart" }, testenv.Timeout(), 200*time.Millisecond, "%s", m.journal(slow))
	require.Equal(t, "exit-code", m.show(t, slow, "Result"), m.journal(slow))
	require.Equal(t, "4", m.show(t, slow, "ExecMainStatus"), m.journal(slow))
	require.NoError(t, os.WriteFile(config, []byte(jobs("")), 0o644))
	require.Eventually(t, func() bool { return m.show(t, slow, "ActiveState") == "inactive" }, testenv.Timeout(), time.Second, "the restarted run does not end")
	require.Equal(t, "success", m.show(t, slow, "Result"), m.journal(slow))
	require.Regexp(t, `(?s)slow: interrupted in .*slow: interrupted in .*slow: done in `, m.journal(slow))
	runs, err = statedir.Peek(stateDir, "slow").Runs(1)
	require.NoError(t, err)
	require.Less(t, runs[0].Targets[0].Bytes, uint64(22<<20), "the run sent data again")
	requireSameFiles(t, src+"/slow", dst+"/slow")

	// A user's unit has no capabilities, and a state directory that systemd creates.
	m.run(t, "systemctl", "start", user)
	require.Equal(t, "success", m.show(t, user, "Result"), m.journal(user))
	require.NotEmpty(t, guids(t, dst+"/user"), m.journal(user))
	require.Contains(t, fileText(metrics), `job="user"`, "no metrics of the user's job: %s", m.journal(user))

	// systemd does not restart a run that the plan refuses.
	zfsCmd(t, "snapshot", dst+"/user@theirs")
	require.Error(t, m.command("systemctl", "start", user).Run())
	require.Equal(t, "failed", m.show(t, user, "ActiveState"), m.journal(user))

	o = m.run(t, binary, "replicate", "uninstall")
	require.Contains(t, o, "removed /etc/systemd/system/zxfer-replicate-timed.timer")
	require.NotContains(t, m.run(t, "systemctl", "list-timers", "--all"), "zxfer")
	left, err := filepath.Glob("/etc/systemd/system/zxfer-replicate-*.*r")
	require.NoError(t, err)
	require.Empty(t, left)
	requireNoLeftovers(t)
}
