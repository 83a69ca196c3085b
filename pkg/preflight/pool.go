package preflight

import (
	"fmt"
	"strconv"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// fullPercent is how full a pool may be before writes become slow: less and
// less free space is in one piece, and allocation has to search for it.
//
// https://openzfs.github.io/openzfs-docs/Performance%20and%20Tuning/Workload%20Tuning.html (Free Space)
const fullPercent = 90

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
		health, readonly := side.pool.Properties["health"], side.pool.Properties["readonly"]
		f := finding.Finding{
			Host: side.host.Name, Severity: finding.Fail,
			Evidence: fmt.Sprintf("zpool get health,readonly %s: %s, %s", side.pool.Name, health, readonly),
			Remedy:   command("zpool", "status", "-v", side.pool.Name),
		}
		switch {
		case health == "SUSPENDED", health == "FAULTED", health == "UNAVAIL", health == "OFFLINE", health == "REMOVED":
			f.Summary = fmt.Sprintf("pool %s is %s: whatever uses it hangs or fails", side.pool.Name, health)
		case side.target && readonly == "on":
			f.Summary = fmt.Sprintf("pool %s is imported read-only", side.pool.Name)
			f.Remedy = command("zpool", "export", side.pool.Name) + " && " + command("zpool", "import", side.pool.Name)
		case health == "DEGRADED":
			f.Severity, f.Summary = finding.Warn, fmt.Sprintf("pool %s is degraded: it works on with less redundancy", side.pool.Name)
		default:
			continue
		}
		out = append(out, f)
	}
	return out
}

func poolFull(in *Input) []finding.Finding {
	pool := in.TargetListing.Pool
	percent, ok := number(pool.Properties["capacity"])
	if !ok || percent <= fullPercent || in.Plan.Steps() == 0 {
		return nil
	}
	return []finding.Finding{{
		Host: in.Target.Name, Severity: finding.Warn,
		Summary:  fmt.Sprintf("pool %s is %d %% full: writing slows down from %d %% on", pool.Name, percent, fullPercent),
		Evidence: fmt.Sprintf("zpool get capacity %s: %d", pool.Name, percent),
		Remedy:   "what uses it: " + command("zfs", "list", "-o", "space", "-r", pool.Name),
	}}
}

// number parses a number as zfs get -p and zpool get -p print it.
func number(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}
