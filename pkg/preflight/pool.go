package preflight

import (
	"fmt"
	"strconv"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// fullPercent is the usage above which writes become slow, because free space is fragmented and
// allocation has to search for it.
//
// https://openzfs.github.io/openzfs-docs/Performance%20and%20Tuning/Workload%20Tuning.html (Free Space)
const fullPercent = 90

// unhealthy checks the health of a pool. It returns nil if the pool is healthy or its health is
// unknown.
func unhealthy(pool, health string) *finding.Finding {
	f := &finding.Finding{Severity: finding.Fail, Summary: fmt.Sprintf("pool %s is %s: whatever uses it hangs or fails", pool, health),
		Remedy: command("zpool", "status", "-v", pool)}
	switch health {
	case "ONLINE", "":
		return nil
	case "DEGRADED":
		f.Severity, f.Summary = finding.Warn, fmt.Sprintf("pool %s is degraded: it works on with less redundancy", pool)
	}
	return f
}

// Damaged returns a finding for a pool's data errors, or nil. The remedy is a dry run of zxfer
// heal with the given flags.
func Damaged(p *sysinfo.Pool, zfs, flags string) *finding.Finding {
	if p.Errors == 0 {
		return nil
	}
	f := &finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("pool %s has data errors: what they are in cannot be read or sent whole", p.Name),
		Evidence: fmt.Sprintf("zpool status %s: %s", p.Name, english.Plural(int(p.Errors), "data error", "")),
		Remedy:   command("zxfer", "heal", "-n", p.Name, "HOST:COPY") + " shows what a copy could mend, and changes nothing"}
	if p.Known != "" {
		f.Remedy = command("zxfer", "heal", "-n", p.Known) + flags + " shows what its copies could mend, and changes nothing"
	}
	if !CanHeal(zfs) {
		f.Remedy = "OpenZFS before 2.2 cannot heal; " + command("zpool", "status", "-v", p.Name) + " lists the files, and zxfer restore --files PATH HOST:COPY@SNAPSHOT DIRECTORY brings one back"
	}
	return f
}

// CanHeal reports whether a version of OpenZFS heals blocks (zfs receive -c).
func CanHeal(zfs string) bool {
	v, ok := parseVersion(zfs)
	return !ok || !v.before(version{2, 2, 0})
}

// nearlyFull checks how full a pool is; nil if it has space.
func nearlyFull(pool string, percent uint64) *finding.Finding {
	if percent <= fullPercent {
		return nil
	}
	return &finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("pool %s is %d %% full: writing slows down from %d %% on", pool, percent, fullPercent),
		Remedy: "make room; what uses it: " + command("zfs", "list", "-o", "space", "-r", pool)}
}

func poolHealth(in *Input) []finding.Finding {
	if in.Plan.Steps() == 0 {
		return nil
	}
	var out []finding.Finding
	for _, side := range []struct {
		host   Host
		pool   zfs.Pool
		target bool
	}{{in.Source, in.SourceListing.Pool, false}, {in.Target, in.TargetListing.Pool, true}} {
		name, health, readonly := side.pool.Name, side.pool.Properties["health"], side.pool.Properties["readonly"]
		f := unhealthy(name, health)
		if side.target && readonly == "on" && (f == nil || f.Severity != finding.Fail) {
			f = &finding.Finding{Severity: finding.Fail, Summary: fmt.Sprintf("pool %s is imported read-only", name),
				Remedy: command("zpool", "export", name) + " && " + command("zpool", "import", name)}
		}
		if f != nil {
			f.Host, f.Evidence = side.host.Name, fmt.Sprintf("zpool get health,readonly %s: %s, %s", name, health, readonly)
			out = append(out, *f)
		}
	}
	return out
}

func poolFull(in *Input) []finding.Finding {
	pool := in.TargetListing.Pool
	percent, _ := number(pool.Properties["capacity"])
	f := nearlyFull(pool.Name, percent)
	if f == nil || in.Plan.Steps() == 0 {
		return nil
	}
	f.Host, f.Evidence = in.Target.Name, fmt.Sprintf("zpool get capacity %s: %d", pool.Name, percent)
	return findings(*f)
}

// number parses a number as zfs get -p and zpool get -p print it.
func number(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}
