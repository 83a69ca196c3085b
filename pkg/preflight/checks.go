package preflight

import (
	"fmt"
	"strconv"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// fullPercent is the share of a pool from which on ZFS slows down noticeably:
// allocation then turns to searching for the best fit.
// https://openzfs.github.io/openzfs-docs/Performance%20and%20Tuning/Workload%20Tuning.html#free-space
const fullPercent = 90

func poolHealth(in *Input) []Finding {
	pool := in.TargetListing.Pool
	health := pool.Properties["health"]
	f := Finding{Host: in.Target.Name, Evidence: fmt.Sprintf("zpool get health,readonly %s: %s, %s", pool.Name, health, pool.Properties["readonly"])}
	switch {
	case pool.Properties["readonly"] == "on":
		f.Severity, f.Summary = Fail, fmt.Sprintf("pool %s is imported read-only", pool.Name)
		f.Remedy = fmt.Sprintf("zpool export %s && zpool import %s", pool.Name, pool.Name)
	case health == "SUSPENDED", health == "FAULTED", health == "UNAVAIL", health == "OFFLINE", health == "REMOVED":
		f.Severity, f.Summary = Fail, fmt.Sprintf("pool %s is %s", pool.Name, health)
		f.Remedy = "zpool status -v " + pool.Name
	case health == "DEGRADED":
		f.Severity, f.Summary = Warn, fmt.Sprintf("pool %s is degraded", pool.Name)
		f.Remedy = "zpool status -v " + pool.Name
	default:
		return nil
	}
	return []Finding{f}
}

func number(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

// space compares the estimates with what is available where they arrive: the
// target dataset itself, or its nearest ancestor, which carries the quotas.
func space(in *Input) []Finding {
	var need uint64
	for _, d := range in.Plan.Datasets {
		for _, st := range d.Steps {
			if st.Bytes > st.Done || st.Kind != plan.Resume {
				need += st.Bytes
			}
		}
	}
	where, available, ok := roomFor(&in.TargetListing)
	if need == 0 || !ok || need <= available {
		return nil
	}
	return []Finding{{
		Host: in.Target.Name, Severity: Fail,
		Summary:  fmt.Sprintf("%s has %d bytes available, and about %d will arrive", where, available, need),
		Evidence: fmt.Sprintf("zfs get available %s: %d; estimate of zfs send: %d", where, available, need),
		Remedy:   "make room, or raise the quota: zfs list -o space -r " + where,
	}}
}

func roomFor(l *zfs.Listing) (name string, available uint64, ok bool) {
	for _, d := range l.Datasets {
		if d.Name == l.Root {
			available, ok = number(d.Get("available"))
			return d.Name, available, ok
		}
	}
	if n := len(l.Ancestors); n > 0 {
		d := l.Ancestors[n-1]
		available, ok = number(d.Get("available"))
		return d.Name, available, ok
	}
	return "", 0, false
}

func poolFull(in *Input) []Finding {
	pool := in.TargetListing.Pool
	percent, ok := number(pool.Properties["capacity"])
	if !ok || percent < fullPercent {
		return nil
	}
	return []Finding{{
		Host: in.Target.Name, Severity: Warn,
		Summary:  fmt.Sprintf("pool %s is %d %% full: writing gets slow", pool.Name, percent),
		Evidence: fmt.Sprintf("zpool get capacity %s: %d", pool.Name, percent),
		Remedy:   "zfs list -o space -r " + pool.Name,
	}}
}

// permissions prints the line that delegates what the plan needs, as whether
// it was delegated is not known before it is tried.
func permissions(in *Input) []Finding {
	if in.Plan.Steps() == 0 {
		return nil
	}
	var out []Finding
	add := func(h Host, what, dataset string) {
		if h.Root || h.User == "" {
			return
		}
		out = append(out, Finding{
			Host: h.Name, Severity: Note, Summary: fmt.Sprintf("%s is not root: it needs delegated permissions on %s", h.User, dataset),
			Evidence: "effective user " + h.User,
			Remedy:   fmt.Sprintf("zfs allow -u %s %s %s", h.User, what, dataset),
		})
	}
	add(in.Source, "send,snapshot,hold,bookmark", in.SourceListing.Root)
	target := in.TargetListing.Root
	if n := len(in.TargetListing.Ancestors); len(in.TargetListing.Datasets) == 0 && n > 0 {
		target = in.TargetListing.Ancestors[n-1].Name
	}
	add(in.Target, "create,mount,receive,canmount,readonly,userprop,recordsize,compression", target)
	return out
}
