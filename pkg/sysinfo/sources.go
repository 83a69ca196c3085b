package sysinfo

import "io/fs"

// Files of a captured tree that no Linux has: what zxfer found out itself.
const (
	Platform = "zxfer/platform" // GOOS/GOARCH
	DevZFS   = "zxfer/dev-zfs"  // "ok", or the error of opening /dev/zfs
	PyZFS    = "zxfer/pyzfs"    // where libzfs_core's Python module is, or Missing
)

// Missing is what is not there.
const Missing = "missing"

// FindPyZFS is where Python finds libzfs_core on a host, or Missing.
func FindPyZFS(root fs.FS) string {
	for _, dir := range []string{"usr", "usr/local"} {
		for _, packages := range []string{"dist-packages", "site-packages"} {
			found, err := fs.Glob(root, dir+"/lib/python3*/"+packages+"/libzfs_core")
			if err == nil && len(found) > 0 {
				return "/" + found[0]
			}
		}
	}
	return Missing
}

// Symbols are the kernel's, by far the largest of all files that are read.
const Symbols = "proc/kallsyms"

// Command is the file that holds what one of Commands printed.
func Command(name string) string { return "zxfer/command/" + name }

// Sources are the patterns of all files that facts are read from, for
// fs.Glob. A capture holds these and nothing else: none of them holds a key,
// a password or an address.
func Sources() []string {
	return []string{
		"etc/os-release",
		"proc/sys/kernel/osrelease",
		"proc/cpuinfo", "proc/meminfo", Symbols, "proc/self/mounts",
		"proc/sys/net/ipv4/tcp_rmem", "proc/sys/net/ipv4/tcp_wmem",
		"proc/sys/net/ipv4/tcp_congestion_control", "proc/sys/net/ipv4/tcp_window_scaling",
		"proc/sys/net/core/rmem_max", "proc/sys/net/core/wmem_max",
		"proc/spl/kstat/zfs/fletcher_4_bench", "proc/spl/kstat/zfs/simd",
		"sys/module/zfs/version",
		"sys/module/zfs/parameters/zfs_fletcher_4_impl", "sys/module/zcommon/parameters/zfs_fletcher_4_impl",
		"sys/module/zfs/parameters/icp_aes_impl", "sys/module/icp/parameters/icp_aes_impl",
		"sys/module/zfs/parameters/icp_gcm_impl", "sys/module/icp/parameters/icp_gcm_impl",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
		"sys/class/net/*/operstate", "sys/class/net/*/mtu", "sys/class/net/*/speed", "sys/class/net/*/duplex",
		"sys/class/net/*/statistics/rx_errors", "sys/class/net/*/statistics/rx_packets",
	}
}

// Programs are looked for on PATH; where they are is kept as Command("which"),
// "name\tpath" a line.
func Programs() []string {
	return []string{"nc", "ncat", "mbuffer", "zstd", "ssh", "zfs", "zpool", "python3"}
}

// PoolStatus is the command that tells of pools' data errors. Of what it prints, lines
// that do not begin with one of PoolLines are not kept: they name devices by their
// serial numbers.
const PoolStatus = "zpool-status"

// PoolLines are the first words of the lines of PoolStatus that are read.
func PoolLines() []string { return []string{"pool:", "errors:"} }

// Commands are run, and what they print on both outputs is kept.
func Commands() map[string][]string {
	return map[string][]string{
		"nc-help":     {"nc", "-h"},
		"zfs-version": {"zfs", "version"},
		"zpool-get":   {"zpool", "get", "-Hp", "-o", "name,property,value", "health,capacity,readonly,free,size,ashift"},
		PoolStatus:    {"zpool", "status"},
	}
}
