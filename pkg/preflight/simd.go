package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// minGain is the speedup in percent that another implementation needs to be recommended.
// Benchmarks at load time vary by some percent.
const minGain = 20

// fpu checks the kernel symbols that ZFS needs for vector registers.
//
// Linux 5.0 removed __kernel_fpu_begin and exports kernel_fpu_begin to GPL modules only; stable
// 4.19.38 and 4.14.120 followed. OpenZFS 0.7.13 to 0.8.2 then ran without SIMD. Since 0.8.3 it
// saves the registers itself (openzfs#9346) and does not need the export. On ARM,
// kernel_neon_begin became GPL-only in Linux 6.2 (openzfs#14555).
func fpu(s *sysinfo.System) []finding.Finding {
	if s.ZFS == "" {
		return nil
	}
	if allowed, ok := s.SIMD["kfpu_allowed"]; ok {
		f := finding.Finding{Severity: finding.OK, Summary: "ZFS can use vector registers", Evidence: "/proc/spl/kstat/zfs/simd: kfpu_allowed " + allowed}
		if allowed != "1" {
			f.Severity, f.Summary = finding.Warn, "ZFS cannot use vector registers: checksums, RAID-Z and encryption are several times slower"
			f.Remedy = "build ZFS for a kernel that lets it use vector registers"
		}
		return findings(f)
	}
	v, okV := zfs.ParseRelease(s.ZFS)
	k, okK := zfs.ParseRelease(s.Kernel)
	if !okV || !okK {
		return nil
	}
	var exported, oldExport bool
	var names []string
	for _, sym := range s.Symbols {
		names = append(names, sym.Type+" "+sym.Name)
		exported = exported || sym.Exported()
		oldExport = oldExport || sym.Exported() && strings.TrimPrefix(sym.Name, "__ksymtab_") == "__kernel_fpu_begin"
	}
	evidence := fmt.Sprintf("/proc/kallsyms: %s; ZFS %s, kernel %s", cmp.Or(strings.Join(names, ", "), "none"), s.ZFS, s.Kernel)
	arm := strings.HasSuffix(s.Platform, "/arm64")
	switch {
	case s.Fletcher.HasVectors():
		return findings(finding.Finding{Severity: finding.OK, Summary: "ZFS uses vector registers", Evidence: "/" + s.Fletcher.Path + ": " + s.Fletcher.Raw})
	case arm && !k.Before(zfs.Release{6, 2}) && s.Fletcher.Known():
		return findings(finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("kernel %s exports kernel_neon_begin only to GPL modules: ZFS cannot use NEON", s.Kernel),
			Evidence: evidence, Remedy: "use a kernel that exports it, or accept slower checksums and encryption"})
	case !arm && lacksExport(k) && v.Within(zfs.Release{0, 7, 13}, zfs.Release{0, 8, 3}) && !oldExport:
		return findings(finding.Finding{Severity: finding.Fail, Summary: fmt.Sprintf("ZFS %s cannot use vector registers on kernel %s, which no longer exports __kernel_fpu_begin: checksums and encryption are several times slower", s.ZFS, s.Kernel),
			Evidence: evidence, Remedy: "upgrade ZFS to 0.8.3 or later"})
	case !arm && !exported:
		return findings(finding.Finding{Severity: finding.Note, Summary: "the kernel exports no FPU symbol, which this ZFS does not need", Evidence: evidence})
	}
	return nil
}

// lacksExport reports whether a kernel lacks __kernel_fpu_begin.
func lacksExport(k zfs.Release) bool {
	return !k.Before(zfs.Release{5}) || k.Within(zfs.Release{4, 19, 38}, zfs.Release{4, 20}) || k.Within(zfs.Release{4, 14, 120}, zfs.Release{4, 15})
}

// formatRate formats a rate in the unit of ZFS's benchmark, MB/s.
func formatRate(n uint64) string { return fmt.Sprintf("%d MB/s", n/1_000_000) }

// setParameter returns the command that changes an implementation until the next boot.
func setParameter(i sysinfo.Implementation, value string) string {
	return fmt.Sprintf("echo %s > /%s", value, i.Path)
}

func fletcher(s *sysinfo.System) []finding.Finding {
	i, bench := s.Fletcher, s.FletcherBench
	if !i.Known() {
		return nil
	}
	evidence := "/" + i.Path + ": " + i.Raw
	used := i.Chosen
	if used == "fastest" && bench.Fastest != "" {
		used = bench.Fastest
	}
	rate := bench.Rates[used]
	best, bestRate := used, rate
	for _, name := range i.Available {
		if r := bench.Rates[name]; r > bestRate {
			best, bestRate = name, r
		}
	}
	if len(bench.Rates) > 0 {
		evidence += "; /proc/spl/kstat/zfs/fletcher_4_bench: " + used + " " + formatRate(rate)
	}
	chosen := i.Chosen
	if used != i.Chosen {
		chosen += " (" + used + ")"
	}
	if rate > 0 && bestRate > rate+rate*minGain/100 {
		return findings(finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("fletcher_4 uses %s at %s, but %s reaches %s", chosen, formatRate(rate), best, formatRate(bestRate)),
			Evidence: evidence, Remedy: setParameter(i, "fastest")})
	}
	f := finding.Finding{Severity: finding.OK, Summary: "fletcher_4 is " + chosen, Evidence: evidence}
	if rate > 0 {
		f.Summary += " at " + formatRate(rate)
	}
	return findings(f)
}

// unit is a set of processor instructions that some implementations use.
type unit struct {
	flags []string // in /proc/cpuinfo, all required
	names []string // implementations that use them
}

func aes(s *sysinfo.System) []finding.Finding {
	return checkInstructions(s, s.AES, "AES", []string{"generic", "x86_64"}, unit{[]string{"aes"}, []string{"aesni"}})
}

func gcm(s *sysinfo.System) []finding.Finding {
	return checkInstructions(s, s.GCM, "GCM", []string{"generic"}, unit{[]string{"pclmulqdq"}, []string{"pclmulqdq", "avx", "avx2-vaes"}})
}

// checkInstructions checks the choice of an implementation without a benchmark. A slow one is
// wrong if the processor has the instructions.
func checkInstructions(s *sysinfo.System, i sysinfo.Implementation, what string, slow []string, u unit) []finding.Finding {
	if !i.Known() {
		return nil
	}
	evidence := "/" + i.Path + ": " + i.Raw
	switch {
	case s.CPU.Has(u.flags...) && !i.Has(u.names...) && !strings.HasSuffix(s.Platform, "/arm64"): // ARM has only the generic one
		return findings(finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("the processor has %s, but ZFS cannot use it for %s", strings.Join(u.flags, ", "), what),
			Evidence: evidence + "; /proc/cpuinfo: flags", Remedy: "upgrade ZFS, or see check fpu: this build uses no vector registers"})
	case slices.Contains(slow, i.Chosen) && i.Has(u.names...):
		return findings(finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("%s uses %s, although %s is available", what, i.Chosen, u.names[0]),
			Evidence: evidence, Remedy: setParameter(i, "fastest")})
	case !s.CPU.Has(u.flags...) && len(s.CPU.Flags) > 0 && !strings.HasSuffix(s.Platform, "/arm64"):
		return findings(finding.Finding{Severity: finding.Note, Summary: fmt.Sprintf("the processor has no %s: encrypted datasets are slow to read and write", strings.Join(u.flags, ", ")), Evidence: evidence})
	}
	return findings(finding.Finding{Severity: finding.OK, Summary: what + " is " + i.Chosen, Evidence: evidence})
}
