package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// TestZFSDiskUnits attaches a disk twice to a host with systemd and udev. Each time, the installed service
// runs once, with all its restrictions, and exports the pool.
func TestZFSDiskUnits(t *testing.T) {
	m := bootSystemd(t)
	if out, err := m.command("systemctl", "start", "systemd-udevd.service").CombinedOutput(); err != nil {
		t.Skipf("udev does not run in the guest: %v: %s", err, out)
	}
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "x", 1<<20)
	d := newLabDisk(t, "zxunit", diskSize)
	guid := d.createExported(diskPool)
	d.detach()
	image := filepath.Join(labDir, "disk", d.name) // udev gives links to loop devices
	run(t, "losetup", "-d", d.loop)

	const binary, config, stateDir = "/usr/local/bin/zxfer", "/etc/zxfer/replicate.toml", "/var/lib/zxfer"
	require.NoError(t, installSelf(t, binary))
	t.Cleanup(func() { _ = os.Remove(binary); _ = os.RemoveAll(stateDir) })
	text := diskJob(src, fmt.Sprintf("blue = %q", guid), "scrub = \"30d\"\n")
	installFile(t, config, strings.Replace(text, "/dev/mapper", "/dev/disk/by-uuid", 1), 0o644)
	unit := "zxfer-disk-j.offsite-blue.service"
	o := m.run(t, binary, "replicate", "install")
	require.Contains(t, o, "wrote /etc/systemd/system/"+unit)
	t.Cleanup(func() { _ = m.command(binary, "replicate", "uninstall").Run() })
	device := "dev-disk-by\\x2duuid-" + guid + ".device"
	require.Equal(t, "inactive", m.show(t, device, "ActiveState"))

	runs := func() []*statedir.Run {
		all, _ := statedir.Peek(stateDir, "j").Runs(10) // no file before the first run
		return all
	}
	for n := 1; n <= 2; n++ {
		loop := strings.TrimSpace(run(t, "losetup", "--show", "-f", image))
		detach := func() { _ = exec.Command("losetup", "-d", loop).Run() }
		t.Cleanup(detach)
		require.Eventually(t, func() bool { return len(runs()) >= n && m.show(t, unit, "ActiveState") != "activating" }, testenv.Timeout(), 500*time.Millisecond,
			"the disk did not start the job: %s\n%s", m.journal(unit), m.journal("systemd-udevd"))
		last := runs()[len(runs())-1]
		require.Equal(t, "removable", target(t, last, "offsite-blue").Disk, "%+v\n%s", target(t, last, "offsite-blue"), m.journal(unit))
		require.Equal(t, "active", m.show(t, device, "ActiveState"), "the disk is still attached")
		require.Contains(t, m.journal(unit), "may be removed")
		detach()
		require.Eventually(t, func() bool { return m.show(t, device, "ActiveState") == "inactive" }, testenv.Timeout(), 500*time.Millisecond)
	}
	require.Len(t, runs(), 2, "each appearance starts one run")
	m.run(t, binary, "replicate", "uninstall")
	left, err := filepath.Glob("/etc/systemd/system/*/zxfer-*")
	require.NoError(t, err)
	require.Empty(t, left)
}
