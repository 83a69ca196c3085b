package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/statedir"
)

// TestZFSDrillUnit drills local copies in the systemd unit. The unit must permit mounts,
// loading a key, and commands in new namespaces.
func TestZFSDrillUnit(t *testing.T) {
	m := bootSystemd(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", "-V", "8m", src+"/vol")
	fill(t, src, "f", 1<<20)
	const binary, config, stateDir, key = "/usr/local/bin/zxfer", "/etc/zxfer/replicate.toml", "/var/lib/zxfer", "/etc/zxfer-drill.key"
	require.NoError(t, installSelf(t, binary))
	t.Cleanup(func() { _ = os.Remove(binary); _ = os.RemoveAll(stateDir) })
	installFile(t, key, "0123456789abcdef0123456789abcdef", 0o600)
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, src+"/secret")
	fill(t, src+"/secret", "g", 1<<20)
	installFile(t, config, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
target = [{ name = "near", to = %q }]
drill = { schedule = "weekly", command = ["/bin/sh", "-c", "ls -A; id -u"], key_file = %q }
`, src, dst, key), 0o644)
	o := m.run(t, binary, "replicate", "install")
	require.Contains(t, o, "wrote /etc/systemd/system/zxfer-drill-home.timer")
	t.Cleanup(func() { _ = m.command(binary, "replicate", "uninstall").Run() })
	require.Equal(t, "active", m.show(t, "zxfer-drill-home.timer", "ActiveState"))
	m.run(t, "systemctl", "start", "zxfer-replicate-home.service")
	if out, err := m.command("systemctl", "start", "zxfer-drill-home.service").CombinedOutput(); err != nil {
		t.Fatalf("%s%s", out, m.journal("zxfer-drill-home"))
	}
	all, err := statedir.Peek(stateDir, "home").DrillLog(1)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Len(t, all[0].Copies, 3)
	for _, c := range all[0].Copies {
		require.Equal(t, outcome.Done, c.Outcome, c)
		require.True(t, c.Compared, c)
	}
	require.Equal(t, "f\nsecret\n0", all[0].Copies[0].Output)
	require.Equal(t, "g\n0", all[0].Copies[1].Output)
	require.Empty(t, listClones(t))
	require.Contains(t, m.run(t, "sh", "-c", "stat -c '%a %U' /run/zxfer; ls /run/zxfer"), "700 root\nkey-")
	o = m.run(t, binary, "replicate", "uninstall")
	require.Contains(t, o, "removed /etc/systemd/system/zxfer-drill-home.service")
}
