package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hostileShell returns a remote shell that prints terminal escape sequences.
func hostileShell(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rsh")
	require.NoError(t, os.WriteFile(file, []byte(`printf '\033]0;evil\007 stderr\r\033[2J\n' >&2
printf '\033[31mstdout\n'
sleep 0.1
exit 1
`), 0o600))
	return "sh " + file
}

// TestRemoteTextIsEscaped expects no control characters of a remote host in
// zxfer's output.
func TestRemoteTextIsEscaped(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "jobs.toml")
	require.NoError(t, os.WriteFile(config, []byte(`[[job]]
name = "a"
source = "beta:tank/a"
retries = 0
[job.snapshots]
adopt = ["x*"]
[job.transfer]
rsh = "`+hostileShell(t)+`"
[[job.target]]
name = "t"
to = "gamma:pool"
`), 0o600))
	state := t.TempDir()
	for _, args := range [][]string{
		{"doctor", "-v", "-e", hostileShell(t), "beta:tank/a@x", "tank"},
		{"send", "-e", hostileShell(t), "beta:tank/a@x", "gamma:tank"},
		{"dev", "-e", hostileShell(t), "beta:/dev/sda", filepath.Join(t.TempDir(), "image")},
		{"replicate", "check", "--config", config, "--state-dir", state, "a"},
		{"replicate", "run", "--config", config, "--state-dir", state, "a"},
		// These print the recorded errors of the run.
		{"replicate", "status", "--config", config, "--state-dir", state, "a"},
		{"replicate", "log", "--state-dir", state, "a"},
	} {
		var out, stderr bytes.Buffer
		execute(t.Context(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &stderr, now: time.Now}, args)
		output := out.String() + stderr.String()
		require.Contains(t, output, "evil", "%v: the text of the remote host is missing", args)
		require.NotContains(t, output, "\x1b", args)
		require.NotContains(t, output, "\r", args)
	}
}
