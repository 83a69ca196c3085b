// Package scripts_test runs parts of the scripts beside it.
package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// program writes a shell script that is found before a tool of the same name.
func program(t *testing.T, path, script string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
}

// bash runs a script with the programs of a directory before all others.
func bash(t *testing.T, bin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", args...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "ZXFER_GUEST_MIRROR=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

// The mirror is that of this release, also where apt names a list of mirrors or a
// list of files.
func TestDebianMirror(t *testing.T) {
	t.Parallel()
	env, err := os.ReadFile("env") // by this process: go test looks whether it changed
	require.NoError(t, err)
	for name, tt := range map[string]struct{ configured, mirror string }{
		"a mirror":            {"http://deb.example.org/debian/", "http://deb.example.org/debian"},
		"a file of mirrors":   {"mirror+file:LIST", "http://one.example.org/debian"},
		"such a file's slash": {"mirror+file:LIST/", "http://one.example.org/debian"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			list := filepath.Join(dir, "mirrors.list")
			require.NoError(t, os.WriteFile(list, []byte("# mirrors\n\nhttp://one.example.org/debian/\tpriority:1\nhttp://two.example.org/debian\n"), 0o600))
			program(t, dir+"/apt-get", "printf '%s\\n' 'other http://other.example.org/' 'bookworm "+strings.ReplaceAll(tt.configured, "LIST", list)+"'")
			require.Equal(t, tt.mirror, bash(t, dir, "-ec", string(env)+"release() { echo bookworm; }; debian_mirror"))
		})
	}
}

// Continuous integration runs the tests in a new root, and where none can be made in
// this one.
func TestWhereContinuousIntegrationRuns(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ unshare, says string }{
		"a new root": {"exec true", "fresh scripts/test"},
		"none":       {"exit 1", "ci: no new root can be made here: the tests run in this one\ntest"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			script, err := os.ReadFile("../.ci/run")
			require.NoError(t, err)
			require.NoError(t, os.Mkdir(dir+"/.ci", 0o755))
			require.NoError(t, os.WriteFile(dir+"/.ci/run", script, 0o600))
			program(t, dir+"/scripts/fresh", "echo fresh $*")
			program(t, dir+"/scripts/test", "echo test")
			program(t, dir+"/bin/unshare", tt.unshare)
			require.Equal(t, tt.says, bash(t, dir+"/bin", dir+"/.ci/run"))
		})
	}
}
