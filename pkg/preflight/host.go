package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/size"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

const (
	fletcherSource = "https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/zcommon/zfs_fletcher.c"
	aesSource      = "https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/icp/algs/aes/aes_impl.c"
	gcmSource      = "https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/icp/algs/modes/gcm.c"
	tcpSource      = "https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html"
	tcpInfoSource  = "https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h"
)

// hostChecks returns the checks of a single host.
func hostChecks() []Check {
	return []Check{
		{ID: "agent", Title: "zxfer runs on the host", Needs: "a login through ssh", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-send.8.html", access: agent},
		{ID: "platform", Title: "The host runs Linux", Needs: sysinfo.Platform, Docs: "https://openzfs.github.io/openzfs-docs/Getting%20Started/index.html", host: platform, device: true},
		{ID: "zfs-module", Title: "The ZFS kernel module is loaded and matches the tools", Needs: "/sys/module/zfs/version, zfs version", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-version.8.html", host: zfsModule},
		{ID: "zfs-device", Title: "The user may open /dev/zfs", Needs: "/dev/zfs", Docs: "https://github.com/openzfs/zfs/blob/zfs-2.3.0/udev/rules.d/90-zfs.rules.in", host: zfsDevice},
		{ID: "fpu", Title: "ZFS may use the processor's vector registers", Needs: "/proc/kallsyms, /proc/spl/kstat/zfs/simd", Docs: "https://github.com/openzfs/zfs/issues/8793", host: fpu},
		{ID: "fletcher", Title: "ZFS uses the fastest checksum implementation", Needs: "zfs_fletcher_4_impl, /proc/spl/kstat/zfs/fletcher_4_bench", Docs: fletcherSource, host: fletcher},
		{ID: "aes", Title: "ZFS encrypts with the processor's AES instructions", Needs: "icp_aes_impl, /proc/cpuinfo", Docs: aesSource, host: aes},
		{ID: "gcm", Title: "ZFS authenticates with carry-less multiply instructions", Needs: "icp_gcm_impl, /proc/cpuinfo", Docs: gcmSource, host: gcm},
		{ID: "pools", Title: "All pools are healthy, without errors, and not nearly full", Needs: "zpool get, zpool status", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zpoolconcepts.7.html", host: pools},
		{ID: "mounts", Title: "No ZFS file system is hidden by another mount", Needs: "/proc/self/mounts", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zfsprops.7.html", host: mounts},
		{ID: "tcp-scaling", Title: "TCP windows can exceed 64 KiB", Needs: "net.ipv4.tcp_window_scaling", Docs: tcpSource, host: tcpScaling, device: true},
		{ID: "tcp-buffers", Title: "Socket buffers can grow large enough for a fast link", Needs: "net.ipv4.tcp_rmem, tcp_wmem", Docs: tcpSource, host: tcpBuffers, device: true},
		{ID: "nic", Title: "Network interfaces run in full duplex, without errors", Needs: "/sys/class/net", Docs: "https://www.kernel.org/doc/html/latest/networking/statistics.html", host: nics, device: true},
		{ID: "governor", Title: "The processor's clock rate is not limited", Needs: "scaling_governor", Docs: "https://www.kernel.org/doc/html/latest/admin-guide/pm/cpufreq.html", host: governor, device: true},
		{ID: "netcat", Title: "The first nc in PATH ends with its connection", Needs: "nc -h", Docs: "https://manpages.debian.org/trixie/netcat-openbsd/nc.1.en.html", host: netcat, device: true},
		{ID: "pyzfs", Title: "zxfer can use libzfs_core, which batches operations", Needs: sysinfo.PyZFS, Docs: "https://github.com/openzfs/zfs/tree/zfs-2.3.0/contrib/pyzfs", host: pyzfs},
		{ID: "tools", Title: "Optional tools are installed", Needs: "PATH", Docs: "https://www.maier-komor.de/mbuffer.html", host: tools, device: true},
	}
}

func findings(f finding.Finding) []finding.Finding { return []finding.Finding{f} }

// agent reports why zxfer does not run on a host.
func agent(h *Host) []finding.Finding {
	if h.NoAgent == "" {
		return nil
	}
	return findings(finding.Finding{Severity: finding.Note, Summary: "zxfer uses its zfs through ssh, with one connection, and cannot: " + strings.Join(h.Lacking, "; "),
		Evidence: h.NoAgent, Remedy: "if it runs Linux, install zxfer there, in the PATH of ssh commands"})
}

func platform(s *sysinfo.System) []finding.Finding {
	if system, _, _ := strings.Cut(s.Platform, "/"); system != "" && system != "linux" {
		return findings(finding.Finding{Severity: finding.Fail, Summary: fmt.Sprintf("%s is not supported: zxfer supports only OpenZFS on Linux", system),
			Evidence: "built for " + s.Platform, Remedy: "run zxfer on a Linux host, or run zfs send and zfs receive there manually"})
	}
	return findings(finding.Finding{Severity: finding.OK, Summary: fmt.Sprintf("%s, kernel %s", cmp.Or(s.OS, "unknown"), cmp.Or(s.Kernel, "unknown")),
		Evidence: fmt.Sprintf("%s; %s, %s; %s memory", cmp.Or(s.Platform, "unknown"), english.Plural(s.CPU.Count, "CPU", ""), cmp.Or(s.CPU.Model, "unknown"), size.Text(s.Memory))})
}

func zfsModule(s *sysinfo.System) []finding.Finding {
	const path = "/sys/module/zfs/version"
	switch {
	case s.ZFS == "" && s.Tools.Paths["zfs"] == "":
		return findings(finding.Finding{Severity: finding.Note, Summary: "ZFS is not installed: zxfer can copy only devices and images", Evidence: path + " is missing, and zfs is not in PATH",
			Remedy: "apt install zfsutils-linux zfs-dkms && modprobe zfs"})
	case s.ZFS == "":
		return findings(finding.Finding{Severity: finding.Fail, Summary: "the ZFS tools are installed, but the kernel module is not loaded", Evidence: path + " is missing",
			Remedy: "modprobe zfs (for a container, on its host)"})
	case s.Userland != "" && !sameRelease(s.ZFS, s.Userland):
		return findings(finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("ZFS versions differ: kernel module %s, tools %s", s.ZFS, s.Userland),
			Evidence: path + ": " + s.ZFS + "; zfs version: " + s.Userland, Remedy: "reboot, or load the kernel module of the installed version"})
	}
	return findings(finding.Finding{Severity: finding.OK, Summary: "OpenZFS " + s.ZFS, Evidence: path + ": " + s.ZFS})
}

func sameRelease(a, b string) bool {
	v, okA := zfs.ParseRelease(a)
	w, okB := zfs.ParseRelease(b)
	return !okA || !okB || v == w
}

func zfsDevice(s *sysinfo.System) []finding.Finding {
	if s.ZFS == "" || s.DevZFS == "ok" || s.DevZFS == "" {
		return nil
	}
	return findings(finding.Finding{Severity: finding.Fail, Summary: "the user cannot open /dev/zfs", Evidence: "open /dev/zfs: " + s.DevZFS,
		Remedy: "run zxfer as root, or pass /dev/zfs to the container"})
}

func pyzfs(s *sysinfo.System) []finding.Finding {
	switch {
	case s.ZFS == "" || s.Tools.PyZFS == "":
		return nil
	case s.Tools.PyZFS == sysinfo.Missing:
		return findings(finding.Finding{Severity: finding.Note, Summary: "pyzfs is not installed: zxfer runs zfs(8), which is slower for thousands of snapshots",
			Evidence: "python3 has no module libzfs_core", Remedy: "apt install python3-pyzfs"})
	}
	return findings(finding.Finding{Severity: finding.OK, Summary: "pyzfs is installed", Evidence: s.Tools.PyZFS})
}

func pools(s *sysinfo.System) []finding.Finding {
	var out []finding.Finding
	for _, p := range s.Pools {
		percent, _ := number(p.Properties["capacity"])
		free, _ := number(p.Properties["free"])
		ill := cmp.Or(unhealthy(p.Name, p.Properties["health"]), nearlyFull(p.Name, percent))
		if f := Damaged(&p, s.ZFS, ""); f != nil {
			out = append(out, *f)
			if ill == nil {
				continue
			}
		}
		ok := finding.Finding{Severity: finding.OK, Summary: fmt.Sprintf("pool %s is online, %d %% full, %s free", p.Name, percent, size.Text(free))}
		f := cmp.Or(ill, &ok)
		f.Evidence = fmt.Sprintf("zpool get health,capacity %s: %s, %d", p.Name, p.Properties["health"], percent)
		out = append(out, *f)
	}
	return out
}

// mounts finds ZFS filesystems hidden by a later mount. Writes to the path then go elsewhere,
// and received data is not visible.
func mounts(s *sysinfo.System) []finding.Finding {
	var out []finding.Finding
	var hiding []string
	for i, m := range s.Mounts {
		if m.Type != "zfs" {
			continue
		}
		for _, later := range s.Mounts[i+1:] {
			// Only a mount on the point itself or above it hides the whole filesystem.
			if later.Point != m.Point && !strings.HasPrefix(m.Point, strings.TrimSuffix(later.Point, "/")+"/") {
				continue
			}
			out = append(out, finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("%s at %s is hidden by %s, which was mounted later at %s", m.Device, m.Point, later.Device, later.Point),
				Evidence: "/proc/self/mounts"})
			if !slices.Contains(hiding, later.Point) {
				hiding = append(hiding, later.Point)
			}
			break
		}
	}
	if len(out) > 0 {
		slices.Reverse(hiding) // the last mount may be below another one
		out[len(out)-1].Remedy = command(append([]string{"umount"}, hiding...)...) + "\nor change the mountpoints"
	}
	return out
}
