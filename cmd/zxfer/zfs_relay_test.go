package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

const (
	gammaPool = "zxgamma"
	gammaConf = "/tmp/zxfer-lab-gamma/ssh_config" // reaches gamma
)

// gamma adds a third host to the lab, which beta reaches over its own link, with sshd and the pool
// zxgamma.
func gamma(t *testing.T) {
	t.Helper()
	lab(t)
	script := `set -e
mkdir -p $G
ip netns add zxgamma
ip link add zxc0 netns zxgamma type veth peer name zxb1 netns zxbeta
ip -n zxgamma addr add 10.78.0.2/24 dev zxc0
ip -n zxbeta addr add 10.78.0.1/24 dev zxb1
ip -n zxgamma link set lo up; ip -n zxgamma link set zxc0 up; ip -n zxbeta link set zxb1 up
{ cat $LAB/known_hosts; printf 'gamma,10.78.0.2 '; cat $LAB/host_key.pub; } >$G/known_hosts
{ printf 'Host gamma\n HostName 10.78.0.2\n'; sed "s#$LAB/known_hosts#$G/known_hosts#" $LAB/ssh_config; } >$G/ssh_config
sed "s#10.77.0.2#10.78.0.2#; s#$LAB/beta#$G#" $LAB/beta/sshd_config >$G/sshd_config
ip netns exec zxgamma /usr/sbin/sshd -f $G/sshd_config -E $G/sshd.log
truncate -s 1g $LAB/disk/gamma
zpool create -O mountpoint=$G/pool zxgamma $LAB/disk/gamma
`
	t.Cleanup(func() {
		_ = exec.Command("sh", "-c", `zpool destroy -f zxgamma; kill $(cat $0/sshd.pid); ip netns del zxgamma; rm -rf $0 $1/disk/gamma`, filepath.Dir(gammaConf), labDir).Run()
	})
	run(t, "env", "LAB="+labDir, "G="+filepath.Dir(gammaConf), "sh", "-c", script)
}

// onBeta prepares zxfer replicate run of a job on beta with its clock at a time. It reaches gamma.
func (r *replication) onBeta(t *testing.T, at time.Time, verb string, args ...string) *process {
	t.Helper()
	argv := append([]string{"replicate", verb, "-c", r.file, "--state-dir", r.state}, args...)
	p := prepareProcess(t, []string{"ZXFER_TEST_NOW=" + strconv.FormatInt(at.Unix(), 10), "ZXFER_RSH=ssh -F " + gammaConf},
		filepath.Join(filepath.Dir(alphaBin), "zxfer-at"), argv...)
	i := slices.Index(p.cmd.Args, alphaPool)
	p.cmd.Args[i] = betaPool // the namespace of beta
	return p
}

// TestZFSRelay sends a tree from A (alpha) to B (beta) with one job, and from B to C (gamma) with another.
// The encrypted dataset is sent raw, and neither B nor C has its key. Each host has its own retention. B
// or C are not reachable for a while, a receive into B is interrupted, and B diverges.
func TestZFSRelay(t *testing.T) {
	gamma(t)
	src, dst := dataset(t)
	last := gammaPool + "/last"
	zfsCmd(t, "create", src)
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, src+"/e")
	textA := `
[[job]]
name = "home"
source = %q
recursive = true
retries = 0
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 3 }
%s
[[job.target]]
name = "b"
to = "beta:%s"
retention = { last = 2 }
sent_on_by = ["offsite"]
`
	a := newReplication(t, fmt.Sprintf(textA, src, "", dst))
	b := newReplication(t, fmt.Sprintf(`
[[job]]
name = "offsite"
source = %q
recursive = true
schedule = "*:01"
snapshots = { received_from = "home:b" }
[[job.target]]
name = "c"
to = "gamma:%s"
retention = { last = 12 }
`, dst, last))
	now, both := time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC), []string{"", "/e"}
	write := func(n int64) {
		now = now.Add(time.Hour)
		for _, d := range both {
			fill(t, src+d, now.Format("15"), n)
		}
	}
	runA := func() { a.mustRunAt(t, now, "run", "home") }
	runB := func() cmdResult {
		p := b.onBeta(t, now.Add(time.Minute), "run", "offsite")
		p.start(t)
		o := p.wait(t)
		require.Equal(t, 0, o.code, o)
		return o
	}
	requireRelayed := func() {
		t.Helper()
		for _, d := range both {
			final := slices.Max(snapshotNames(t, src+d))
			require.Equal(t, guids(t, src+d)[final], guids(t, dst+d)[final], d)
			require.Equal(t, guids(t, src+d)[final], guids(t, last+d)[final], d)
			require.Contains(t, holdsOf(t, dst+d), dst+d+"@"+final+" zxfer:home:b")
			require.Contains(t, holdsOf(t, dst+d), dst+d+"@"+final+" zxfer:offsite:c")
			require.Contains(t, holdsOf(t, last+d), last+d+"@"+final+" zxfer:offsite:c")
		}
	}

	// Three hosts, three retention policies.
	a.mustRunAt(t, now, "check", "home")
	for range 4 {
		write(300 << 10)
		runA()
		runB()
		requireRelayed()
	}
	for _, d := range both {
		require.Len(t, guids(t, src+d), 3)
		require.Len(t, guids(t, dst+d), 2)
		require.Len(t, guids(t, last+d), 4)
	}
	id := map[string]string{"": value(t, last, "guid"), "/e": value(t, last+"/e", "guid")}
	for _, copied := range []string{dst, last} {
		require.Equal(t, "unavailable", value(t, copied+"/e", "keystatus"))
		require.Equal(t, "aes-256-gcm", value(t, copied+"/e", "encryption"))
		require.Equal(t, "on", value(t, copied, "readonly"))
	}

	// Each host keeps the holds of the other host's job.
	o := a.mustRunAt(t, now, "holds", "--gc")
	require.NotContains(t, o.stdout, "released", o)
	p := b.onBeta(t, now, "holds", "--gc")
	p.start(t)
	o = p.wait(t)
	require.Equal(t, 0, o.code, o)
	require.NotContains(t, o.stdout, "released", o)
	requireRelayed()

	// The relay does not run for a while. B keeps what C lacks.
	for range 4 {
		write(100 << 10)
		runA()
	}
	require.Len(t, guids(t, dst), 5, "the incremental source, and what C lacks")
	o = a.mustRunAt(t, now.Add(time.Minute), "prune", "-n", "home")
	t.Log(o)
	runB()
	requireRelayed()
	require.Len(t, guids(t, last), 8)

	// B is away.
	run(t, "sh", "-c", "kill $(cat "+labDir+"/beta/sshd.pid)")
	for range 5 {
		write(100 << 10)
		require.NotEqual(t, 0, a.runAt(t, now, "run", "home").code)
	}
	run(t, "ip", "netns", "exec", betaPool, "/usr/sbin/sshd", "-f", labDir+"/beta/sshd_config", "-E", labDir+"/beta/sshd.log")
	write(100 << 10)
	runA()
	runB()
	requireRelayed()

	// A receive into B runs, and is then interrupted, while the relay runs.
	write(48 << 20)
	a.write(t, fmt.Sprintf(textA, src, `transfer = { bandwidth = "512KiB" }`, dst))
	slow := a.startAt(t, now, "run", "home")
	receiving := func(argv []string) bool {
		return len(argv) > 1 && filepath.Base(argv[0]) == "zfs" && argv[1] == "receive"
	}
	require.Eventually(t, func() bool { return len(pidsOn(t, betaPool, receiving)) > 0 || slow.ended() }, testenv.Timeout(), 10*time.Millisecond)
	require.False(t, slow.ended(), "no receive was seen")
	runB()
	require.False(t, slow.ended(), "the receive ended too early")
	require.NoError(t, slow.cmd.Process.Kill())
	<-slow.done
	runB()
	a.write(t, fmt.Sprintf(textA, src, "", dst))
	now = now.Add(time.Hour)
	require.Eventually(t, func() bool { return len(pidsOn(t, betaPool, receiving)) == 0 }, testenv.Timeout(), 10*time.Millisecond)
	runA()
	runB()
	requireRelayed()

	// B diverges. The relay does not send the foreign snapshot, and job home reports it.
	zfsCmd(t, "snapshot", dst+"@foreign")
	o = runB()
	require.Contains(t, o.stdout+o.stderr, "1 snapshot of "+dst+" after @")
	require.NotContains(t, snapshotNames(t, last), "foreign")
	write(100 << 10)
	o = a.runAt(t, now, "run", "home")
	require.NotEqual(t, 0, o.code, o)
	require.Contains(t, o.stdout+o.stderr, "@foreign")
	runB()
	require.NotContains(t, snapshotNames(t, last), "foreign")
	zfsCmd(t, "destroy", dst+"@foreign")
	now = now.Add(time.Hour)
	runA()
	runB()
	requireRelayed()

	// Job home no longer confirms snapshots. The relay becomes late.
	a.write(t, fmt.Sprintf(textA, src, `holds = "source"`, dst))
	status := func() cmdResult {
		p := b.onBeta(t, now, "status", "offsite")
		p.start(t)
		return p.wait(t)
	}
	for range 2 {
		write(100 << 10)
		runA()
		runB()
		o = status()
		require.Equal(t, 0, o.code, o)
	}
	now = now.Add(time.Hour)
	o = status()
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stdout, "home:b has confirmed no new snapshot since ")
	require.Contains(t, o.stdout, `hint: that job needs holds = "both" or "target"`)
	a.write(t, fmt.Sprintf(textA, src, "", dst))
	write(100 << 10)
	runA()
	runB()
	requireRelayed()
	o = status()
	require.Equal(t, 0, o.code, o)

	// Nothing was sent in full twice, and the data is the same.
	for _, d := range both {
		require.Equal(t, id[d], value(t, last+d, "guid"))
	}
	zfsCmd(t, "load-key", "-L", "file://"+key, last+"/e")
	mount(t, last)
	mount(t, last+"/e")
	run(t, "diff", "-r", mountpoint(t, src), mountpoint(t, last)) // with e, which is mounted in both

	// A job on B that would take snapshots of the copy is refused.
	b.write(t, fmt.Sprintf("[[job]]\nname = \"own\"\nsource = %q\nsnapshots = { take = \"own-%%Y%%m%%dT%%H%%M%%SZ\" }\n", dst))
	p = b.onBeta(t, now, "run", "own")
	p.start(t)
	o = p.wait(t)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "is a copy that zxfer received")
	require.Contains(t, o.stderr, "received_from")
}

// TestZFSFollowRename renames datasets of the source, also into each other's names, and expects the copies
// to follow with a key that may do only this. A killed run is completed by the next one.
func TestZFSFollowRename(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	for _, d := range []string{"", "/a", "/a/x", "/b"} {
		zfsCmd(t, "create", src+d)
		fill(t, src+d, "f", 300<<10)
	}
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, src+"/e")
	zfsCmd(t, "create", src+"/e/in")
	text := `
[[job]]
name = "home"
source = %q
recursive = true
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
[[job.target]]
name = "far"
to = "beta:%s"
on_rename = "follow"
transfer = { rsh = %q }
`
	rsh, audit := restrictedKey(t, "--allow", "receive="+dst, "--allow", "follow="+dst, "--append-only")
	less, _ := restrictedKey(t, "--allow", "receive="+dst, "--append-only")
	r, now := newReplication(t, fmt.Sprintf(text, src, dst, rsh)), time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)
	r.mustRunAt(t, now, "run", "home")
	ids := func() map[string]string {
		out := map[string]string{}
		for _, line := range strings.Split(strings.TrimSpace(zfsCmd(t, "list", "-Hp", "-o", "name,guid", "-r", dst)), "\n") {
			name, guid, _ := strings.Cut(line, "\t")
			out[strings.TrimPrefix(name, dst)] = guid
		}
		return out
	}
	was := ids()

	// a and b exchange their names, a's descendant gets another one, and a descendant of an encryption
	// root is renamed.
	zfsCmd(t, "rename", src+"/a", src+"/t")
	zfsCmd(t, "rename", src+"/b", src+"/a")
	zfsCmd(t, "rename", src+"/t", src+"/b")
	zfsCmd(t, "rename", src+"/b/x", src+"/b/y")
	zfsCmd(t, "rename", src+"/e/in", src+"/e/out")
	now = now.Add(time.Hour)
	r.write(t, fmt.Sprintf(text, src, dst, less))
	o := r.runAt(t, now, "check", "home")
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stdout+o.stderr, "--allow follow="+dst)
	o = r.runAt(t, now, "run", "home")
	require.NotEqual(t, 0, o.code, o)
	require.Equal(t, was, ids())
	r.write(t, fmt.Sprintf(text, src, dst, rsh))
	now = now.Add(time.Hour)
	before := state(t)
	o = r.mustRunAt(t, now, "check", "home")
	require.Contains(t, o.stdout, "RENAMES "+dst+"/e/in to "+dst+"/e/out")
	require.Contains(t, o.stdout, "RENAMES "+dst+"/a to "+dst+"/b")
	require.Equal(t, before, state(t))
	r.mustRunAt(t, now, "run", "home")
	require.Equal(t, map[string]string{"": was[""], "/a": was["/b"], "/b": was["/a"], "/b/y": was["/a/x"], "/e": was["/e"], "/e/out": was["/e/in"]}, ids())
	for d := range ids() {
		require.Subset(t, guids(t, dst+d), guids(t, src+d), d)
	}
	requireSameFiles(t, src+"/b/y", dst+"/b/y")
	require.Contains(t, string(must(os.ReadFile(audit))), `admitted rename-copies: "`+dst+`/e/in" as "`+dst+`/e/out"`)

	// A mounted copy and one that would leave its encryption root keep their names.
	was = ids()
	mount(t, dst+"/a")
	zfsCmd(t, "rename", src+"/a", src+"/c")
	now = now.Add(time.Hour)
	o = r.runAt(t, now, "run", "home")
	require.NotEqual(t, 0, o.code, o)
	require.Contains(t, o.stdout+o.stderr, dst+"/a is mounted")
	require.Equal(t, was, ids())
	zfsCmd(t, "unmount", dst+"/a")
	now = now.Add(time.Hour)
	r.mustRunAt(t, now, "run", "home")
	require.Equal(t, was["/a"], ids()["/c"])

	// A run is killed after a rename, before it is recorded.
	zfsCmd(t, "rename", src+"/b", src+"/d")
	zfsCmd(t, "rename", src+"/d/y", src+"/d/z")
	was = ids()
	now = now.Add(time.Hour)
	p := r.startAt(t, now, "run", "home")
	require.Eventually(t, func() bool { return exec.Command("zfs", "list", dst+"/d").Run() == nil || p.ended() }, testenv.Timeout(), time.Millisecond)
	_ = p.cmd.Process.Kill()
	<-p.done
	t.Logf("killed at %v", ids())
	now = now.Add(time.Hour)
	r.mustRunAt(t, now, "run", "home")
	require.Equal(t, was["/b"], ids()["/d"])
	require.Equal(t, was["/b/y"], ids()["/d/z"])
	requireSameFiles(t, src+"/d/z", dst+"/d/z")
}
