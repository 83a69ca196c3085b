package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/remedy"
	"zxfer/pkg/size"
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
	f := &finding.Finding{Severity: finding.Fail, Summary: fmt.Sprintf("pool %s is %s: all access to it hangs or fails", pool, health),
		Remedy: command("zpool", "status", "-v", pool)}
	switch health {
	case "ONLINE", "":
		return nil
	case "DEGRADED":
		f.Severity, f.Summary = finding.Warn, fmt.Sprintf("pool %s is degraded: it has less redundancy", pool)
	}
	return f
}

// Damaged returns a finding for a pool's data errors, or nil. The remedy is a dry run of zxfer
// heal with the given flags.
func Damaged(p *sysinfo.Pool, zfs, flags string) *finding.Finding {
	if p.Errors == 0 {
		return nil
	}
	f := &finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("pool %s has data errors: the damaged files cannot be read or sent completely", p.Name),
		Evidence: fmt.Sprintf("zpool status %s: %s", p.Name, english.Plural(int(p.Errors), "data error", "")),
		Remedy:   command("zxfer", "heal", "-n", p.Name, "HOST:COPY") + " shows which blocks a copy can heal, and changes nothing"}
	if p.Known != "" {
		f.Remedy = remedy.Command("zxfer", "heal", "-n", p.Known) + flags + " shows which blocks its copies can heal, and changes nothing"
	}
	if !CanHeal(zfs) {
		f.Remedy = "OpenZFS before 2.2 cannot heal; " + command("zpool", "status", "-v", p.Name) + " lists the files, and zxfer restore --files PATH HOST:COPY@SNAPSHOT DIRECTORY restores one"
	}
	return f
}

// CanHeal reports whether a version of OpenZFS heals blocks (zfs receive -c).
func CanHeal(version string) bool {
	v, ok := zfs.ParseRelease(version)
	return !ok || !v.Before(zfs.Release{2, 2, 0})
}

// nearlyFull checks how full a pool is; nil if it has space.
func nearlyFull(pool string, percent uint64) *finding.Finding {
	if percent <= fullPercent {
		return nil
	}
	return &finding.Finding{Severity: finding.Warn, Summary: fmt.Sprintf("pool %s is %d %% full: writing slows down above %d %%", pool, percent, fullPercent),
		Remedy: "free space; to show the space usage: " + command("zfs", "list", "-o", "space", "-r", pool)}
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
				Remedy: remedy.Mark(remedy.Command("zpool", "export", name) + " && " + remedy.Command("zpool", "import", name))}
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

// demand is the space that a plan needs in one existing target dataset.
type demand struct {
	own   datasetGrowth // of the dataset itself
	total datasetGrowth // with its descendants
}

// exceeds compares the need of a dataset with its available space, in bytes. Quotas and the space
// of the pool are shared with descendants, a refquota is not. If there is one, the shared space is
// unknown.
func (n *demand) exceeds(d *zfs.Dataset) (available uint64, need *datasetGrowth, short bool) {
	need = &n.total
	if hasRefquota(d) {
		need = &n.own
	}
	available, known := number(d.Get("available"))
	return available, need, known && need.bytes > available
}

// space compares the expected growth with the available space. The pool and the quotas of all
// ancestors limit the space of a dataset.
func space(in *Input) []finding.Finding {
	existing := in.TargetListing.ByName()
	demands := map[string]*demand{}
	for _, d := range in.Plan.Datasets {
		addDemand(demands, existing, d.Target, growthOf(in, existing, d))
	}
	var out []finding.Finding
	for name, n := range demands {
		available, need, short := n.exceeds(existing[name])
		if !short || ancestorTooSmall(demands, existing, name) {
			continue
		}
		f := finding.Finding{
			Host: in.Target.Name, Severity: finding.Fail, Target: name,
			Summary:  fmt.Sprintf("%s has %s available, but the transfer needs about %s", name, size.Text(available), size.Text(need.bytes)),
			Evidence: fmt.Sprintf("zfs get available %s: %d; zfs send -nvP: %d", name, available, need.bytes),
			Remedy:   "free space; to show usage and quotas: " + command("zfs", "list", "-o", "space,quota,refquota", "-r", zfs.PoolOf(name)),
		}
		if len(need.less) > 0 {
			f.Severity = finding.Warn
			f.Summary = fmt.Sprintf("%s has %s available, but the transfer may need up to %s, or less: %s", name, size.Text(available), size.Text(need.bytes), finding.JoinFirst(need.less, 2))
		}
		if len(need.factors) > 0 {
			f.Evidence += ", with " + finding.JoinFirst(need.factors, 2)
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b finding.Finding) int { return cmp.Compare(a.Summary, b.Summary) })
	return out
}

// addDemand adds the growth of a target to every existing dataset at or above it.
func addDemand(demands map[string]*demand, existing map[string]*zfs.Dataset, target string, g datasetGrowth) {
	if g.bytes == 0 {
		return
	}
	for name := target; name != ""; name = zfs.ParentOf(name) {
		if existing[name] == nil {
			continue
		}
		if demands[name] == nil {
			demands[name] = &demand{}
		}
		demands[name].total.add(g)
		if name == target {
			demands[name].own.add(g)
		}
	}
}

// ancestorTooSmall reports whether an ancestor lacks space too. Its finding is then enough.
func ancestorTooSmall(demands map[string]*demand, existing map[string]*zfs.Dataset, name string) bool {
	for name = zfs.ParentOf(name); name != ""; name = zfs.ParentOf(name) {
		if n := demands[name]; n != nil {
			if _, _, short := n.exceeds(existing[name]); short {
				return true
			}
		}
	}
	return false
}

// feature is a pool feature that streams depend on.
type feature struct {
	name string
	// refused reports whether zfs receive refuses a stream that uses the feature. Otherwise the
	// data arrives in another form.
	refused   bool
	encrypted bool // only encrypted datasets use it
	what      string
}

// streamFeatures returns the features that change or prevent a receive if the target's pool
// lacks them. Package plan adds a conflict if a dataset is known to use one; here it is only
// known that something in the source's pool does.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/zfs/dmu_recv.c (recv_begin_check_feature_flags_impl)
func streamFeatures() []feature {
	return []feature{
		{"large_blocks", false, false, "blocks of more than 128 KiB are split in the stream"},
		{"embedded_data", false, false, "each very small block uses a whole block on the target"},
		{"lz4_compress", false, false, "data is sent uncompressed"},
		{"zstd_compress", false, false, "data is sent uncompressed, and the target compresses it with another algorithm"},
		{zfs.ResumeFeature, false, false, "an interrupted stream restarts from the start"},
		{"large_dnode", true, false, "a dataset with large dnodes cannot be received"},
		{"large_microzap", true, false, "a dataset with large directories in one block cannot be received"},
		{"longname", true, false, "a dataset with file names of more than 255 bytes cannot be received"},
		{"redacted_datasets", true, false, "a redacted dataset cannot be received"},
		{"encryption", true, true, "an encrypted dataset cannot be received raw"},
		{"bookmark_v2", true, true, "bookmarks of encrypted datasets cannot be created there"},
	}
}

// features compares the features in use on the source with those of the target's pool.
func features(in *Input) []finding.Finding {
	source, target := &in.SourceListing.Pool, &in.TargetListing.Pool
	if in.Plan.Steps() == 0 || len(source.Features) == 0 || len(target.Features) == 0 {
		return nil
	}
	var out []finding.Finding
	for _, x := range streamFeatures() {
		if source.Features[x.name] != "active" || target.HasFeature(x.name) || x.encrypted && !in.Plan.Encrypted() {
			continue
		}
		f := finding.Finding{Host: in.Target.Name, Severity: finding.Note, Summary: fmt.Sprintf("pool %s uses feature %s, which pool %s lacks: %s", source.Name, x.name, target.Name, x.what),
			Evidence: fmt.Sprintf("zpool get feature@%s: %s on %s, %s on %s", x.name, source.Features[x.name], source.Name, cmp.Or(target.Features[x.name], "unknown"), target.Name),
			Remedy:   target.FeatureHint(in.Target.At, "there", x.name)}
		if x.refused {
			f.Severity = finding.Warn
		}
		out = append(out, f)
	}
	return out
}
