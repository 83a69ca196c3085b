package sysinfo

import (
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Implementation is a module parameter that selects an implementation, such as
// "[fastest] scalar sse2 avx2". The brackets mark the current choice.
type Implementation struct {
	Path      string // below the root, without the leading "/"; "" if missing
	Raw       string // the first line of the file
	Chosen    string // "fastest", "scalar"
	Available []string
}

// Known reports whether the parameter could be read.
func (i Implementation) Known() bool { return i.Path != "" }

// Has reports whether any of the named implementations is available.
func (i Implementation) Has(names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(i.Available, n) })
}

// implementation reads a parameter of zfs.ko, which has all of them since 2.2, or
// of the module that had it earlier.
func implementation(root fs.FS, name, olderModule string) Implementation {
	for _, module := range []string{"zfs", olderModule} {
		path := "sys/module/" + module + "/parameters/" + name
		if raw := line(root, path); raw != "" {
			i := parseImplementation(raw)
			i.Path = path
			return i
		}
	}
	return Implementation{}
}

func parseImplementation(raw string) Implementation {
	i := Implementation{Raw: raw}
	for f := range strings.FieldsSeq(raw) {
		name := strings.Trim(f, "[]")
		if name == "" {
			continue
		}
		if strings.HasPrefix(f, "[") {
			i.Chosen = name
		}
		if name != "fastest" && name != "cycle" {
			i.Available = append(i.Available, name)
		}
	}
	return i
}

// Bench is a kstat of a benchmark that ZFS runs when it is loaded: bytes per second
// by implementation, in native byte order.
type Bench struct {
	Rates   map[string]uint64
	Fastest string // the implementation that "fastest" selects
}

// parseBench parses fletcher_4_bench.
// https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/zcommon/zfs_fletcher.c (fletcher_4_kstat_data)
func parseBench(s string) Bench {
	b := Bench{Rates: map[string]uint64{}}
	for l := range strings.Lines(s) {
		f := strings.Fields(l)
		if len(f) != 3 {
			continue
		}
		if f[0] == "fastest" {
			b.Fastest = f[1]
			continue
		}
		if n, err := strconv.ParseUint(f[1], 10, 63); err == nil {
			b.Rates[f[0]] = n
		}
	}
	return b
}

// parseSIMD parses the kstat simd, which has a name and a value per line.
func parseSIMD(s string) map[string]string {
	out := map[string]string{}
	for l := range strings.Lines(s) {
		if f := strings.Fields(l); len(f) == 2 {
			out[f[0]] = f[1]
		}
	}
	return out
}

// Symbol is a line of kallsyms. The Type of global symbols is upper case.
type Symbol struct{ Type, Name string }

// Exported reports whether kallsyms shows that modules may link to the symbol: it
// is global or has an entry in the export table.
func (s Symbol) Exported() bool {
	return s.Type != strings.ToLower(s.Type) || strings.HasPrefix(s.Name, "__ksymtab_")
}

// IsVectorSymbol reports whether a symbol shows that ZFS may use vector registers in
// the kernel. Only such symbols are kept.
func IsVectorSymbol(symbol string) bool {
	return strings.Contains(symbol, "kernel_fpu_begin") || strings.Contains(symbol, "kernel_neon_begin")
}

// HasVectors reports whether an implementation that uses vector registers is
// available.
func (i Implementation) HasVectors() bool {
	return i.Has("sse2", "ssse3", "avx2", "avx512f", "avx512bw", "aarch64_neon")
}

// NeedSymbols reports whether only the kernel's symbols can show if ZFS may use
// vector registers. This is so if ZFS is loaded, and has neither the kstat simd nor
// an implementation that uses them.
func NeedSymbols(root fs.FS) bool {
	return ZFSVersion(root) != "" && text(root, "proc/spl/kstat/zfs/simd") == "" &&
		!implementation(root, "zfs_fletcher_4_impl", "zcommon").HasVectors()
}

func parseSymbols(s string) []Symbol {
	var out []Symbol
	for l := range strings.Lines(s) {
		if f := strings.Fields(l); len(f) >= 3 && IsVectorSymbol(f[2]) {
			out = append(out, Symbol{f[1], f[2]})
		}
	}
	return out
}

// CPU describes the first processor in /proc/cpuinfo.
type CPU struct {
	Model    string
	Count    int
	Flags    []string // features on ARM
	Governor string   // of frequency scaling, or ""
}

// Has reports whether the processor has all of the flags.
func (c CPU) Has(flags ...string) bool {
	for _, f := range flags {
		if !slices.Contains(c.Flags, f) {
			return false
		}
	}
	return true
}

func readCPU(root fs.FS) CPU {
	c := CPU{Governor: line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")}
	for l := range strings.Lines(text(root, "proc/cpuinfo")) {
		name, value, ok := strings.Cut(l, ":")
		if !ok {
			continue
		}
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "processor":
			c.Count++
		case "model name":
			c.Model = value
		case "flags", "Features":
			if c.Flags == nil {
				c.Flags = strings.Fields(value)
			}
		}
	}
	return c
}

// Usage holds the counters of /proc/stat for all processors, in ticks of 1/100 s.
//
// The kernel samples busy time at each tick. This overstates work that the tick
// itself wakes, such as a shaped network's. With CONFIG_NO_HZ_IDLE, idle time is
// measured exactly. So busy time here is all time that is not idle, including time
// stolen by a hypervisor.
// https://man7.org/linux/man-pages/man5/proc_stat.5.html
type Usage struct {
	cpus, idle, iowait float64
	at                 time.Time
}

// ReadUsage reads the counters from a host's root. If it cannot, the result is zero
// usage.
func ReadUsage(root fs.FS) Usage {
	raw, _ := fs.ReadFile(root, "proc/stat")
	return parseUsage(string(raw), time.Now())
}

// parseUsage parses "cpu user nice system idle iowait ..." and counts the lines of
// single processors.
func parseUsage(stat string, at time.Time) Usage {
	u := Usage{at: at}
	for l := range strings.Lines(stat) {
		f := strings.Fields(l)
		switch {
		case len(f) < 6 || !strings.HasPrefix(f[0], "cpu"):
		case f[0] == "cpu":
			u.idle, u.iowait = ticks(f[4]), ticks(f[5])
		default:
			u.cpus++
		}
	}
	return u
}

// ticks returns 0 if s is not a number.
func ticks(s string) float64 {
	n, err := strconv.ParseUint(s, 10, 53)
	if err != nil {
		return 0
	}
	return float64(n)
}

// Processors returns the number of processors, or 0 if unknown.
func (u Usage) Processors() int { return int(u.cpus) }

// Since returns the average number of processors that were busy, and that waited
// for I/O.
func (u Usage) Since(earlier Usage) (busy, iowait float64) {
	passed := u.at.Sub(earlier.at).Seconds() * 100
	if passed <= 0 {
		return 0, 0
	}
	iowait = max(0, (u.iowait-earlier.iowait)/passed)
	idle := max(0, (u.idle-earlier.idle)/passed)
	return max(0, u.cpus-idle-iowait), iowait
}
