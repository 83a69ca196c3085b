package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

func TestUninstallAsksForConfirmation(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	build := filepath.Join(home, ".cache", "zxfer", strings.Repeat("0a", 32))
	require.NoError(t, os.MkdirAll(build, 0o700))
	testenv.WriteProgram(t, filepath.Join(build, "zxfer"), make([]byte, 1<<20))
	require.NoError(t, os.MkdirAll(filepath.Join(home, ".ssh"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "authorized_keys"),
		[]byte("ssh-ed25519 AAAA me\nrestrict,command=\"/usr/local/bin/zxfer agent --allow receive=vault\" ssh-ed25519 AAAA job\n"), 0o600))
	// The host has no pools.
	bin := t.TempDir()
	testenv.WriteProgram(t, filepath.Join(bin, "zpool"), "#!/bin/sh\n")
	// The host has no units of jobs. getent must not return this account's real home
	// directory.
	testenv.WriteProgram(t, filepath.Join(bin, "grep"), "#!/bin/sh\ncase \"$1\" in -lxF) exit 1;; esac\nexec /bin/grep \"$@\"\n")
	testenv.WriteProgram(t, filepath.Join(bin, "getent"), "#!/bin/sh\nexit 0\n")
	shell := filepath.Join(t.TempDir(), "rsh")
	require.NoError(t, os.WriteFile(shell, []byte("HOME="+home+"; PATH="+bin+":$PATH; TMPDIR="+bin+"; export HOME PATH TMPDIR; unset XDG_CACHE_HOME; exec sh -c \"$2\"\n"), 0o600))
	uninstall := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		code = execute(context.Background(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &errs, now: time.Now},
			append([]string{"uninstall", "-e", "sh " + shell}, args...))
		return code, out.String(), errs.String()
	}
	listed := "/.cache/zxfer: 1 build of zxfer, 1.0 MiB\n~/.ssh/authorized_keys: 1 line for zxfer, kept; to remove: sed -i -E '/" + keyLinePattern + "/d' ~/.ssh/authorized_keys\n"

	code, stdout, stderr := uninstall("-n", "beta")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, home+listed, stdout)
	code, stdout, stderr = uninstall("beta")
	require.Equal(t, 3, code, stderr)
	require.Contains(t, stdout, listed)
	require.Contains(t, stderr, "nothing was removed: no terminal to ask for confirmation")
	require.Contains(t, stderr, "--yes")
	require.FileExists(t, filepath.Join(build, "zxfer"))

	code, stdout, stderr = uninstall("--yes", "beta")
	require.Equal(t, 0, code, stderr)
	require.True(t, strings.HasSuffix(stdout, "\nremoved\n"), stdout)
	require.NoDirExists(t, filepath.Join(home, ".cache", "zxfer"))
	code, stdout, stderr = uninstall("beta")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "there is nothing to remove")

	for _, host := range []string{"beta:tank", "-oProxyCommand=x"} {
		code, _, stderr = uninstall("--", host)
		require.Equal(t, 2, code, stderr)
	}
	code, _, _ = uninstall("a", "b")
	require.Equal(t, 2, code)
}

// TestUninstallFindsAuthorizedKeys generates lines with authorize. It expects grep and sed to find
// every line with uninstall's pattern.
func TestUninstallFindsAuthorizedKeys(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "k.pub")
	require.NoError(t, os.WriteFile(key, []byte("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJzIWGUHW9SkPmHbLNTLfBwJ7LRxYmHzvh3Wzzz1l7r6 me\n"), 0o600))
	var lines []string
	for _, args := range [][]string{
		{"--allow", "status"}, {"--allow", "receive=vault"}, {"--allow", "send=tank", "--append-only", "--peer", "10.0.0.1"},
		{"--allow", "heal=tank", "--audit", "/var/log/z.log"},
	} {
		for _, program := range []string{"/usr/bin/zxfer", "/opt/my programs/zx-1.2"} {
			var out, errs bytes.Buffer
			code := execute(context.Background(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &errs, now: time.Now},
				append([]string{"replicate", "authorize", "--key", key, "--program", program}, args...))
			require.Equal(t, 0, code, errs.String())
			lines = append(lines, out.String(), `from="10.0.0.1",`+out.String())
		}
	}
	others := []string{"ssh-ed25519 AAAA zxfer agent\n", "restrict,command=\"/usr/bin/rrsync /srv\" ssh-ed25519 AAAA agent --allow\n", "command=\"/usr/bin/other agent\" ssh-ed25519 AAAA b\n"}
	file := filepath.Join(t.TempDir(), "authorized_keys")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(slices.Concat(lines, others), "")), 0o600))
	found, err := exec.Command("grep", "-E", keyLinePattern, file).Output()
	require.NoError(t, err)
	require.Equal(t, strings.Join(lines, ""), string(found))
	require.NoError(t, exec.Command("sed", "-i", "-E", "/"+keyLinePattern+"/d", file).Run())
	left, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, strings.Join(others, ""), string(left))
}

// TestUninstallListsUnits expects uninstall to find leftover units of a removed package, and
// to print a command that removes them.
func TestUninstallListsUnits(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for name, script := range map[string]string{
		"zpool":  "exit 0",
		"getent": "exit 0",
		"grep":   `case "$1" in -lxF) printf 'zxfer-replicate-a.service\nzxfer-replicate-a.timer\nzxfer-replicate-a b.timer\n';; *) exec /bin/grep "$@";; esac`,
		"ls":     "exit 0",
	} {
		testenv.WriteProgram(t, filepath.Join(bin, name), "#!/bin/sh\n"+script+"\n")
	}
	shell := filepath.Join(t.TempDir(), "rsh")
	require.NoError(t, os.WriteFile(shell, []byte("HOME="+bin+"; PATH="+bin+":/usr/bin:/bin; TMPDIR="+bin+"; export HOME PATH TMPDIR; unset XDG_CACHE_HOME; exec sh -c \"$2\"\n"), 0o600))
	list := func() string {
		var out, errs bytes.Buffer
		code := execute(context.Background(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &errs, now: time.Now}, []string{"uninstall", "-n", "-e", "sh " + shell, "beta"})
		require.Equal(t, 0, code, errs.String())
		return out.String()
	}
	const units = "/etc/systemd/system: 2 units of jobs, kept: zxfer-replicate-a.service, zxfer-replicate-a.timer; to remove: "
	require.Equal(t, units+"cd /etc/systemd/system && systemctl disable --now zxfer-replicate-a.timer && rm zxfer-replicate-a.service zxfer-replicate-a.timer && systemctl daemon-reload\n", list())
	testenv.WriteProgram(t, filepath.Join(bin, "zxfer"), "#!/bin/sh\n")
	require.Equal(t, units+"zxfer replicate uninstall\n", list())
}
