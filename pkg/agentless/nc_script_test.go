package agentless

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

func TestDialArgs(t *testing.T) {
	t.Parallel()
	for dialect, c := range map[string]struct{ sends, receives []string }{
		sysinfo.OpenBSD:     {[]string{"-N", "h", "7"}, []string{"h", "7"}},
		sysinfo.Traditional: {[]string{"-q", "0", "h", "7"}, []string{"h", "7"}},
		sysinfo.Ncat:        {[]string{"--send-only", "h", "7"}, []string{"h", "7"}},
		sysinfo.BusyBox:     {[]string{"h", "7"}, []string{"h", "7"}},
		sysinfo.GNU:         {[]string{"-c", "h", "7"}, []string{"h", "7"}},
		sysinfo.UnknownNC:   {nil, nil},
		"":                  {nil, nil},
	} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			got, ok := dialArgs(dialect, "h", 7, true)
			require.Equal(t, c.sends, got)
			require.Equal(t, c.sends != nil, ok)
			got, _ = dialArgs(dialect, "h", 7, false)
			require.Equal(t, c.receives, got)
		})
	}
}

func TestScriptsHideSecret(t *testing.T) {
	t.Parallel()
	d := dialer{nc: []string{"nc", "-N", "::1", "7"}, secret: "5ec7e7", buffer: 1 << 20, beatTimeout: 30 * time.Second}
	argv := []string{"zfs", "receive", "-o", "a:b=it's $HOME\n`id`", "pool/a b"}
	for _, script := range []string{d.receive(argv), d.send(argv)} {
		require.Contains(t, script, zfs.CommandLine(argv))
		require.Equal(t, 1, strings.Count(script, "5ec7e7"))
		require.Contains(t, script, "echo 5ec7e7", "by what is built in")
		require.Contains(t, script, "mbuffer -q -m 1024k")
		for _, shell := range [][]string{{"sh"}, {"bash"}, {"busybox", "sh"}} {
			if _, err := exec.LookPath(shell[0]); err != nil {
				continue
			}
			out, err := exec.Command(shell[0], append(shell[1:], "-n", "-c", script)...).CombinedOutput()
			require.NoError(t, err, "%v: %s\n%s", shell, out, script)
		}
	}
}

// TestScriptsPassWordsUnchanged expects that a word of a command reaches it unchanged, even if a
// shell treats its first character specially. An example is the incremental source "#mark".
func TestScriptsPassWordsUnchanged(t *testing.T) {
	t.Parallel()
	said := filepath.Join(t.TempDir(), "said")
	argv := []string{"/bin/sh", "-c", `printf '%s\0' "$@" >"$0"`, said,
		"-i", "#mark", "~", "a#b", "it's $HOME `id` \\", "x\ny", "", "!", "{a,b}", "=ls", "*", "-", "\r"}
	d := dialer{nc: []string{"cat"}, secret: "5ec7e7", beatTimeout: 30 * time.Second}
	for name, script := range map[string]string{"send": d.send(argv), "receive": d.receive(argv), "one": remoteRunner{}.script(argv)} {
		cmd := exec.Command("sh", "-c", script)
		beats, err := cmd.StdinPipe() // endless input, because its end would kill nc
		require.NoError(t, err)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
		_ = beats.Close()
		got, err := os.ReadFile(said)
		require.NoError(t, err, "%s: %s", name, out)
		require.Equal(t, argv[4:], strings.Split(strings.TrimSuffix(string(got), "\x00"), "\x00"), name)
		require.NoError(t, os.Remove(said))
	}
}
