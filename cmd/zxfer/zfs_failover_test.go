package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/testenv"
)

// failoverLab is the lab with mounts as on two computers: programs of alpha share the mounts of this
// test, and programs of beta share the mounts of beta's sshd.
type failoverLab struct {
	*replication
	src, dst, mountpoint string
}

func newFailoverLab(t *testing.T, mountpoint string) *failoverLab {
	t.Helper()
	lab(t)
	t.Cleanup(func() {
		for _, pool := range []string{alphaPool, betaPool} {
			require.NotContains(t, zfsCmd(t, "list", "-Ho", "name", "-r", pool), strings.ToLower(t.Name()), "the next tests would see its mounts")
		}
	})
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "recordsize=1M", "-o", "mountpoint="+mountpoint, src)
	zfsCmd(t, "create", src+"/child")
	fill(t, src+"/child", "large", 2<<20) // blocks that need zfs send -L in both directions
	return &failoverLab{newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
mount_below = ["/tmp"]
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
[[job.target]]
name = "near"
to = "beta:%s"
`, src, dst)), src, dst, mountpoint}
}

// onAlpha returns a command of alpha with the mounts of this test.
func (l *failoverLab) onAlpha(verb string, args ...string) []string {
	return slices.Concat([]string{"nsenter", "--net=/run/netns/" + alphaPool, "env", "PATH=" + labDir + "/bin:/usr/sbin:/usr/bin:/sbin:/bin", "ZXFER_RSH=ssh -F " + labDir + "/ssh_config",
		alphaBin, "replicate", verb, "-c", l.file, "--state-dir", l.state}, args)
}

// onBeta returns a command with the mounts and the network of beta.
func onBeta(t *testing.T, argv ...string) []string {
	t.Helper()
	pid, err := os.ReadFile(labDir + "/beta/sshd.pid")
	require.NoError(t, err)
	return append([]string{"nsenter", "-t", strings.TrimSpace(string(pid)), "-m", "-n"}, argv...)
}

func result(cmd *exec.Cmd) cmdResult {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the caller checks its exit code
	return cmdResult{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func (l *failoverLab) must(t *testing.T, verb string, args ...string) cmdResult {
	t.Helper()
	argv := l.onAlpha(verb, args...)
	o := result(exec.Command(argv[0], argv[1:]...))
	require.Equal(t, 0, o.code, "%s: %s", verb, o)
	return o
}

// writableSides returns the pools whose dataset is writable.
func (l *failoverLab) writableSides(t *testing.T) (pools []string) {
	t.Helper()
	for _, d := range []string{l.src, l.dst} {
		out, err := exec.Command("zfs", "get", "-Hp", "-o", "value", "readonly", d).Output()
		if err == nil && strings.TrimSpace(string(out)) == "off" {
			pools = append(pools, strings.SplitN(d, "/", 2)[0])
		}
	}
	return pools
}

// sentBytes returns the bytes that a switch sent.
func sentBytes(t *testing.T, o cmdResult) uint64 {
	t.Helper()
	var f failover.Result
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &f), o)
	return f.Bytes
}

// TestZFSSwitchDatabase moves a database between two hosts and back. Each host starts it with all
// rows, and only increments are sent.
func TestZFSSwitchDatabase(t *testing.T) {
	a := newApplications(t)
	l := newFailoverLab(t, a.root+"/srv")
	require.NoError(t, os.Mkdir(a.root+"/srv/data", 0o755))
	serve := func(socket string, within ...string) (stop func()) {
		argv := slices.Concat(within, []string{"chroot", a.root, "/usr/sbin/mariadbd", "--no-defaults", "--user=root", "--datadir=/srv/data", "--socket=" + socket, "--pid-file=" + socket + ".pid",
			"--skip-networking", "--skip-grant-tables", "--innodb-buffer-pool-size=16M", "--loose-innodb-buffer-pool-size-max=64M", "--innodb-log-file-size=8M", "--lc-messages-dir=/usr/share/mysql/english"})
		cmd := exec.Command(argv[0], argv[1:]...)
		log := &lockedBuffer{}
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = log, log, time.Second
		require.NoError(t, cmd.Start())
		stopped := false
		stop = func() {
			if stopped {
				return
			}
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			timer := time.AfterFunc(testenv.Timeout(), func() { _ = cmd.Process.Kill() })
			defer timer.Stop()
			require.NoError(t, cmd.Wait(), "%s", log)
		}
		t.Cleanup(stop)
		return stop
	}
	sql := func(socket, statement string) string {
		return strings.TrimSpace(result(a.command("0:0", "/usr/bin/mariadb", "--no-defaults", "--socket="+socket, "-BN", "-e", statement)).stdout)
	}
	waitRows := func(socket, want string) {
		t.Helper()
		require.Eventually(t, func() bool { return sql(socket, "SELECT COUNT(*), SUM(n) FROM d.i") == want }, testenv.Timeout(), 100*time.Millisecond, "%s", sql(socket, "SELECT COUNT(*), SUM(n) FROM d.i"))
	}
	insert := func(socket string, from, to int) {
		for n := from; n <= to; n++ {
			sql(socket, fmt.Sprintf("INSERT INTO d.i VALUES (%d, REPEAT(UUID(), 20))", n))
		}
	}
	stop := serve("/run/alpha.sock")
	require.Eventually(t, func() bool { return sql("/run/alpha.sock", "SELECT 1") == "1" }, testenv.Timeout(), 100*time.Millisecond)
	sql("/run/alpha.sock", "CREATE DATABASE d; CREATE TABLE d.i (n INT PRIMARY KEY, t TEXT) ENGINE=InnoDB")
	insert("/run/alpha.sock", 1, 20)
	l.must(t, "run", "home")
	full := l.lastRun(t, "home").Targets[0].Bytes
	insert("/run/alpha.sock", 21, 30)

	// The database still uses the source.
	argv := l.onAlpha("switch", "home")
	o := result(exec.Command(argv[0], argv[1:]...))
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "the source is writable again")
	require.Equal(t, []string{alphaPool}, l.writableSides(t))
	insert("/run/alpha.sock", 31, 40)
	waitRows("/run/alpha.sock", "40\t820")
	stop()

	t.Logf("%s", l.must(t, "switch", "-n", "home").stdout)
	o = l.must(t, "switch", "--json", "home")
	there := sentBytes(t, o)
	require.Equal(t, []string{betaPool}, l.writableSides(t))
	require.Empty(t, mountedAt(t, l.src))
	stop = serve("/run/beta.sock", onBeta(t)...)
	waitRows("/run/beta.sock", "40\t820")
	insert("/run/beta.sock", 41, 50)
	l.must(t, "run", "home")
	reverse := l.lastRun(t, "home").Targets[0].Bytes
	require.Contains(t, l.must(t, "status").stdout, "home: beta:"+l.dst+", the source since ")
	insert("/run/beta.sock", 51, 60)
	waitRows("/run/beta.sock", "60\t1830")
	stop()

	o = l.must(t, "switch", "--json", "home")
	back := sentBytes(t, o)
	require.Equal(t, []string{alphaPool}, l.writableSides(t))
	require.Equal(t, a.root+"/srv", mountedAt(t, l.src))
	stop = serve("/run/alpha2.sock")
	waitRows("/run/alpha2.sock", "60\t1830")
	insert("/run/alpha2.sock", 61, 61)
	stop()
	l.must(t, "run", "home")
	t.Logf("bytes: full %d, switch %d, reverse run %d, switch back %d", full, there, reverse, back)
	require.Less(t, max(there, reverse, back), full*3/4) // with OpenZFS 2.1, MariaDB rewrites half of its files
	require.NotContains(t, l.must(t, "status").stdout, "the source since")
}

// TestZFSPromoteCopy promotes a copy while the source's host is down. When it returns, its job
// refuses to overwrite the copy, and it becomes a copy.
func TestZFSPromoteCopy(t *testing.T) {
	dir := t.TempDir()
	l := newFailoverLab(t, dir+"/data")
	require.NoError(t, os.WriteFile(l.mountpoint+"/file", []byte("one"), 0o600))
	l.must(t, "run", "home")
	// beta has another job file, which pulls.
	text, err := os.ReadFile(l.file)
	require.NoError(t, err)
	pull := &replication{filepath.Join(dir, "beta.toml"), filepath.Join(dir, "beta")}
	pull.write(t, strings.NewReplacer(`source = "`, `source = "alpha:`, "beta:", "").Replace(string(text)))
	betaBin := filepath.Join(dir, "zxfer")
	require.NoError(t, installSelf(t, betaBin))
	beta := func(ssh, verb string, args ...string) cmdResult {
		argv := onBeta(t, slices.Concat([]string{"env", "PATH=" + labDir + "/bin:/usr/sbin:/usr/bin:/sbin:/bin", "ZXFER_RSH=" + ssh, betaBin, "replicate", verb, "-c", pull.file, "--state-dir", pull.state}, args)...)
		return result(exec.Command(argv[0], argv[1:]...))
	}
	ssh := "ssh -F " + labDir + "/ssh_config"
	o := beta(ssh, "promote", "home")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "two sides would be writable")
	require.Contains(t, o.stderr, "zxfer replicate switch")

	down := "false" // no ssh reaches alpha
	other := dir + "/other"
	o = beta(down, "promote", "-n", "--mountpoint", other, "home")
	require.Equal(t, 0, o.code, o)
	t.Logf("%s", o.stdout)
	require.NotContains(t, l.writableSides(t), betaPool)
	argv := onBeta(t, "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", betaBin, "replicate", "promote", "-n", "--mountpoint", "none", "-c", dir+"/missing", "--state-dir", pull.state, "home", l.dst)
	o = result(exec.Command(argv[0], argv[1:]...))
	require.Equal(t, 0, o.code, o)
	require.Contains(t, o.stdout, "would make "+l.dst+" the source", "the job file is not there")
	// The directory of the mountpoint is still in use in this lab, as on a host with other data.
	o = beta(down, "promote", "home")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "--mountpoint PATH")
	o = beta(down, "promote", "--mountpoint", other, "home")
	require.Equal(t, 0, o.code, o)
	read := func() string {
		argv := onBeta(t, "cat", other+"/file")
		return run(t, argv...)
	}
	require.Equal(t, "one", read())
	run(t, onBeta(t, "sh", "-c", "echo two >"+other+"/file; echo new >"+other+"/child/new")...)
	o = beta(down, "promote", "home")
	require.Equal(t, 0, o.code, o)
	require.Contains(t, o.stdout, "nothing to do")

	// The same job file works on beta: it takes snapshots of the copy.
	o = beta(down, "run", "home")
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stdout+o.stderr, "former-source")
	require.Len(t, snapshotNames(t, l.dst), 2, "%s", o)

	// alpha returns. Its job changes nothing on beta. Only its first run takes a snapshot, which waits for no target.
	copied := snapshotNames(t, l.dst)
	argv = l.onAlpha("run", "home")
	o = result(exec.Command(argv[0], argv[1:]...))
	require.Equal(t, 1, o.code, o)
	before := snapshotNames(t, l.src)
	o = result(exec.Command(argv[0], argv[1:]...))
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "the copy became the source")
	require.Contains(t, o.stderr, "zxfer replicate switch home")
	o = zxfer(t, "send", "-R", "--rotate", "--snapshot=", l.src, "beta:"+l.dst)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "became the source by job")
	require.Equal(t, before, snapshotNames(t, l.src))
	require.Equal(t, copied, snapshotNames(t, l.dst))

	require.NoError(t, os.WriteFile(l.mountpoint+"/lost", []byte("lost"), 0o600))
	o = beta(ssh, "switch", "home")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "data written to "+l.src)
	o = beta(ssh, "switch", "--rollback", "home")
	require.Equal(t, 0, o.code, o)
	require.Equal(t, []string{betaPool}, l.writableSides(t))
	o = beta(ssh, "run", "home")
	require.Equal(t, 0, o.code, o)
	require.Equal(t, snapshotNames(t, l.dst), snapshotNames(t, l.src))
	requireNoLeftovers(t)
}

// TestZFSPromoteLink promotes a copy in which the source replaced the directory of a child by a link to a
// directory of this host. Nothing may be mounted there, also not at the next boot.
func TestZFSPromoteLink(t *testing.T) {
	lab(t)
	dir := t.TempDir()
	src, dst := dataset(t)
	l := &failoverLab{newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
mount_below = ["/tmp"]
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
[[job.target]]
name = "near"
to = %q
`, src, dst)), src, dst, dir + "/data"}
	zfsCmd(t, "create", "-o", "mountpoint="+l.mountpoint, src)
	zfsCmd(t, "create", src+"/child")
	zfsCmd(t, "unmount", src+"/child")
	victim := dir + "/etc"
	require.NoError(t, os.Mkdir(victim, 0o700))
	require.NoError(t, os.WriteFile(victim+"/shadow", []byte("mine"), 0o600))
	require.NoError(t, os.Remove(l.mountpoint+"/child"))
	require.NoError(t, os.Symlink(victim, l.mountpoint+"/child"))
	l.must(t, "run", "home")
	argv := l.onAlpha("promote", "--source-alive", "--mountpoint", dir+"/copy", "home")
	o := result(exec.Command(argv[0], argv[1:]...))
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, dst+"/child is not mounted at "+dir+"/copy/child: "+dir+"/copy/child is a symbolic link in a ZFS filesystem")
	require.Contains(t, o.stderr, "hint: check where it leads, then choose another mountpoint: zfs set mountpoint=/PATH "+dst+"/child")
	require.FileExists(t, victim+"/shadow")
	require.Equal(t, "noauto", strings.TrimSpace(zfsCmd(t, "get", "-Ho", "value", "canmount", dst+"/child")))
	zfsCmd(t, "set", "mountpoint="+dir+"/child", dst+"/child")
	o = l.must(t, "promote", "--source-alive", "--mountpoint", dir+"/copy", "home")
	require.Equal(t, "yes", strings.TrimSpace(zfsCmd(t, "get", "-Ho", "value", "mounted", dst+"/child")), o)
	for _, d := range []string{dst, dst + "/child"} {
		require.Contains(t, run(t, "findmnt", "-n", "-o", "OPTIONS", "-S", d), "nosuid,nodev")
		require.Equal(t, "off off", strings.Join(strings.Fields(zfsCmd(t, "get", "-Ho", "value", "setuid,devices", d)), " "), "also at the next boot")
	}
	require.FileExists(t, victim+"/shadow")
}

// TestZFSSwitchRotate renames a former source with newer data. Its holds are listed as stale, and only
// holds --gc releases them. In the other direction, the job reports to the same check, whose URL is not printed.
func TestZFSSwitchRotate(t *testing.T) {
	l := newFailoverLab(t, t.TempDir()+"/data")
	text, err := os.ReadFile(l.file)
	require.NoError(t, err)
	ping := filepath.Join(t.TempDir(), "ping")
	l.write(t, string(text)+fmt.Sprintf("[job.notify]\nping_file = %q\n", ping))
	l.must(t, "run", "home")
	l.must(t, "promote", "--source-alive", "--mountpoint", "none", "home")
	require.NoError(t, os.WriteFile(l.mountpoint+"/lost", []byte("lost"), 0o600))
	require.NoError(t, os.WriteFile(ping, []byte("http://127.0.0.1:1/SECRET\n"), 0o600))
	l.must(t, "switch", "--rotate", "home")
	o := l.must(t, "run", "home")
	require.Contains(t, o.stdout+o.stderr, "ping to 127.0.0.1")
	require.NotContains(t, o.stdout+o.stderr, "SECRET")
	o = l.must(t, "check", "home")
	require.Contains(t, o.stdout, "127.0.0.1")
	require.NotContains(t, o.stdout+o.stderr, "SECRET")

	var renamed []string
	for _, d := range strings.Fields(zfsCmd(t, "list", "-H", "-o", "name", "-r", alphaPool)) {
		if strings.HasPrefix(d, l.src+".zxfer-") {
			renamed = append(renamed, d)
		}
	}
	require.Len(t, renamed, 2, "with the child")
	t.Cleanup(func() { cleanUp(renamed[0]) })
	require.Equal(t, "lost", run(t, "sh", "-c", fmt.Sprintf("zfs mount %[1]s; cat $(zfs get -H -o value mountpoint %[1]s)/lost", renamed[0])))
	zfsCmd(t, "hold", "mine", renamed[0]+"@"+snapshotNames(t, renamed[0])[0])
	before := holdsOf(t, renamed[0])
	o = l.must(t, "holds")
	require.Contains(t, o.stdout, "stale\tlocal:"+renamed[0]+"@")
	require.Contains(t, o.stdout, "stale\tlocal:"+renamed[1]+"@")
	require.Equal(t, before, holdsOf(t, renamed[0]))
	needed := holdsOf(t, l.src)
	o = l.must(t, "holds", "--gc")
	require.Contains(t, o.stdout, "released\tlocal:"+renamed[1]+"@")
	left := holdsOf(t, renamed[0])
	require.Len(t, left, 1, "it is not of zxfer")
	require.Contains(t, left[0], " mine")
	require.Equal(t, needed, holdsOf(t, l.src))
	l.must(t, "run", "home")
	requireNoLeftovers(t)
}

// stepLine matches the message of a step of a switch.
var stepLine = regexp.MustCompile(`(?m)^.*home: .*(local|beta): .*$`)

// TestZFSSwitchKilled kills zxfer, or its agent on beta, at each step of switches there and back.
// At most one side is writable then, and the same command completes the switch.
func TestZFSSwitchKilled(t *testing.T) {
	l := newFailoverLab(t, t.TempDir()+"/data")
	l.must(t, "run", "home")
	sides := []string{alphaPool, betaPool}
	stride := 2 // TestSwitchKilled of package runner stops at every operation
	if testenv.Long() {
		stride = 1
	}
	for at, ended := 1, false; !ended; at += stride {
		require.Less(t, at, 60)
		require.NoError(t, os.WriteFile(filepath.Join(l.anyMount(t, sides[0]), "file"+strconv.Itoa(at)), []byte("x"), 0o600))
		argv := l.onAlpha("switch", "home")
		cmd := exec.Command(argv[0], argv[1:]...)
		stderr := &lockedBuffer{}
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stderr, stderr, 5*time.Second
		require.NoError(t, cmd.Start())
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		killed := false
		for deadline := time.Now().Add(testenv.Timeout()); !killed && !ended; {
			select {
			case <-done:
				ended = true
			default:
				require.True(t, time.Now().Before(deadline), "%s", stderr)
				if len(stepLine.FindAllString(stderr.String(), -1)) < at {
					time.Sleep(time.Millisecond)
					continue
				}
				killed = true
				if at%3 == 0 { // the agent of the other host; the command may reconnect
					for _, pid := range pidsOn(t, betaPool, func(argv []string) bool { return len(argv) > 1 && argv[1] == "agent" }) {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				} else {
					_ = cmd.Process.Kill()
				}
				<-done
			}
		}
		require.LessOrEqual(t, len(l.writableSides(t)), 1, "step %d: %s", at, stderr)
		if ended {
			require.Equal(t, 0, cmd.ProcessState.ExitCode(), "%s", stderr)
			break
		}
		t.Logf("step %d: %s", at, stepLine.FindAllString(stderr.String(), -1)[at-1])
		require.Eventually(t, func() bool {
			return len(pidsOn(t, betaPool, func(argv []string) bool { return len(argv) > 1 && argv[1] == "agent" })) == 0
		}, testenv.Timeout(), 50*time.Millisecond)
		// The last record of a switch says that it is complete. If only the exit of the command was lost, the same
		// command switches back.
		records, err := os.ReadFile(filepath.Join(l.state, "home", "state.json"))
		require.NoError(t, err)
		complete := strings.Contains(string(records), `"source_place":"near"`) == (sides[1] == betaPool) && !strings.Contains(string(records), `"switch":"`)
		if !complete {
			o := l.must(t, "switch", "home")
			t.Logf("%s", o.stdout)
		}
		require.Equal(t, sides[1:], l.writableSides(t))
		slices.Reverse(sides)
		require.FileExists(t, filepath.Join(l.anyMount(t, sides[0]), "file"+strconv.Itoa(at)))
	}
}

// anyMount returns a directory with the files of a side that this test can write to.
func (l *failoverLab) anyMount(t *testing.T, pool string) string {
	t.Helper()
	if pool == alphaPool {
		return l.mountpoint
	}
	pid, err := os.ReadFile(labDir + "/beta/sshd.pid")
	require.NoError(t, err)
	return "/proc/" + strings.TrimSpace(string(pid)) + "/root" + l.mountpoint
}

// TestZFSSwitchEncrypted switches an encrypted dataset there and back with raw increments. The copy
// is mounted after its key was loaded. A restricted key can run the job, but not switch.
func TestZFSSwitchEncrypted(t *testing.T) {
	rsh, _ := restrictedKey(t, "--allow", "receive="+betaPool)
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, "-o", "mountpoint="+dir+"/data", src)
	text := fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nmount_below = [\"/tmp\"]\nsnapshots = { take = \"{job}-%%Y%%m%%dT%%H%%M%%SZ\" }\n[[job.target]]\nname = \"near\"\nto = \"beta:%s\"\n", src, dst)
	l := &failoverLab{newReplication(t, text+"transfer = { rsh = \""+rsh+"\" }\n"), src, dst, dir + "/data"}
	write := func(pool, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(l.anyMount(t, pool), text), []byte(text), 0o600))
	}
	write(alphaPool, "one")
	l.must(t, "run", "home")
	require.Contains(t, zfsCmd(t, "get", "-H", "-s", "local", "-o", "value", "zxfer:origin", dst), `"mountpoint":"`+dir+`/data"`, "a receive grant permits the record")
	before := state(t)
	argv := l.onAlpha("switch", "home")
	o := result(exec.Command(argv[0], argv[1:]...))
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "a restricted key cannot change roles")
	require.Equal(t, before, state(t))

	l.write(t, text)
	write(alphaPool, "two")
	nextSecond(t) // names of snapshots have a resolution of one second
	o = l.must(t, "switch", "home")
	require.Contains(t, o.stdout, "next: ssh -F "+labDir+"/ssh_config -t beta zfs load-key "+dst)
	require.Contains(t, o.stdout, "next: then mount it: zxfer replicate switch home near")
	require.NotContains(t, o.stdout, "zfs mount")
	require.Equal(t, "noauto", strings.TrimSpace(zfsCmd(t, "get", "-Ho", "value", "canmount", dst)), "the next boot does not mount it unchecked")
	run(t, onBeta(t, "zfs", "load-key", "-L", "file://"+key, dst)...)
	o = l.must(t, "switch", "home", "near")
	require.NotContains(t, o.stdout, "then mount it")
	require.Equal(t, "on", strings.TrimSpace(zfsCmd(t, "get", "-Ho", "value", "canmount", dst)))
	write(betaPool, "three")
	nextSecond(t)
	l.must(t, "run", "home")
	write(betaPool, "four")
	nextSecond(t)
	o = l.must(t, "switch", "--json", "home")
	require.Less(t, sentBytes(t, o), uint64(1<<20))
	require.Equal(t, []string{alphaPool}, l.writableSides(t))
	for _, file := range []string{"one", "two", "three", "four"} {
		require.FileExists(t, filepath.Join(l.mountpoint, file))
	}
	write(alphaPool, "five")
	nextSecond(t)
	l.must(t, "run", "home")
	requireNoLeftovers(t)
}
