package remedy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandOfHost(t *testing.T) {
	t.Parallel()
	backup := Host{Name: "root@backup1"}
	for want, got := range map[string]string{
		"zpool list":                                      Host{}.Command("zpool", "list"),
		"ssh root@backup1 zfs allow":                      Host{Name: "op@backup1"}.On(MarkRoot("zfs allow")),
		"ssh root@h zpool list":                           Host{Name: "h"}.AsRoot().Command("zpool", "list"),
		"zpool import":                                    Host{}.AsRoot().Command("zpool", "import"),
		"ssh -t h zfs load-key a":                         Host{Name: "h"}.Prompt("zfs", "load-key", "a"),
		"zfs list 'tank/a b'":                             Host{}.Command("zfs", "list", "tank/a b"),
		"ssh root@backup1 zpool list":                     backup.Command("zpool", "list"),
		`ssh root@backup1 'zfs list '\''tank/a b'\'''`:    backup.Command("zfs", "list", "tank/a b"),
		`ssh root@backup1 'zpool get all | grep feature'`: backup.Line("zpool get all | grep feature"),
		"ssh -p 2222 fd00::1 zpool list":                  Host{Name: "fd00::1", Shell: "ssh -p 2222"}.Command("zpool", "list"),
	} {
		require.Equal(t, want, got)
	}
	hint := "list its pools: " + Mark("zpool list") + "\n" + MarkPrompt("zfs load-key tank/a") + "\n" + Mark("zpool status -v tank") + "\nor wait"
	require.Equal(t, "list its pools: zpool list\nzfs load-key tank/a\nzpool status -v tank\nor wait", Here(hint))
	require.Equal(t, Here(hint), Host{}.On(hint))
	require.Equal(t, "root@backup1: list its pools: ssh root@backup1 zpool list\nssh -t root@backup1 zfs load-key tank/a\n"+
		"ssh root@backup1 zpool status -v tank\nroot@backup1: or wait", backup.On(hint))
}

// TestHintOfHostileHost pastes every line of hostile hints, whole or the part after the host's name,
// into a shell whose ssh only records its arguments. Nothing else may run.
func TestHintOfHostileHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ssh"), []byte("#!/bin/sh\nexit 0\n"), 0o755))
	evil := Host{Name: "evil"}
	for _, hint := range []string{
		Mark("touch ran"),
		Mark("x'; touch ran; '"),
		Mark("x' & touch ran"),
		Mark("x") + "; touch ran",
		"\x01touch ran",
		"touch ran\x03",
		"\x03touch ran" + Mark("x"),
		"\x01\x03; touch ran; \x01\x03",
		Mark("x\x01y'; touch ran '"),
		Mark("x\x02'; touch ran; '\x02"),
		Mark("$(touch ran)"),
		Mark("`touch ran`"),
		Mark("x\rtouch ran"),
		"x\n" + Mark("x\n touch ran\n"),
	} {
		for line := range strings.Lines(evil.On(hint)) {
			require.NotContains(t, line, "\x01")
			if strings.HasPrefix(line, "evil: ") {
				continue // a shell looks for a program of that name, as for every hint of another host
			}
			c := exec.Command("sh", "-c", line)
			c.Dir, c.Env = dir, []string{"PATH=" + dir + ":/usr/bin:/bin"}
			_ = c.Run() // an error is fine
			require.NoFileExists(t, filepath.Join(dir, "ran"), "%q", line)
		}
	}
}
