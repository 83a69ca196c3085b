package plan

import (
	"fmt"
	"strings"

	"zxfer/pkg/zfs"
)

// checkFeatures refuses a stream that the target's pool cannot store.
func (p *planner) checkFeatures(d *zfs.Dataset, out *Dataset) bool {
	var need []string
	if out.Encrypted {
		// A raw stream carries blocks as they are: nothing can be unpacked.
		need = append(need, "encryption")
		if largeBlocks(d) && p.sourceUses("large_blocks") {
			need = append(need, "large_blocks")
		}
		if f := featureOf("compression", d.Get("compression")); f != "" && p.sourceUses(f) {
			need = append(need, f)
		}
	}
	if featureOf("dnodesize", d.Get("dnodesize")) != "" && p.sourceUses("large_dnode") {
		need = append(need, "large_dnode")
	}
	ok := true
	for _, f := range need {
		if p.targetTakes(f) {
			continue
		}
		ok = false
		pool := p.state.Target.Pool.Name
		hint := fmt.Sprintf("upgrade ZFS on %s: it does not know the feature", p.state.TargetHost)
		if _, known := p.state.Target.Pool.Features[f]; known {
			hint = command("zpool", "set", "feature@"+f+"=enabled", pool) + " (an older ZFS may then no longer import the pool)"
		}
		p.conflict(FeatureMissing, d.Name, out.Target, hint,
			"pool %s lacks the feature %s, which %s needs to arrive", p.onTarget(pool), f, p.onSource(d.Name))
	}
	return ok
}

// sourceUses tells whether anything in the source's pool uses a feature. For
// a single dataset that cannot be told from properties: they say what is
// written next, not what is there.
func (p *planner) sourceUses(feature string) bool {
	features := p.state.Source.Pool.Features
	return len(features) == 0 || features[feature] == "active"
}

// targetTakes tells whether the target's pool can store what needs a feature.
// A pool whose features are unknown is left to zfs receive to judge.
func (p *planner) targetTakes(feature string) bool {
	pool := &p.state.Target.Pool
	return len(pool.Features) == 0 || pool.FeatureOn(feature)
}

// featureOf returns the pool feature that a value of a property needs, "" for
// none.
//
// https://openzfs.github.io/openzfs-docs/man/v2.3/7/zpool-features.7.html
func featureOf(property, value string) string {
	switch property {
	case "compression":
		if value == "lz4" {
			return "lz4_compress"
		}
		if strings.HasPrefix(value, "zstd") {
			return "zstd_compress"
		}
	case "checksum", "dedup":
		sum, _, _ := strings.Cut(value, ",")
		switch sum {
		case "sha512", "skein", "edonr", "blake3":
			return sum
		}
	case "dnodesize":
		if value != "" && value != "legacy" {
			return "large_dnode"
		}
	case "recordsize":
		if largeSize(value) {
			return "large_blocks"
		}
	}
	return ""
}
