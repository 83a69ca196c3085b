package scripts_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// demo returns a command that runs scripts/demo. dir receives its temporary files. Programs in
// bin precede all others. The demo's binary does not enter the user's cache.
func demo(t *testing.T, script, bin, dir string, args ...string) *exec.Cmd {
	t.Helper()
	goCache, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 4*testenv.Timeout()) // the demo waits several times
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, script, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // SIGTERM lets the demo clean up
	cmd.WaitDelay = testenv.Timeout()
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+dir,
		"XDG_CACHE_HOME="+t.TempDir(), "GOCACHE="+strings.TrimSpace(string(goCache)))
	return cmd
}

// scratch returns a directory that the demo's second user can access.
func scratch(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o711))
	return dir
}

// requireNothingLeft fails the test if dir is not empty or a process uses it.
func requireNothingLeft(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	requireNoProcess(t, dir)
}

// requireNoProcess fails the test if a process runs a program of dir, works in dir or has dir
// in its command line.
func requireNoProcess(t *testing.T, dir string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	require.NotEmpty(t, lines)
	for _, name := range lines {
		line, _ := os.ReadFile(name) // empty if the process has ended
		exe, _ := os.Readlink(filepath.Dir(name) + "/exe")
		cwd, _ := os.Readlink(filepath.Dir(name) + "/cwd")
		require.NotContains(t, exe+" "+cwd+" "+string(line), dir, name)
	}
}

func TestDemoWithoutZFS(t *testing.T) {
	t.Parallel()
	needCopy(t)
	dir := scratch(t)
	out, err := demo(t, "./demo", t.TempDir(), dir, "--quick").CombinedOutput()
	require.NoError(t, err, "%s", out)
	output := string(out)
	for _, want := range []string{
		"$ zxfer doctor --quick", ": kill -9 ", "$ cmp disk.img ", "\nidentical\n", "differs: within bytes ",
		"part 1: the interrupted copy was resumed and verified",
	} {
		require.Contains(t, output, want)
	}
	require.NotContains(t, output, "guest")
	requireNothingLeft(t, dir)
}

func TestDemoUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--fast"}, {"--quick", "--quick"}, {""}, {"--inside"}} {
		dir := t.TempDir()
		out, err := demo(t, "./demo", t.TempDir(), dir, args...).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 2, exit.ExitCode(), "%s", out)
		require.Contains(t, string(out), "hint: scripts/demo --help\n")
		requireNothingLeft(t, dir)
	}
}

// copyOfDemo copies scripts/demo next to a guest that is a shell script. It returns the demo's
// path and a directory of programs. go runs in this repository, and df reports free MiB for
// every directory.
func copyOfDemo(t *testing.T, guest string, free int) (script, bin string) {
	t.Helper()
	if arch, err := exec.CommandContext(t.Context(), "uname", "-m").Output(); err != nil || string(arch) != "x86_64\n" {
		t.Skipf("needs x86-64 for the guest, not %s (%v)", arch, err)
	}
	repo, err := filepath.Abs("..")
	require.NoError(t, err)
	goTool, err := exec.LookPath("go")
	require.NoError(t, err)
	tree, bin := t.TempDir(), t.TempDir()
	writeProgram(t, tree+"/scripts/guest", guest)
	for _, name := range []string{"demo", "env"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		testenv.WriteProgram(t, tree+"/scripts/"+name, text)
	}
	writeProgram(t, bin+"/go", fmt.Sprintf(`exec '%s' -C '%s' "$@"`, goTool, repo))
	writeProgram(t, bin+"/df", fmt.Sprintf("echo Avail; echo %dM", free))
	return tree + "/scripts/demo", bin
}

func TestDemoNeedsSpace(t *testing.T) {
	t.Parallel()
	script, bin := copyOfDemo(t, "exit 1", 4000)
	dir := t.TempDir()
	out, err := demo(t, script, bin, dir).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "demo: /dev/shm has 4000 MiB free: the guest needs 4096 MiB\nhint: mount -o remount")
	require.NotContains(t, string(out), "Building")
	requireNothingLeft(t, dir)
}

// TestDemoBuildsGuest expects the first run to build the guest, and to run part 2 in it.
func TestDemoBuildsGuest(t *testing.T) {
	t.Parallel()
	needCopy(t)
	needMemory(t)
	script, bin := copyOfDemo(t, `
case $1 in
path) exit 1 ;;
build) echo "guest: built" >&2 ;;
run) shift; echo "in the guest: $*" ;;
esac`, 9999)
	dir := scratch(t)
	out, err := demo(t, script, bin, dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "guest: built\nin the guest: --timeout 600 -- scripts/demo --inside /")
	requireNothingLeft(t, dir)
}

// TestDemoInterruptedDuringGuestBuild interrupts the demo and expects the build of the guest
// to end with all its processes.
func TestDemoInterruptedDuringGuestBuild(t *testing.T) {
	t.Parallel()
	needCopy(t)
	needMemory(t)
	script, bin := copyOfDemo(t, `
case $1 in
path) exit 1 ;;
build) echo "guest: kernel: compiling (6/13) ..." >&2; "${0%guest}sleep" infinity; exit 1 ;;
esac`, 9999)
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(sleep, filepath.Dir(script)+"/sleep"))
	dir := scratch(t)
	cmd := demo(t, script, bin, dir)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	lines := bufio.NewScanner(r)
	var before strings.Builder
	for lines.Scan() {
		before.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "guest: kernel: compiling (6/13), ") {
			break
		}
	}
	require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
	// The read ends when all processes of the demo have closed the pipe.
	output, err := io.ReadAll(r)
	require.NoError(t, err)
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 130, exit.ExitCode(), "%s%s", before.String(), output)
	require.Contains(t, string(output), "demo: stopped the build of the guest")
	requireNothingLeft(t, dir)
	requireNoProcess(t, filepath.Dir(filepath.Dir(script)))
}

// needCopy skips a test of part 1 at the quick level. Otherwise, it compiles the packages of
// zxfer first, since the demo's time limit does not include that.
func needCopy(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not at the quick level: the demo copies 256 MiB")
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", os.DevNull, "../cmd/zxfer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// needMemory skips a test of the guest if this machine lacks memory.
func needMemory(t *testing.T) {
	t.Helper()
	info, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(info)) {
		var kib int
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil && kib < 5<<20 {
			t.Skip("needs 4 GiB of memory for the guest")
		}
	}
}
