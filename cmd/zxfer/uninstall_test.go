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

	"zxfer/pkg/replicate/unit"
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
		"grep":   `case "$1" in -lxF) printf 'zxfer-disk-a.d1.service\nzxfer-replicate-a.service\nzxfer-replicate-a.timer\nzxfer-replicate-a b.timer\n';; *) exec /bin/grep "$@";; esac`,
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
	const units = "/etc/systemd/system: 3 units of jobs, kept: zxfer-disk-a.d1.service, zxfer-replicate-a.service, zxfer-replicate-a.timer; to remove: "
	require.Equal(t, units+"cd /etc/systemd/system && systemctl stop zxfer-replicate-a.timer && systemctl disable zxfer-disk-a.d1.service zxfer-replicate-a.service zxfer-replicate-a.timer && rm zxfer-disk-a.d1.service zxfer-replicate-a.service zxfer-replicate-a.timer && systemctl daemon-reload\n", list())
	testenv.WriteProgram(t, filepath.Join(bin, "zxfer"), "#!/bin/sh\n")
	require.Equal(t, units+"zxfer replicate uninstall\n", list())
}

// TestUninstallFindsAllUnits installs a job with every kind of unit. It expects both commands to
// find exactly the units that install wrote, and replicate uninstall to remove them.
func TestUninstallFindsAllUnits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	jobs := filepath.Join(root, "jobs.toml")
	require.NoError(t, os.WriteFile(jobs, []byte(`[[job]]
name = "home"
source = "tank/home"
schedule = "hourly"
snapshots = { take = "zxfer_{job}_%Y-%m-%d_%H:%M:%S" }
drill = { schedule = "weekly" }
target = [{ name = "usb", to = "usb/home", disk = { import = true, pools = { d1 = "1234567890" } } }]
`), 0o600))
	replicate := func(args ...string) string {
		var out, errs bytes.Buffer
		code := execute(context.Background(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &errs, now: time.Now}, append([]string{"replicate"}, args...))
		require.Equal(t, 0, code, errs.String())
		return out.String()
	}
	replicate("install", "--root", root, "--config", jobs, "--binary", "/usr/bin/zxfer")
	dir := filepath.Join(root, unitDir)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var want []string
	for _, e := range entries {
		want = append(want, e.Name())
	}
	require.Len(t, want, 5, "the services and timers of the run and of the drill, and the service of the disk")
	// uninstall keeps files of the administrator.
	for name, text := range map[string]string{"zxfer-other.service": "[Unit]\n", "other.service": unit.Marker + "\n", "zxfer-disk-home.usb.service.d": ""} {
		if text == "" {
			require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
			continue
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	listed, err := exec.Command("sh", "-c", listUnits(dir)).Output()
	require.NoError(t, err)
	var found []string
	for line := range strings.Lines(string(listed)) {
		name, isUnit := strings.CutPrefix(strings.TrimSpace(line), "zxfer-unit ")
		require.True(t, isUnit && unit.IsFile(name), line)
		found = append(found, name)
	}
	require.Equal(t, want, found)
	removed := replicate("uninstall", "--root", root)
	for _, name := range want {
		require.Contains(t, removed, "removed "+filepath.Join(dir, name)+"\n")
		require.NoFileExists(t, filepath.Join(dir, name))
	}
	require.FileExists(t, filepath.Join(dir, "zxfer-other.service"))
	require.FileExists(t, filepath.Join(dir, "other.service"))
	require.Equal(t, dir+": install wrote no units\n", replicate("uninstall", "--root", root))
}
