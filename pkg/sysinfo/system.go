// Package sysinfo reads facts about a Linux host.
//
//   - Root: the host's file system as an fs.FS, live or captured.
//   - Capture: a copy of the files and command output that facts are read from.
//   - Fact: a property of the host. It is "", 0 or empty if it cannot be read.
//   - System: all facts of a host.
//   - Usage: processor time used so far.
//
// It does not measure rates or take captures: package probe does.
package sysinfo

import (
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// System holds all facts of a host that affect transfers. Unknown facts are "", 0
// or empty.
type System struct {
	Platform string // GOOS/GOARCH of the zxfer binary: "linux/amd64"
	OS       string // PRETTY_NAME of os-release
	Kernel   string

	ZFS      string // version of the kernel module: "2.3.9-1"
	Userland string // version of the tools, from zfs version
	DevZFS   string // "ok" if the user may use /dev/zfs, otherwise the error

	Fletcher, AES, GCM Implementation
	FletcherBench      Bench
	SIMD               map[string]string // kstat simd, since 2.2.7: kfpu_allowed etc.
	Symbols            []Symbol          // from kallsyms, only FPU and NEON
	CPU                CPU

	TCP   TCP
	Links []Link
	Tools Tools
	Pools []Pool
	// Mounts lists ZFS and network file systems in mount order.
	Mounts []Mount
	Memory uint64 // bytes
}

// ReadSystem reads all facts from a live host or a capture. See Sources.
func ReadSystem(root fs.FS) System {
	return System{
		Platform: line(root, Platform), OS: osName(root), Kernel: Kernel(root),
		ZFS: ZFSVersion(root), Userland: userland(line(root, Command("zfs-version"))), DevZFS: line(root, DevZFS),
		Fletcher:      implementation(root, "zfs_fletcher_4_impl", "zcommon"),
		AES:           implementation(root, "icp_aes_impl", "icp"),
		GCM:           implementation(root, "icp_gcm_impl", "icp"),
		FletcherBench: parseBench(text(root, "proc/spl/kstat/zfs/fletcher_4_bench")),
		SIMD:          parseSIMD(text(root, "proc/spl/kstat/zfs/simd")),
		Symbols:       parseSymbols(text(root, Symbols)),
		CPU:           readCPU(root),
		TCP:           readTCP(root),
		Links:         readLinks(root),
		Tools:         readTools(root),
		Pools:         parsePools(text(root, Command("zpool-get")), text(root, Command(PoolStatus))),
		Mounts:        parseMounts(text(root, "proc/self/mounts")),
		Memory:        memory(text(root, "proc/meminfo")),
	}
}

// ZFSVersion returns the version of the loaded ZFS kernel module, such as
// "2.3.9-1", or "".
func ZFSVersion(root fs.FS) string { return line(root, "sys/module/zfs/version") }

// Kernel returns the release of the running kernel, as uname -r prints it.
func Kernel(root fs.FS) string { return line(root, "proc/sys/kernel/osrelease") }

// BootID returns the boot ID of the running kernel. Containers and network namespaces
// of one machine share it.
func BootID(root fs.FS) string { return line(root, "proc/sys/kernel/random/boot_id") }

// line returns the first line of a file, or "".
func line(root fs.FS, name string) string {
	first, _, _ := strings.Cut(text(root, name), "\n")
	return strings.TrimSpace(first)
}

// text returns the contents of a file, or "".
func text(root fs.FS, name string) string {
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return string(raw)
}

func osName(root fs.FS) string {
	for l := range strings.Lines(text(root, "etc/os-release")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return ""
}

// userland returns the version in the first line of zfs version.
func userland(s string) string { return strings.TrimPrefix(s, "zfs-") }

func memory(meminfo string) uint64 { return memoryLine(meminfo, "MemTotal:") }

// AvailableMemory returns how many bytes of memory programs can use without swapping, or 0 if
// unknown.
// https://man7.org/linux/man-pages/man5/proc_meminfo.5.html
func AvailableMemory(root fs.FS) uint64 {
	return memoryLine(text(root, "proc/meminfo"), "MemAvailable:")
}

// memoryLine returns the bytes of a line of /proc/meminfo, or 0 if unknown.
func memoryLine(meminfo, name string) uint64 {
	for l := range strings.Lines(meminfo) {
		if f := strings.Fields(l); len(f) >= 2 && f[0] == name {
			n, _ := strconv.ParseUint(f[1], 10, 54) // in KiB; 0 is unknown
			return n << 10
		}
	}
	return 0
}

// Pool is an imported pool, as zpool get -Hp and zpool status report it.
type Pool struct {
	Name       string
	Properties map[string]string
	Errors     uint64 // number of data errors, about as many as zpool status -v lists
	// Known is the name that zxfer heal uses for the pool if copies of it are
	// known, otherwise "". It is not a fact of the host: the caller sets it.
	Known string
}

func parsePools(s, status string) []Pool {
	var out []Pool
	for l := range strings.Lines(s) {
		f := strings.Split(strings.TrimRight(l, "\n"), "\t")
		if len(f) < 3 || f[0] == "" {
			continue
		}
		i := slices.IndexFunc(out, func(p Pool) bool { return p.Name == f[0] })
		if i < 0 {
			i = len(out)
			out = append(out, Pool{Name: f[0], Properties: map[string]string{}})
		}
		out[i].Properties[f[1]] = f[2]
	}
	at := -1
	for l := range strings.Lines(status) {
		switch f := strings.Fields(l); {
		case len(f) >= 2 && f[0] == "pool:":
			at = slices.IndexFunc(out, func(p Pool) bool { return p.Name == strings.Join(f[1:], " ") })
		case len(f) >= 4 && f[0] == "errors:" && f[2] == "data" && at >= 0: // "3 data errors, use '-v' for a list"
			out[at].Errors, _ = strconv.ParseUint(f[1], 10, 31) // "No known data errors" becomes 0
		}
	}
	return out
}

// Mount is a mounted file system. Options are omitted, because those of a network
// file system may contain a user name.
type Mount struct{ Device, Point, Type string }

// parseMounts parses proc/self/mounts and decodes octal escapes of white space.
func parseMounts(s string) []Mount {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []Mount
	for l := range strings.Lines(s) {
		if f := strings.Fields(l); len(f) >= 3 {
			out = append(out, Mount{unescape.Replace(f[0]), unescape.Replace(f[1]), f[2]})
		}
	}
	return out
}

// Tools lists programs that zxfer and its users can use.
type Tools struct {
	Paths map[string]string // by name, only installed programs
	PyZFS string            // path of pyzfs, Missing, or "" if unknown
	NC    string            // dialect of the first nc in PATH, or ""
}

// Dialects of nc.
const (
	OpenBSD     = "openbsd"
	Traditional = "traditional"
	Ncat        = "ncat"
	BusyBox     = "busybox"
	GNU         = "gnu"
	UnknownNC   = "unknown"
)

func readTools(root fs.FS) Tools {
	t := Tools{Paths: map[string]string{}, PyZFS: line(root, PyZFS)}
	for l := range strings.Lines(text(root, Command("which"))) {
		if name, where, ok := strings.Cut(strings.TrimSpace(l), "\t"); ok {
			t.Paths[name] = where
		}
	}
	if t.Paths["nc"] != "" {
		t.NC = NCDialect(text(root, Command("nc-help")))
	}
	return t
}

// NCDialect returns the dialect of nc that printed a help text.
func NCDialect(help string) string {
	low := strings.ToLower(help)
	switch {
	case strings.Contains(low, "busybox"):
		return BusyBox
	case strings.Contains(low, "openbsd"), strings.Contains(low, "shutdown the network socket after eof on stdin"): // FreeBSD's too
		return OpenBSD
	case strings.Contains(low, "ncat"):
		return Ncat
	case strings.Contains(low, "[v1.10"):
		return Traditional
	case strings.Contains(low, "gnu netcat"):
		return GNU
	}
	return UnknownNC
}

// FindPyZFS returns the path of Python's libzfs_core, or Missing.
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
