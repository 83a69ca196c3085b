package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/testenv"
)

// TestZFSPause pauses the transfers of a job for five runs. The source is snapshotted and pruned
// meanwhile, and the run after resume sends an increment. A complete pause takes no snapshot.
func TestZFSPause(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "large", 24<<20)
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
schedule = "hourly"
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 2 }
[[job.target]]
name = "far"
to = "beta:%s"
retention = { last = 3 }
`, src, dst))
	base := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	hour := func(n int) time.Time { return base.Add(time.Duration(n) * time.Hour) }
	name := func(i int) string { return "home-" + hour(i).Format("20060102T150405Z") }
	r.mustRunAt(t, base, "run", "home")
	require.Equal(t, []string{name(0)}, snapshotNames(t, dst))

	o := r.mustRunAt(t, hour(0), "pause", "--transfers-only", "--for", "5h30m", "--reason", "new switch", "home")
	require.Contains(t, o.stdout, "home: transfers paused until ")
	for i := 1; i <= 5; i++ {
		fill(t, src, "small", 1<<20)
		o = r.mustRunAt(t, hour(i), "run", "--service", "home")
		require.Contains(t, o.stdout, "new switch")
	}
	require.Equal(t, []string{name(0)}, snapshotNames(t, dst), "nothing was sent or destroyed")
	require.Equal(t, []string{name(0), name(4), name(5)}, snapshotNames(t, src), "the incremental source and the last two")
	o = r.mustRunAt(t, hour(5).Add(29*time.Minute), "status")
	require.Contains(t, o.stdout, "transfers paused until ")
	require.NotContains(t, o.stdout, "LATE")

	r.mustRunAt(t, hour(6), "run", "--service", "home")
	run := r.lastRun(t, "home")
	require.Empty(t, run.Paused, "the pause has ended")
	require.Less(t, run.Targets[0].Bytes, uint64(8<<20), "an increment")
	require.Zero(t, run.Targets[0].Datasets[0].Full)
	require.Equal(t, []string{name(4), name(5), name(6)}, snapshotNames(t, dst))
	requireSameFiles(t, src, dst)

	// A damaged state does not end a pause.
	r.mustRunAt(t, hour(6), "pause", "home")
	state := filepath.Join(r.state, "home", "state.json")
	require.NoError(t, os.Rename(state, state+".old"))
	require.NoError(t, os.WriteFile(state, []byte("{"), 0o600))
	r.mustRunAt(t, hour(7), "run", "--service", "home")
	require.Equal(t, 3, r.runAt(t, hour(7), "run", "home").code)
	require.NotContains(t, snapshotNames(t, src), name(7))
	require.NoError(t, os.Rename(state+".old", state))
	r.mustRunAt(t, hour(8), "resume", "home")
	r.mustRunAt(t, hour(8), "run", "home")
	require.Contains(t, snapshotNames(t, dst), name(8))
}

// TestZFSPauseWindow expects that a transfer stops when a bandwidth window of 0 begins, without a
// failure, and that a run after the window resumes it.
func TestZFSPauseWindow(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "large", 64<<20)
	job := func(limit string) string {
		return fmt.Sprintf(`
[[job]]
name = "home"
source = %q
schedule = "hourly"
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
[job.transfer]
%s
bandwidth_window = [{ from = "08:00", to = "18:00", bandwidth = 0 }]
[[job.target]]
name = "far"
to = "beta:%s"
`, src, limit, dst)
	}
	r := newReplication(t, job(`bandwidth = "512KiB"`))
	eight := time.Date(2026, 11, 1, 8, 0, 0, 0, time.Local)
	o := r.mustRunAt(t, eight.Add(-30*time.Second), "run", "--service", "home")
	require.Contains(t, o.stdout, "no transfers until 18:00 (bandwidth_window)")
	run := r.lastRun(t, "home")
	require.Equal(t, outcome.Done, run.Outcome, "the snapshot")
	require.Empty(t, run.Failures())
	started := run.Targets[0].Bytes > 0
	if started {
		token := strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "receive_resume_token", dst))
		require.NotEqual(t, "-", token, "no state to resume")
	}
	r.mustRunAt(t, eight.Add(time.Hour), "run", "--service", "home")
	require.Zero(t, r.lastRun(t, "home").Targets[0].Bytes)
	o = r.mustRunAt(t, eight.Add(2*time.Hour), "status", "home")
	require.Contains(t, o.stdout, "no transfers to far until 2026-11-01 18:00:00")

	r.write(t, job(""))
	r.mustRunAt(t, eight.Add(10*time.Hour), "run", "--service", "home")
	run = r.lastRun(t, "home")
	require.Equal(t, 1, run.Targets[0].Sent)
	if started {
		require.Less(t, run.Targets[0].Bytes, uint64(64<<20), "the run sent data again")
	}
	requireSameFiles(t, src, dst)
}

// TestZFSPauseUnits expects that the unit of a paused job succeeds and does nothing, and that a unit
// sends mail outside of its restrictions, also if the run was killed.
func TestZFSPauseUnits(t *testing.T) {
	m := bootSystemd(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/a")
	const binary, config, stateDir, spool = "/usr/local/bin/zxfer", "/etc/zxfer/replicate.toml", "/var/lib/zxfer", "/var/spool/zxfer-test"
	require.NoError(t, installSelf(t, binary))
	require.NoError(t, os.MkdirAll(spool, 0o700))
	t.Cleanup(func() { _ = os.Remove(binary); _ = os.RemoveAll(stateDir); _ = os.RemoveAll(spool) })
	// As postfix's sendmail does, it writes to /var/spool, which is read-only in the unit.
	installFile(t, "/usr/local/sbin/test-sendmail", "#!/bin/sh\nexec cat >"+spool+"/$$\n", 0o755)
	job := func(to, before string) string {
		return fmt.Sprintf(`
[notify]
mail = ["root"]
sendmail = ["/usr/local/sbin/test-sendmail", "-t", "-i"]
[[job]]
name = "local"
source = "%s/a"
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
target = [{ name = "near", to = "%s" }]
%s
`, src, to, before)
	}
	installFile(t, config, job("nosuchpool/a", ""), 0o644)
	m.run(t, binary, "replicate", "install")
	t.Cleanup(func() { _ = m.command(binary, "replicate", "uninstall").Run() })
	const unit = "zxfer-replicate-local.service"
	mails := func() (all []string) {
		names, err := filepath.Glob(spool + "/*")
		require.NoError(t, err)
		for _, name := range names {
			all = append(all, fileText(name))
			require.NoError(t, os.Remove(name))
		}
		return all
	}
	require.Error(t, m.command("systemctl", "start", unit).Run())
	got := mails()
	require.Len(t, got, 1, m.journal(unit))
	require.Contains(t, got[0], "nosuchpool")

	require.NoError(t, os.WriteFile(config, []byte(job(src+"/copy", "")), 0o644))
	m.run(t, binary, "replicate", "pause", "--reason", "new disks", "local")
	m.run(t, "systemctl", "start", unit)
	require.Equal(t, "success", m.show(t, unit, "Result"), m.journal(unit))
	require.Contains(t, m.journal(unit), "paused until resume (new disks, by root): nothing done")
	require.Empty(t, mails())

	m.run(t, binary, "replicate", "resume", "local")
	m.run(t, "systemctl", "start", unit)
	got = mails()
	require.Len(t, got, 1, m.journal(unit))
	require.Contains(t, got[0], "works again")

	require.NoError(t, os.WriteFile(config, []byte(job(src+"/copy", `before = [{ command = ["/bin/sh", "-c", "touch /var/lib/zxfer/started; sleep 1000"], timeout = "20m" }]`)), 0o644))
	m.run(t, "systemctl", "start", "--no-block", unit)
	require.Eventually(t, func() bool { _, err := os.Stat(stateDir + "/started"); return err == nil }, testenv.Timeout(), 200*time.Millisecond)
	m.run(t, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
	require.Eventually(t, func() bool { got = mails(); return len(got) > 0 }, testenv.Timeout(), 200*time.Millisecond, m.journal(unit))
	require.Contains(t, got[0], "the run was killed: signal")
	m.run(t, "systemctl", "stop", unit)
}
