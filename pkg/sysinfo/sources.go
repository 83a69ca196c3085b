package sysinfo

// Files of a capture that do not exist on Linux. zxfer creates them.
const (
	Platform = "zxfer/platform" // GOOS/GOARCH
	DevZFS   = "zxfer/dev-zfs"  // "ok", or the error of opening /dev/zfs
	PyZFS    = "zxfer/pyzfs"    // path of the Python module libzfs_core, or Missing
)

// Missing marks a module that is not installed.
const Missing = "missing"

// Symbols is the kernel's symbol table, by far the largest source.
const Symbols = "proc/kallsyms"

// Command returns the path of a command's output in a capture.
func Command(name string) string { return "zxfer/command/" + name }

// Sources returns the fs.Glob patterns of all files that facts are read from. A
// capture contains no other system files. They hold no keys, passwords or
// addresses.
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

// Programs returns the programs to look up in PATH. Command("which") holds the
// result, with lines "name\tpath".
func Programs() []string {
	return []string{"nc", "ncat", "mbuffer", "zstd", "ssh", "zfs", "zpool", "python3"}
}

// PoolStatus is the command that reports data errors of pools. A capture keeps only
// lines that start with one of PoolLines, because others contain serial numbers of
// devices.
const PoolStatus = "zpool-status"

// PoolLines returns the first words of the lines of PoolStatus that are read.
func PoolLines() []string { return []string{"pool:", "errors:"} }

// Commands returns the commands to run, by name. A capture keeps their combined
// output.
func Commands() map[string][]string {
	return map[string][]string{
		"nc-help":     {"nc", "-h"},
		"zfs-version": {"zfs", "version"},
		"zpool-get":   {"zpool", "get", "-Hp", "-o", "name,property,value", "health,capacity,readonly,free,size,ashift"},
		PoolStatus:    {"zpool", "status"},
	}
}
