// Package scripts_test runs parts of the scripts in this directory.
package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// writeProgram writes a shell script that replaces a tool of the same name.
func writeProgram(t *testing.T, path, script string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testenv.WriteProgram(t, path, "#!/bin/sh\n"+script+"\n")
}

// bash runs a script. Programs in bin precede all others.
func bash(t *testing.T, bin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", args...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "ZXFER_GUEST_MIRROR=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

// TestDebianMirror expects the mirror of this Debian release. apt's configuration may name the
// mirror directly or a file that lists mirrors.
func TestDebianMirror(t *testing.T) {
	t.Parallel()
	env, err := os.ReadFile("env") // read by this process so that go test notices changes
	require.NoError(t, err)
	for name, tt := range map[string]struct{ configured, mirror string }{
		"mirror URL":             {"http://deb.example.org/debian/", "http://deb.example.org/debian"},
		"mirror list":            {"mirror+file:LIST", "http://one.example.org/debian"},
		"mirror list with slash": {"mirror+file:LIST/", "http://one.example.org/debian"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			list := filepath.Join(dir, "mirrors.list")
			require.NoError(t, os.WriteFile(list, []byte("# mirrors\n\nhttp://one.example.org/debian/\tpriority:1\nhttp://two.example.org/debian\n"), 0o600))
			writeProgram(t, dir+"/apt-get", "printf '%s\\n' 'other http://other.example.org/' 'bookworm "+strings.ReplaceAll(tt.configured, "LIST", list)+"'")
			require.Equal(t, tt.mirror, bash(t, dir, "-ec", string(env)+"release() { echo bookworm; }; debian_mirror"))
		})
	}
}

// TestContinuousIntegrationRoot expects the tests to run in a new root. If creating a
// root fails, they must run in the current one.
func TestContinuousIntegrationRoot(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ unshare, says string }{
		"new root":    {"exec true", "fresh scripts/test"},
		"no new root": {"exit 1", "ci: no new root can be made here: the tests run in this one\ntest"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			script, err := os.ReadFile("../.ci/run")
			require.NoError(t, err)
			require.NoError(t, os.Mkdir(dir+"/.ci", 0o755))
			require.NoError(t, os.WriteFile(dir+"/.ci/run", script, 0o600))
			writeProgram(t, dir+"/scripts/fresh", "echo fresh $*")
			writeProgram(t, dir+"/scripts/test", "echo test")
			writeProgram(t, dir+"/bin/unshare", tt.unshare)
			require.Equal(t, tt.says, bash(t, dir+"/bin", dir+"/.ci/run"))
		})
	}
}

// TestGuestBuildEndsOnSignal sends a signal only to scripts/guest, and expects the
// processes of its build to end.
func TestGuestBuildEndsOnSignal(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	require.NoError(t, err)
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n < 1_000_000 {
		t.Skip("needs vm.max_map_count of 1000000 or more: scripts/guest would raise it")
	}
	dir := t.TempDir()
	for _, name := range []string{"guest", "env"} {
		script, err := os.ReadFile(name)
		require.NoError(t, err)
		testenv.WriteProgram(t, filepath.Join(dir, name), script)
	}
	// The first process ignores SIGTERM, and the second ends at it.
	writeProgram(t, dir+"/guest.d/build.sh", `trap '' TERM; sleep 600 & stubborn=$!
trap - TERM; sleep 600 & echo $stubborn $! >"$1/new"; mv "$1/new" "$1/pids"; sh -c 'sleep 600; :'`)
	for _, name := range []string{"init.c", "kernel.config", "kernel.sh", "packages", "root.sh", "zfs.sh"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "guest.d", name), nil, 0o600))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "guest"), "build")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+dir)
	require.NoError(t, cmd.Start())
	var pids []string
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "zxfer-guest", "pids"))
		pids = strings.Fields(string(text))
		return err == nil
	}, testenv.Timeout(), 10*time.Millisecond)
	require.Len(t, pids, 2)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	var ended *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &ended)
	require.Equal(t, 143, ended.ExitCode())
	for _, pid := range pids {
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, testenv.Timeout(), 10*time.Millisecond, "process %s has not ended", pid)
	}
}

// TestChaosSummary expects tables of two runs, of which one did not finish: its last round has
// no result.
func TestChaosSummary(t *testing.T) {
	t.Parallel()
	one, two := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		one + "/run": "chaos: run abc 5\n",
		one + "/guest-1.log": "chaos: system 2.3.9-1 7.2.12 1000\nchaos: attempt 4 whole kill occurred zfs send\nchaos: repeat 0 resumed\n" +
			"chaos: round 5 passed 1073741824 1060\nchaos: attempt -1 whole kill occurred zxfer\nchaos: failed: seed 6\nchaos: round 6 failed 2147483648 1180\n",
		one + "/guest-2.log": "chaos: system 2.3.9-1 7.2.12 1010\nchaos: attempt 0 whole cut missed \nchaos: round 9 passed 1073741824 1300\n",
		two + "/run":         "chaos: run def 7\n",
		two + "/guest-1.log": "chaos: system 2.1.11-1 6.1.1 1000\nchaos: attempt 3 whole version occurred protocol\nchaos: round 7 passed 0 1120\nchaos: attempt 4 whole cut occurred \n",
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	require.Equal(t, `| OpenZFS | Linux | commit | minutes | rounds | attempts | GiB over the link | faults | interrupted and completed | resumed | failed | first seed |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 2.3.9-1 | 7.2.12 | abc | 5 | 3 | 3 | 3.00 | 2 | 1 of 2 | 1 | 1 | 5 |
| 2.1.11-1 | 6.1.1 | def | 2 | 1 | 2 | 0.00 | 2 | 0 of 0 | 0 | 0 | 7 |

| fault | attempts | occurred | exit 0 | exit 1 | exit 3 | exit 4 | killed |
| --- | --- | --- | --- | --- | --- | --- | --- |
| cut | 2 | 1 | 1 | 0 | 0 | 1 | 0 |
| kill | 2 | 2 | 0 | 0 | 0 | 1 | 1 |
| other version | 1 | 1 | 0 | 0 | 1 | 0 | 0 |`, bash(t, "", "chaos", "--summary", one, two))
}

// TestProse expects Vale to find excluded words and clauses in pages and Go comments, but not
// in code.
func TestProse(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not at the quick level: builds Vale")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"page.md": "# Anew\n\nWhat was cut off is sent. The run `goes on` at once.\n\n```\nfor good\n```\n",
		"code.go": "package code\n\n// Retry sends once more.\nvar Retry = \"at once\"\n",
		"good.md": "A run resumes an interrupted transfer, and stores it permanently.\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	out, err := run(t, "..", "scripts/prose", dir)
	require.Error(t, err)
	var places []string
	for line := range strings.Lines(out) {
		if rest, found := strings.CutPrefix(line, dir+"/"); found {
			fields := strings.SplitN(rest, ":", 5)
			places = append(places, strings.Join([]string{fields[0], fields[1], fields[3]}, ":"))
		}
	}
	require.ElementsMatch(t, []string{
		"page.md:1:zxfer.Terms", "page.md:3:zxfer.Clauses", "page.md:3:zxfer.Terms", "page.md:3:zxfer.Terms", "code.go:3:zxfer.Terms",
	}, places, "%s", out)
}

// TestShellScripts expects that shellcheck finds nothing in the scripts of the tree.
func TestShellScripts(t *testing.T) {
	t.Parallel()
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Skip("shellcheck is not installed: apt install shellcheck")
	}
	args := []string{"--severity=warning", "--external-sources", "--format=gcc", "scripts/env", ".ci/run"}
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if first, _, _ := strings.Cut(string(text), "\n"); strings.HasPrefix(first, "#!") && (strings.HasSuffix(first, "bash") || strings.HasSuffix(first, "/sh")) {
			args = append(args, "scripts/"+path)
		}
		return err
	}))
	require.Greater(t, len(args), 20)
	cmd := exec.CommandContext(t.Context(), shellcheck, args...)
	cmd.Dir = ".." // the scripts name each other from there
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
