package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUninstallAsksFirst(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	build := filepath.Join(home, ".cache", "zxfer", strings.Repeat("0a", 32))
	require.NoError(t, os.MkdirAll(build, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(build, "zxfer"), make([]byte, 1<<20), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(home, ".ssh"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "authorized_keys"),
		[]byte("ssh-ed25519 AAAA me\nrestrict,command=\"/usr/local/bin/zxfer agent --allow receive=vault\" ssh-ed25519 AAAA job\n"), 0o600))
	// A host whose zpool shows none.
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "zpool"), []byte("#!/bin/sh\n"), 0o700))
	// Nor is the real home of this account the host's.
	require.NoError(t, os.WriteFile(filepath.Join(bin, "getent"), []byte("#!/bin/sh\nexit 0\n"), 0o700))
	shell := filepath.Join(t.TempDir(), "rsh")
	require.NoError(t, os.WriteFile(shell, []byte("HOME="+home+"; PATH="+bin+":$PATH; TMPDIR="+bin+"; export HOME PATH TMPDIR; unset XDG_CACHE_HOME; exec sh -c \"$2\"\n"), 0o600))
	uninstall := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		code = executeApp(context.Background(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &errs, now: time.Now},
			append([]string{"uninstall", "-e", "sh " + shell}, args...))
		return code, out.String(), errs.String()
	}
	there := "/.cache/zxfer: 1 build of zxfer, 1.0 MiB\n~/.ssh/authorized_keys: 1 line for zxfer, which stays; to remove, there: sed -i '/zxfer agent/d' ~/.ssh/authorized_keys\n"

	code, stdout, stderr := uninstall("-n", "beta")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, home+there, stdout)
	code, stdout, stderr = uninstall("beta")
	require.Equal(t, 3, code, stderr)
	require.Contains(t, stdout, there)
	require.Contains(t, stderr, "nothing was removed: there is no terminal to ask on")
	require.Contains(t, stderr, "--yes")
	require.FileExists(t, filepath.Join(build, "zxfer"))

	code, stdout, stderr = uninstall("--yes", "beta")
	require.Equal(t, 0, code, stderr)
	require.True(t, strings.HasSuffix(stdout, "\nremoved\n"), stdout)
	require.NoDirExists(t, filepath.Join(home, ".cache", "zxfer"))
	code, stdout, stderr = uninstall("beta")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "nothing is to be removed")

	for _, host := range []string{"beta:tank", "-oProxyCommand=x"} {
		code, _, stderr = uninstall("--", host)
		require.Equal(t, 2, code, stderr)
	}
	code, _, _ = uninstall("a", "b")
	require.Equal(t, 2, code)
}
