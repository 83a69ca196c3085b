package device

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device/devicetest"
	"zxfer/pkg/zfs/zfstest"
)

// A deviceSetup creates a device that must not be written to. held reports that the
// kernel refuses too, without checkTarget.
type deviceSetup struct {
	name string
	make func(t *testing.T) string
	want []string
	held bool
}

const mib = int64(1 << 20)

// deviceSetups are the ways in which a device is in use or has contents.
func deviceSetups() []deviceSetup {
	ext4 := func(t *testing.T) string {
		dev := devicetest.Loop(t, 16*mib, 512)
		mkfs(t, dev)
		return dev
	}
	group := func(t *testing.T, names ...string) (pv, vg string) {
		pv, vg = devicetest.Loop(t, 32*mib, 512), fmt.Sprintf("zx-%08x", rand.Uint32())
		devicetest.Run(t, "pvcreate", "--quiet", pv)
		devicetest.Run(t, "vgcreate", "--quiet", vg, pv)
		runCleanup(t, "vgremove", "--force", "--yes", vg)
		for _, lv := range names {
			devicetest.Run(t, "lvcreate", "--quiet", "--yes", "--wipesignatures", "n", "--size", "8m", "--name", lv, vg)
		}
		return pv, vg
	}
	array := func(t *testing.T) (member, md string) {
		member, md = devicetest.Loop(t, 32*mib, 512), fmt.Sprintf("/dev/md%d", 100+rand.IntN(100))
		devicetest.Run(t, "mdadm", "--create", md, "--run", "--force", "--level=1", "--raid-devices=1", "--metadata=1.2", member)
		return member, md
	}
	pool := func(t *testing.T) (member, name string) {
		member, name = devicetest.Loop(t, 96*mib, 512), fmt.Sprintf("zx%08x", rand.Uint32())
		devicetest.Run(t, "zpool", "create", "-m", "none", name, member)
		return member, name
	}
	zvol := func(t *testing.T) string {
		_, name := pool(t)
		runCleanup(t, "zpool", "destroy", name)
		devicetest.Run(t, "zfs", "create", "-V", "16m", name+"/vol")
		dev := zfstest.Device(t, name+"/vol")
		require.NoError(t, dev.Close())
		return dev.Name()
	}
	return []deviceSetup{
		{"mounted", func(t *testing.T) string { d := ext4(t); mount(t, d); return d }, []string{"target-mounted"}, true},
		{"mounted read-only", func(t *testing.T) string { d := ext4(t); mount(t, d, "-o", "ro"); return d }, []string{"target-mounted"}, true},
		{"disk of a mounted partition", func(t *testing.T) string {
			d := partitionedDisk(t, 16*mib)
			mkfs(t, d+"p1")
			mount(t, d+"p1")
			return d
		}, []string{"target-mounted"}, true},
		{"mounted partition", func(t *testing.T) string {
			d := partitionedDisk(t, 16*mib) + "p1"
			mkfs(t, d)
			mount(t, d)
			return d
		}, []string{"target-mounted"}, true},
		{"unmounted partition", func(t *testing.T) string {
			d := partitionedDisk(t, 16*mib) + "p1"
			mkfs(t, d)
			return d
		}, []string{"target-contents"}, false},
		{"unmounted ext4", ext4, []string{"target-contents"}, false},
		{"partition table", func(t *testing.T) string { return partitionedDisk(t, 16*mib) }, []string{"target-contents"}, false},
		{"swap in use", func(t *testing.T) string {
			if _, err := os.Stat("/proc/swaps"); err != nil {
				t.Skip("this kernel has no swap: ", err)
			}
			d := devicetest.Loop(t, 16*mib, 512)
			devicetest.Run(t, "mkswap", d)
			devicetest.Run(t, "swapon", d)
			runCleanup(t, "swapoff", d)
			return d
		}, []string{"target-system", "target-swap"}, true},
		{"swap not in use", func(t *testing.T) string {
			d := devicetest.Loop(t, 16*mib, 512)
			devicetest.Run(t, "mkswap", d)
			return d
		}, []string{"target-contents"}, false},
		{"physical volume in use", func(t *testing.T) string { pv, _ := group(t, "a"); return pv }, []string{"target-held"}, true},
		{"physical volume of a mounted volume", func(t *testing.T) string {
			pv, vg := group(t, "a-b")
			mkfs(t, "/dev/"+vg+"/a-b")
			mount(t, "/dev/"+vg+"/a-b")
			return pv
		}, []string{"target-mounted", "target-held"}, true},
		{"physical volume not in use", func(t *testing.T) string {
			pv, vg := group(t, "a")
			devicetest.Run(t, "vgchange", "-an", vg)
			return pv
		}, []string{"target-contents"}, false},
		{"mounted logical volume", func(t *testing.T) string {
			_, vg := group(t, "a")
			mkfs(t, "/dev/"+vg+"/a")
			mount(t, "/dev/"+vg+"/a")
			return "/dev/" + vg + "/a"
		}, []string{"target-mounted"}, true},
		{"member of an array in use", func(t *testing.T) string {
			m, md := array(t)
			runCleanup(t, "mdadm", "--stop", md)
			return m
		}, []string{"target-held"}, true},
		{"member of a stopped array", func(t *testing.T) string {
			m, md := array(t)
			devicetest.Run(t, "mdadm", "--stop", md)
			return m
		}, []string{"target-contents"}, false},
		{"mounted array", func(t *testing.T) string {
			_, md := array(t)
			runCleanup(t, "mdadm", "--stop", md)
			mkfs(t, md)
			mount(t, md)
			return md
		}, []string{"target-mounted"}, true},
		{"under device-mapper", func(t *testing.T) string {
			d := devicetest.Loop(t, 16*mib, 512)
			dmDevice(t, fmt.Sprintf("0 %d linear %s 0", 16*mib/512, d))
			return d
		}, []string{"target-held"}, true},
		{"member of an imported pool", func(t *testing.T) string {
			m, name := pool(t)
			runCleanup(t, "zpool", "destroy", name)
			for range 4 { // afterwards, an idle pool writes nothing, because ZFS frees with a delay
				devicetest.Run(t, "zpool", "sync", name)
			}
			return m
		}, []string{"target-held"}, true},
		{"member of an exported pool", func(t *testing.T) string {
			m, name := pool(t)
			devicetest.Run(t, "zpool", "export", name)
			return m
		}, []string{"target-contents"}, false},
		{"mounted zvol", func(t *testing.T) string {
			d := zvol(t)
			mkfs(t, d)
			mount(t, d)
			return d
		}, []string{"target-mounted"}, true},
		{"zvol with a file system", func(t *testing.T) string {
			d := zvol(t)
			mkfs(t, d)
			return d
		}, []string{"target-contents"}, false},
		{"read-only", func(t *testing.T) string { return devicetest.Attach(t, devicetest.Image(t, 16*mib), "--read-only") }, []string{"target-read-only"}, true},
		{"image of a loop device", func(t *testing.T) string {
			file := devicetest.Image(t, 16*mib)
			devicetest.Attach(t, file)
			return file
		}, []string{"target-held"}, false},
		{"another link to the image of a loop device", func(t *testing.T) string {
			file := devicetest.Image(t, 16*mib)
			require.NoError(t, os.Link(file, file+".hard"))
			devicetest.Attach(t, file)
			return file + ".hard"
		}, []string{"target-held"}, false},
		{"image of a loop device under a new name", func(t *testing.T) string {
			file := devicetest.Image(t, 16*mib)
			require.NoError(t, os.Link(file, file+".hard"))
			devicetest.Attach(t, file)
			require.NoError(t, os.Remove(file))
			return file + ".hard"
		}, []string{"target-held"}, false},
		{"image with a file system", func(t *testing.T) string {
			file := devicetest.Image(t, 16*mib)
			mkfs(t, "-F", file)
			return file
		}, []string{"target-contents"}, false},
		{"too small", func(t *testing.T) string { return devicetest.Loop(t, 4*mib, 4096) }, []string{"target-too-small"}, true},
	}
}

// dmDevice creates a device-mapper device.
func dmDevice(t *testing.T, table string) string {
	t.Helper()
	name := fmt.Sprintf("zx%08x", rand.Uint32())
	devicetest.Run(t, "dmsetup", "create", name, "--table", table)
	runCleanup(t, "dmsetup", "remove", "--retry", name)
	return "/dev/mapper/" + name
}
