package sshexec

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestHosts expects names from the configuration, included files, and unhashed known hosts. It does
// not run in parallel, because it sets HOME.
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
	own := func(command string) (out []string) {
		for _, h := range KnownHosts(command) {
			if strings.HasPrefix(h, "zx-") || strings.HasPrefix(h, "192.0.2.") {
				out = append(out, h)
			}
		}
		return out
	}
	require.Equal(t, []string{"192.0.2.7", "zx-alpha", "zx-beta", "zx-deeper", "zx-delta", "zx-gamma", "zx-included", "zx-known"}, own(""))
	require.Equal(t, []string{"192.0.2.7", "zx-deeper", "zx-known", "zx-other"}, own("ssh -F "+home+"/other"))

	require.True(t, IsKnownHost(t.Context(), "", "zx-deeper"))
	require.Eventually(t, func() bool { return IsKnownHost(t.Context(), "", "localhost") }, testenv.Timeout(), 10*time.Millisecond, "by the resolver")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, IsKnownHost(ended, "", "zx-unknown"))
}
