package sshexec

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// Hosts come from the configuration, what it includes, and the known hosts that can
// be read. HOME is the process's: no t.Parallel.
func TestHosts(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for name, text := range map[string]string{
		".ssh/config": "# Host comment\nInclude more/*.conf\nhost zx-alpha zx-beta *.zx !zx-no\n  HostName 192.0.2.1\n" +
			"Host=zx-gamma\nHost \"zx-delta\"\nMatch host zx-epsilon\n",
		".ssh/more/a.conf": "Include ~/.ssh/config more/b.conf\nHost zx-included\n",
		".ssh/more/b.conf": "Host zx-deeper\n\tInclude \"[\"\n",
		".ssh/known_hosts": "zx-known,192.0.2.7 ssh-ed25519 AAAA==\n|1|c2FsdA==|aGFzaA== ssh-rsa AAAA\n[zx-port]:2222 ssh-rsa AAAA\n" +
			"@cert-authority zx-authority ssh-rsa AAAA\n",
		"other": "Host zx-other\nInclude more/b.conf\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(home, name), []byte(text), 0o600))
	}
	ours := func(command string) (out []string) {
		for _, h := range Hosts(command) {
			if strings.HasPrefix(h, "zx-") || strings.HasPrefix(h, "192.0.2.") {
				out = append(out, h)
			}
		}
		return out
	}
	require.Equal(t, []string{"192.0.2.7", "zx-alpha", "zx-beta", "zx-deeper", "zx-delta", "zx-gamma", "zx-included", "zx-known"}, ours(""))
	require.Equal(t, []string{"192.0.2.7", "zx-deeper", "zx-known", "zx-other"}, ours("ssh -F "+home+"/other"))

	require.True(t, Known(t.Context(), "", "zx-deeper"))
	require.True(t, Known(t.Context(), "", "localhost"), "by the resolver")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, Known(ended, "", "zx-unknown"))
}

// Nothing is left of what was asked once there is no more time.
func TestAskEndsWhatItStarted(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	text, err := Ask(t.Context(), Options{}, "echo one; echo two")
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", text)
	text, err = Ask(t.Context(), Options{}, "exec cat /dev/zero")
	require.Error(t, err)
	require.Len(t, text, maxAnswer)

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for began := time.Now(); time.Since(began) < testenv.Timeout(); time.Sleep(10 * time.Millisecond) {
			if b, err := os.ReadFile(pid); err == nil && len(b) > 0 {
				break
			}
		}
		cancel()
	}()
	_, err = Ask(ctx, Options{}, "sleep 100000 & echo $! >"+pid+"; wait")
	require.Error(t, err)
	b, err := os.ReadFile(pid)
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return gone(n) }, testenv.Timeout(), 10*time.Millisecond)
}

// gone tells whether a process has ended, be it that nobody waited for it.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ") || syscall.Kill(pid, 0) != nil
}
