package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs/zfstest"
)

// The lab consists of two hosts in one kernel (scripts/lab). zxfer runs on alpha, and reaches
// beta over ssh. scripts/lab defines the pools and addresses.
const (
	labDir    = "/tmp/zxfer-lab"
	alphaPool = "zxalpha"
	betaPool  = "zxbeta"
	betaIP    = "10.77.0.2"
	alphaBin  = "/tmp/zxfer-lab-alpha/zxfer" // this test binary, which acts as zxfer under that name
)

var labState struct {
	once sync.Once
	err  error
	up   bool
}

// lab starts the two hosts once for all tests.
func lab(t *testing.T) {
	t.Helper()
	zfstest.Require(t)
	labState.once.Do(func() {
		labState.up = true
		_ = os.RemoveAll(filepath.Dir(alphaBin))
		out, err := exec.Command(labScript(), "up", "1500m").CombinedOutput()
		if err != nil {
			labState.err = fmt.Errorf("scripts/lab up: %w\n%s", err, out)
			return
		}
		labState.err = installSelf(t, alphaBin)
	})
	require.NoError(t, labState.err)
}

// randomRounds returns how often a test injects a fault at a random moment: 4 times, or 20 at
// the long level. ZXFER_TEST_ROUNDS overrides it.
func randomRounds(t *testing.T) int {
	t.Helper()
	if s := os.Getenv("ZXFER_TEST_ROUNDS"); s != "" {
		rounds, err := strconv.Atoi(s)
		require.NoError(t, err)
		return rounds
	}
	if testenv.Long() {
		return 20
	}
	return 4
}

// labDown removes the hosts after the last test.
func labDown() {
	if !labState.up {
		return
	}
	out, err := exec.Command(labScript(), "down").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "scripts/lab down: %v\n%s", err, out)
	}
	_ = os.RemoveAll(filepath.Dir(alphaBin))
}

func labScript() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return filepath.Join(dir, "..", "..", "scripts", "lab")
}

// installSelf copies this test binary to a path.
func installSelf(t testing.TB, path string) error {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	testenv.WriteProgram(t, path, self)
	return nil
}

// run runs a command. It fails the test if the command fails.
func run(t testing.TB, argv ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s%s", strings.Join(argv, " "), out, &stderr)
	return string(out)
}

// zfsCmd runs zfs(8).
func zfsCmd(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, append([]string{"zfs"}, args...)...)
}

// cmdResult holds the exit code and output of a finished command.
type cmdResult struct {
	code           int
	stdout, stderr string
}

func (o cmdResult) String() string {
	return fmt.Sprintf("exit %d\nstdout:\n%s\nstderr:\n%s", o.code, o.stdout, o.stderr)
}

// process is a running zxfer on alpha.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr *lockedBuffer
	done           chan struct{}
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts zxfer on alpha.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startAs(t, nil, alphaBin, args...)
}

// startAs starts a program on alpha.
func startAs(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	p := prepareProcess(t, env, program, args...)
	p.start(t)
	return p
}

// prepareProcess returns a program on alpha that has not started.
func prepareProcess(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{stdout: &lockedBuffer{}, stderr: &lockedBuffer{}, done: make(chan struct{})}
	argv := append([]string{"netns", "exec", alphaPool, program}, args...)
	p.cmd = exec.Command("ip", argv...) // ip calls exec, so the process ID is zxfer's
	p.cmd.Env = slices.Concat(os.Environ(), []string{
		"PATH=" + labDir + "/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"ZXFER_RSH=ssh -F " + labDir + "/ssh_config",
	}, env)
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.WaitDelay = 5 * time.Second
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // wait reads the exit code from ProcessState
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
}

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits until the process ends.
func (p *process) wait(t *testing.T) cmdResult {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(testenv.Scale(10 * time.Minute)):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // prints goroutine traces to stderr
		<-p.done
		t.Fatalf("zxfer hangs\n%s", p.stderr)
	}
	o := cmdResult{p.cmd.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()}
	checkHints(t, o, p.cmd.Args)
	return o
}

// zxfer runs zxfer on alpha until it ends.
func zxfer(t *testing.T, args ...string) cmdResult {
	t.Helper()
	return start(t, args...).wait(t)
}

// mustZxfer runs zxfer on alpha and expects exit code 0.
func mustZxfer(t *testing.T, args ...string) cmdResult {
	t.Helper()
	o := zxfer(t, args...)
	require.Equal(t, 0, o.code, "zxfer %s: %s", strings.Join(args, " "), o)
	return o
}

// dataset returns names for a test's dataset on both pools. It destroys the datasets after the
// test.
func dataset(t *testing.T) (source, target string) {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()))
	source, target = alphaPool+"/"+name, betaPool+"/"+name
	t.Cleanup(func() {
		for _, d := range []string{target, source} {
			cleanUp(d)
		}
	})
	return source, target
}

// destroyAll destroys a dataset, its descendants and all holds. It retries until the timeout
// because an interrupted receive may still hold the dataset.
func destroyAll(d string) error {
	return destroyBefore(time.Now().Add(testenv.Timeout()), d)
}

// cleanUp destroys the datasets of a test. It does not wait long because the lab destroys its
// pools anyway.
func cleanUp(d string) { _ = destroyBefore(time.Now().Add(5*time.Second), d) }

func destroyBefore(deadline time.Time, d string) error {
	for released := false; ; {
		out, err := exec.Command("zfs", "destroy", "-R", "-f", d).CombinedOutput()
		if err == nil || strings.Contains(string(out), "does not exist") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("zfs destroy %s: %w: %s", d, err, out)
		}
		// A file system that only beta's programs have mounted is busy here.
		if beta, _ := os.ReadFile(labDir + "/beta/sshd.pid"); len(beta) > 0 {
			_ = exec.Command("nsenter", "-m", "-t", strings.TrimSpace(string(beta)), "zfs", "destroy", "-R", "-f", d).Run()
		}
		if released {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		releaseAll(d)
		released = true
	}
}

// releaseAll releases all holds of a dataset and its descendants.
func releaseAll(d string) {
	held := map[string][]string{}
	all, _ := listHolds(d) // the dataset may not exist
	for _, h := range all {
		held[h.tag] = append(held[h.tag], h.snapshot)
	}
	for tag, snapshots := range held {
		_ = exec.Command("zfs", append([]string{"release", tag}, snapshots...)...).Run()
	}
}

type hold struct{ snapshot, tag string }

// listHolds lists the holds of a dataset and its descendants. It runs zfs(8) only twice.
func listHolds(d string) (holds []hold, err error) {
	out, err := exec.Command("zfs", "list", "-H", "-t", "snapshot", "-o", "name,userrefs", "-r", d).Output()
	if err != nil {
		return nil, err
	}
	argv := []string{"holds", "-H"}
	for l := range strings.Lines(string(out)) {
		if name, refs, _ := strings.Cut(strings.TrimSpace(l), "\t"); refs != "0" {
			argv = append(argv, name)
		}
	}
	if len(argv) == 2 {
		return nil, nil
	}
	if out, err = exec.Command("zfs", argv...).Output(); err != nil {
		return nil, err
	}
	for l := range strings.Lines(string(out)) {
		f := strings.Split(l, "\t")
		holds = append(holds, hold{f[0], f[1]})
	}
	return holds, nil
}

// mountpoint returns the directory of a filesystem.
func mountpoint(t *testing.T, d string) string {
	t.Helper()
	if dir := mountedAt(t, d); dir != "" {
		return dir
	}
	return strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "mountpoint", d))
}

// mountedAt returns the directory of a mounted filesystem, or "" if it is not mounted. It
// reads the kernel's table, since a process in the guest costs as much as 3,000 system calls.
func mountedAt(t *testing.T, d string) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	escaped := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "zfs" && escaped.Replace(f[0]) == d {
			return escaped.Replace(f[1])
		}
	}
	return ""
}

// fill writes n random bytes to a new file of a dataset.
func fill(t *testing.T, d, file string, n int64) {
	t.Helper()
	random, err := os.Open("/dev/urandom")
	require.NoError(t, err)
	defer random.Close()
	f, err := os.Create(filepath.Join(mountpoint(t, d), file))
	require.NoError(t, err)
	_, err = io.CopyN(f, random, n)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// requireSameFiles mounts beta's dataset and compares its files with alpha's dataset.
func requireSameFiles(t *testing.T, source, target string) {
	t.Helper()
	mount(t, source)
	mount(t, target)
	run(t, "diff", "-r", mountpoint(t, source), mountpoint(t, target))
	zfsCmd(t, "unmount", target)
}

func mount(t *testing.T, d string) {
	t.Helper()
	if mountedAt(t, d) == "" {
		zfsCmd(t, "mount", d)
	}
}

// guids maps the snapshot names of a dataset to GUIDs.
func guids(t *testing.T, d string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for l := range strings.Lines(zfsCmd(t, "list", "-Hp", "-d", "1", "-t", "snapshot", "-o", "name,guid", d)) {
		name, guid, _ := strings.Cut(strings.TrimSpace(l), "\t")
		_, snap, _ := strings.Cut(name, "@")
		m[snap] = guid
	}
	return m
}

// freedLater lists the properties that change after a command ended, because ZFS frees destroyed data in later
// transactions.
var freedLater = []string{"used", "available", "compressratio", "logicalused", "usedbysnapshots", "usedbydataset", "usedbychildren",
	"usedbyrefreservation"}

// state returns one line for each property of all datasets, snapshots and bookmarks. A refused command must not
// change them. The lines include names and GUIDs.
func state(t *testing.T) string { return strings.Join(propertiesExcept(t, freedLater), "\n") }

func propertiesExcept(t *testing.T, except []string) (lines []string) {
	t.Helper()
	run(t, "zpool", "sync")
	for l := range strings.Lines(zfsCmd(t, "get", "-Hp", "-r", "-t", "all", "all", alphaPool, betaPool)) {
		if f := strings.Split(l, "\t"); len(f) < 2 || !slices.Contains(except, f[1]) {
			lines = append(lines, strings.TrimSpace(l))
		}
	}
	return lines
}

// pidsOn returns the processes on a host whose command line matches.
func pidsOn(t *testing.T, host string, match func(argv []string) bool) []int {
	t.Helper()
	namespace, err := os.Stat("/run/netns/" + host)
	require.NoError(t, err)
	procs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	var pids []int
	for _, dir := range procs {
		raw, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(raw) == 0 || !match(strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")) {
			continue
		}
		if ns, err := os.Stat(dir + "/ns/net"); err != nil || !os.SameFile(ns, namespace) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}
