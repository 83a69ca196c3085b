package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/heal"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/testenv"
)

// damagedJob is a job between two pools whose blocks can be damaged.
type damagedJob struct {
	source, target *damagedPool
	src, copied    string
	flags          []string
	sums           map[string]string // of the source's files, by path
}

func newDamagedJob(t *testing.T, name string, keys ...string) *damagedJob {
	t.Helper()
	j := &damagedJob{source: newDamagedPool(t, name), target: newDamagedPool(t, name+"copy"), sums: map[string]string{}}
	j.src, j.copied = j.source.pool+"/home", j.target.pool+"/home"
	zfsCmd(t, "create", j.src)
	for _, f := range []string{"one", "two", "three"} {
		fill(t, j.src, f, 1<<20)
		j.sums[f] = fileDigest(t, filepath.Join(mountpoint(t, j.src), f))
	}
	file := filepath.Join(t.TempDir(), "job.toml")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
%s
[job.snapshots]
take = "{job}-%%Y%%m%%dT%%H%%M%%SZ"
[[job.target]]
name = "t"
to = "beta:%s"
[metrics]
textfile = %q
`, j.src, strings.Join(keys, "\n"), j.copied, filepath.Join(t.TempDir(), "zxfer.prom"))), 0o600))
	j.flags = []string{"--config", file, "--state-dir", t.TempDir()}
	j.run(t)
	return j
}

func (j *damagedJob) zxfer(t *testing.T, argv ...string) cmdResult {
	t.Helper()
	return zxfer(t, append(argv, j.flags...)...)
}

// run runs the job with a new file to send.
func (j *damagedJob) run(t *testing.T) {
	t.Helper()
	fill(t, j.src, "new", 64<<10)
	o := j.zxfer(t, "replicate", "run", "home")
	require.Equal(t, 0, o.code, o)
}

// damage damages files of the source and of the copy, which have the same object numbers.
func (j *damagedJob) damage(t *testing.T, ofSource, ofCopy []string) {
	t.Helper()
	for _, f := range ofSource {
		j.source.markFile(t, j.src, filepath.Join(mountpoint(t, j.src), f))
	}
	for _, f := range ofCopy {
		j.target.mark(t, j.copied, objectNumber(t, filepath.Join(mountpoint(t, j.src), f)), "L0", 0)
	}
	j.source.damage(t)
	j.target.damage(t)
}

func (j *damagedJob) status(t *testing.T) *status.JobStatus {
	t.Helper()
	s := &status.Status{}
	o := j.zxfer(t, "replicate", "status", "--json")
	require.NoError(t, json.Unmarshal([]byte(o.stdout), s), o)
	require.Len(t, s.Jobs, 1)
	return s.Jobs[0]
}

// requireIntact expects that both sides have all files.
func (j *damagedJob) requireIntact(t *testing.T) {
	t.Helper()
	require.Contains(t, run(t, "zpool", "status", j.source.pool, j.target.pool), "No known data errors")
	zfsCmd(t, "mount", j.copied)
	for _, d := range []string{j.src, j.copied} {
		for f, want := range j.sums {
			require.Equal(t, want, fileDigest(t, filepath.Join(mountpoint(t, d), f)), f)
		}
	}
	zfsCmd(t, "unmount", j.copied)
	require.NotContains(t, zfsCmd(t, "list", "-H", "-r", "-t", "snapshot", "-o", "name", j.source.pool, j.target.pool), "zxfer-heal")
}

// paste runs a command of zxfer as a hint prints it.
func paste(t *testing.T, command string) cmdResult {
	t.Helper()
	argv, err := shellquote.Split(command)
	require.NoError(t, err)
	require.Equal(t, "zxfer", argv[0])
	return zxfer(t, argv[1:]...)
}

// TestZFSHealJob damages the source of a job, then its copy, then both. Status and metrics say
// that a copy can repair them, and the command of the hint repairs them.
func TestZFSHealJob(t *testing.T) {
	healLab(t)
	j := newDamagedJob(t, "zxjob")
	for i, side := range []struct {
		ofSource, ofCopy []string
		to, copy         string
	}{{[]string{"one"}, nil, "", "beta:" + j.copied}, {nil, []string{"two"}, "t", j.src}} {
		j.damage(t, side.ofSource, side.ofCopy)
		j.run(t)
		s := j.status(t)
		require.Equal(t, status.Damaged, s.State)
		require.Len(t, s.Pools, 2)
		require.Equal(t, []string{status.Damaged, status.OK}, []string{s.Pools[i].State, s.Pools[1-i].State})
		p := s.Pools[i]
		require.Equal(t, []any{side.to, heal.RepairFull, []string{side.copy}}, []any{p.To, p.Repair, p.Copies}, p)
		require.Positive(t, p.Errors)
		o := j.zxfer(t, "replicate", "metrics", "--stdout")
		require.Contains(t, o.stdout, fmt.Sprintf("zxfer_replicate_pool_repairable{job=\"home\",target=%q,pool=%q} 1\n", side.to, p.Pool))
		o = j.zxfer(t, "replicate", "status")
		require.Contains(t, o.stdout, "; a copy can repair them\n")
		before := listVersions(t, j.source.pool, j.target.pool)
		o = j.zxfer(t, "heal", "-n", "--job", "home")
		require.Equal(t, 0, o.code, o)
		require.Contains(t, o.stdout, ": would be healed from "+side.copy)
		require.Equal(t, before, listVersions(t, j.source.pool, j.target.pool))

		hint := regexp.MustCompile(`hint: to repair them from \S+: (.*)`).FindStringSubmatch(j.zxfer(t, "replicate", "status").stdout)
		require.NotNil(t, hint)
		o = paste(t, hint[1])
		require.Equal(t, 0, o.code, o)
		require.Equal(t, before, listVersions(t, j.source.pool, j.target.pool))
		j.requireIntact(t)
		j.run(t)
		require.Equal(t, status.OK, j.status(t).State)
	}

	// Each side lacks a block that the other has. The copy's stream ends before the second file,
	// so the source can be healed only after the copy.
	j.damage(t, []string{"two"}, []string{"one"})
	o := j.zxfer(t, "heal", "--json", "--job", "home")
	require.Equal(t, 0, o.code, o)
	var r heal.JobReport
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), o)
	require.Equal(t, "done", r.Outcome)
	require.Len(t, r.Heals, 2)
	require.Contains(t, o.stderr, "healing again")
	j.requireIntact(t)
	require.Contains(t, j.zxfer(t, "heal", "--job", "home").stdout, "beta:"+j.copied+": no known errors")
}

// TestZFSHealJobKilled kills a heal while the good blocks arrive on the copy. The same command
// completes it and leaves nothing behind.
func TestZFSHealJobKilled(t *testing.T) {
	healLab(t)
	j := newDamagedJob(t, "zxjobkill", `transfer = { bandwidth = "2MiB", buffer = "1MiB" }`)
	fill(t, j.src, "last", 12<<20)
	j.sums["last"] = fileDigest(t, filepath.Join(mountpoint(t, j.src), "last"))
	j.run(t)
	// All blocks, so that the heal is killed before the last one arrives.
	j.target.markMany(t, j.copied, objectNumber(t, filepath.Join(mountpoint(t, j.src), "last")), 96)
	j.damage(t, nil, nil)
	before := listVersions(t, j.source.pool, j.target.pool)
	p := start(t, append([]string{"heal", "--job", "home"}, j.flags...)...)
	isHealingReceive := func(argv []string) bool { return isZFS("receive")(argv) && slices.Contains(argv, "-c") }
	require.Eventually(t, func() bool { return len(pidsOn(t, betaPool, isHealingReceive)) > 0 }, testenv.Timeout(), 20*time.Millisecond, "%s", p.stderr)
	waitReceived(t, p, betaPool, isHealingReceive, 1<<20)
	require.NoError(t, p.cmd.Process.Kill())
	require.Equal(t, -1, p.wait(t).code)
	requireNoLeftovers(t)
	require.NotEqual(t, before, listVersions(t, j.source.pool, j.target.pool), "the heal was killed before its first change")
	o := j.zxfer(t, "heal", "--job", "home")
	require.Equal(t, 0, o.code, o)
	require.Equal(t, before, listVersions(t, j.source.pool, j.target.pool))
	j.requireIntact(t)
}

// TestZFSHealAfterDrill damages a copy, and expects that the commands of the drill's hint repair
// it from its source.
func TestZFSHealAfterDrill(t *testing.T) {
	healLab(t)
	j := newDamagedJob(t, "zxdrillheal")
	j.damage(t, nil, []string{"two"})
	o := j.zxfer(t, "replicate", "drill", "home")
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stdout+o.stderr, "1 of its files cannot be read")
	scrub := regexp.MustCompile(`scrub its pool: (ssh .* beta zpool scrub -w \S+)`).FindStringSubmatch(o.stdout + o.stderr)
	require.NotNil(t, scrub, o)
	heal := regexp.MustCompile(`then repair it from its source: (.*)`).FindStringSubmatch(o.stdout + o.stderr)
	require.NotNil(t, heal, o)
	require.True(t, strings.HasPrefix(heal[1], "zxfer heal --job home --config "), heal[1])
	out, err := pasteHint(t, scrub[1])
	require.NoError(t, err, out)
	o = paste(t, heal[1])
	require.Equal(t, 0, o.code, o)
	j.requireIntact(t)
	o = j.zxfer(t, "replicate", "drill", "home")
	require.Equal(t, 0, o.code, o)
}

// TestZFSHealUnit runs the script and the service of docs/zed in a systemd with all restrictions of
// the service, after a scrub with errors. The end of the service's own scrub does not start a
// second heal, also if errors remain.
func TestZFSHealUnit(t *testing.T) {
	m := bootSystemd(t)
	if oldZFS(t) {
		t.Skip("needs OpenZFS 2.2")
	}
	const binary, config, stateDir, unit = "/usr/bin/zxfer", "/etc/zxfer/replicate.toml", "/var/lib/zxfer", "/etc/systemd/system/zxfer-heal@.service"
	j := newDamagedJob(t, "zxunit")
	require.NoError(t, installSelf(t, binary))
	t.Cleanup(func() { _ = os.Remove(binary); _ = os.RemoveAll(stateDir) })
	text, err := os.ReadFile(j.flags[1])
	require.NoError(t, err)
	installFile(t, config, strings.Replace(string(text), "beta:", "", 1), 0o644)
	sample := filepath.Join(testenv.Root(t), "docs", "zed")
	service, err := os.ReadFile(filepath.Join(sample, "zxfer-heal@.service"))
	require.NoError(t, err)
	installFile(t, unit, string(service), 0o644)
	require.NoError(t, os.MkdirAll(stateDir, 0o755))
	m.run(t, "systemctl", "daemon-reload")
	script := func() int {
		cmd := m.command("env", "ZEVENT_SUBCLASS=scrub_finish", "ZEVENT_POOL="+j.source.pool, filepath.Join(sample, "scrub_finish-zxfer.sh"))
		out, err := cmd.CombinedOutput()
		require.Empty(t, string(out), "%v", err)
		return cmd.ProcessState.ExitCode()
	}
	name := "zxfer-heal@" + j.source.pool + ".service"
	ended := func() (state string) {
		require.Eventually(t, func() bool {
			state = m.show(t, name, "ActiveState")
			return state == "inactive" || state == "failed"
		}, testenv.Timeout(), time.Second)
		return state
	}
	require.Equal(t, 3, script(), "no errors")
	require.Equal(t, "inactive", ended())

	j.damage(t, []string{"two"}, nil)
	require.Equal(t, 0, script())
	require.Equal(t, "inactive", ended(), m.journal(name))
	require.Contains(t, m.journal(name), j.src+": blocks were healed from "+j.copied)
	j.requireIntact(t)
	require.Equal(t, 3, script(), "the event of the scrub that healed")

	// No side has the block. The failed service remains loaded, so that its start limit applies.
	j.damage(t, []string{"three"}, []string{"three"})
	require.Equal(t, 0, script())
	require.Equal(t, "failed", ended())
	require.Equal(t, "exit-code", m.show(t, name, "Result"))
	require.Contains(t, m.journal(name), "  not healed  ")
	_ = script() // as after the scrub of that heal
	require.Eventually(t, func() bool { return strings.Contains(m.journal(name), "Start request repeated too quickly") }, testenv.Timeout(), time.Second)
}
