package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/transport/tcp"
)

func TestVersionReport(t *testing.T) {
	t.Parallel()
	commit := []debug.BuildSetting{
		{Key: "vcs", Value: "git"},
		{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
		{Key: "vcs.time", Value: "2026-11-23T05:57:41Z"},
		{Key: "vcs.modified", Value: "false"},
	}
	modified := append(commit[:3:3], debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	for name, c := range map[string]struct {
		version  string
		settings []debug.BuildSetting
		want     string
	}{
		"release":                   {"v0.9.0", commit, "zxfer 0.9.0, commit 0123456789ab of 2026-11-23, protocol P"},
		"modified release":          {"v0.9.0+dirty", modified, "zxfer 0.9.0+dirty, commit 0123456789ab of 2026-11-23, modified, protocol P"},
		"module without repository": {"v0.9.0", nil, "zxfer 0.9.0, protocol P"},
		"no version control":        {"(devel)", nil, "zxfer devel, protocol P"},
		"no build information":      {"", nil, "zxfer devel, protocol P"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newVersionReport(&debug.BuildInfo{Main: debug.Module{Version: c.version}, Settings: c.settings})
			require.Equal(t, strings.ReplaceAll(c.want, "protocol P", fmt.Sprintf("protocol %d", agent.Protocol))+"\n", r.line())
		})
	}
}

// TestProtocolPagesHaveVersions expects the protocol pages to contain the versions in the
// code.
func TestProtocolPagesHaveVersions(t *testing.T) {
	t.Parallel()
	var raw []byte
	for _, page := range []string{"protocol-control.md", "protocol-data.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", page))
		require.NoError(t, err)
		raw = append(raw, text...)
	}
	for _, words := range []string{
		fmt.Sprintf("with PROTOCOL `%d`", agent.Protocol), fmt.Sprintf("`agent.Protocol` (%d)", agent.Protocol),
		fmt.Sprintf("| `%s\\n` (8)", tcp.Protocol), fmt.Sprintf("every label (`%s`)", tcp.Protocol),
	} {
		require.Contains(t, strings.ReplaceAll(string(raw), "\n", " "), words)
	}
}

func TestReleaseOf(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"0.9.0": true, "10.20.30": true, "1.0.0-rc1": true, "1.0.0-beta.2": true,
		"devel": false, "0.9.0+dirty": false, "0.9.1-0.20261123063424-aab3c376ee11": false, "": false, "1.0": false, "1.0.0\n": false} {
		require.Equal(t, want, releaseOf(version) != "", version)
	}
	require.Equal(t, "0.9.0/"+strconv.Itoa(agent.Protocol), releaseOf("0.9.0"))
}

func TestAgentProtocolMismatch(t *testing.T) {
	t.Parallel()
	shell := filepath.Join(t.TempDir(), "rsh")
	require.NoError(t, os.WriteFile(shell, []byte("echo; echo zxfer-agent 1 0.8.0; cat >/dev/null\n"), 0o600))
	var out, stderr bytes.Buffer
	code := execute(t.Context(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &stderr, now: time.Now},
		[]string{"dev", "-e", "sh " + shell, shell, "beta:/x"})
	require.Equal(t, 3, code)
	require.Contains(t, stderr.String(), fmt.Sprintf("beta: zxfer there is 0.8.0 and speaks protocol 1, the local one speaks %d: local zxfer is %s\n", agent.Protocol, buildVersion()))
	require.Contains(t, stderr.String(), "install the same zxfer on both hosts")
}

// TestBuildNote expects an account with a forced agent to report clients with a
// different build.
func TestBuildNote(t *testing.T) {
	t.Parallel()
	self, err := sshexec.ThisBinary()
	require.NoError(t, err)
	id := strings.Repeat("ab", 32)
	for command, want := range map[string]string{
		"":                              "",
		"' zxfer " + self.ID + " '' ''": "",
		"' zxfer " + self.ID + " 9 ''":  "", // as earlier versions ask
		"' zxfer " + id + " '' ''":      "the local version is build abababababab",
		"' zxfer " + id + " 123 ''":     "the local version is build abababababab",
		"' zxfer " + id + " 0.9.0/2 ''": "the local version is 0.9.0, build abababababab",
		"' zxfer " + id + " \x1b/2 ''":  "the local version is build abababababab",
	} {
		got := buildNote(command)
		require.Equal(t, want == "", got == "", command)
		require.Contains(t, got, want)
	}
}
