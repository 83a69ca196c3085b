package plan

import (
	"strings"

	"zxfer/pkg/zfs"
)

// checkFeatures refuses a stream that the target's pool cannot store. What can be
// left out of a plain stream, choose leaves out.
func (p *planner) checkFeatures(d *zfs.Dataset, out *Dataset) bool {
	ok := true
	for _, x := range (zfs.StreamFlags{Raw: out.Encrypted}).Features() {
		needed := x.Name == "encryption" || p.sourceUses(x.Name) && (!x.OfDataset || uses(d, x.Name))
		if !needed || p.targetTakes(x.Name) {
			continue
		}
		ok = false
		pool := &p.state.Target.Pool
		p.conflict(FeatureMissing, d.Name, out.Target, pool.Enabling("on "+p.state.TargetHost, x.Name),
			"pool %s lacks the feature %s, which %s needs to arrive", p.onTarget(pool.Name), x.Name, p.onSource(d.Name))
	}
	return ok
}

// uses tells what a dataset writes next with. That it wrote otherwise before does
// not show in its properties.
func uses(d *zfs.Dataset, feature string) bool {
	if feature == "large_blocks" {
		return largeBlocks(d)
	}
	for _, property := range []string{"compression", "dnodesize"} {
		if zfs.FeatureOf(property, d.Get(property)) == feature {
			return true
		}
	}
	return feature == "longname" && d.Get("longname") == "on"
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

// letter tells whether the target's pool takes streams with one of the flags that
// send data as it is stored. Blocks compressed by zstd are the one thing that a
// chain may come to have or not: without any, the feature is not needed.
func (p *planner) letter(f zfs.StreamFlags) bool {
	for _, x := range f.Features() {
		if (zfs.StreamFlags{}).Needs(x.Name) || x.Name == "zstd_compress" && p.state.Source.Pool.Features[x.Name] != "active" {
			continue
		}
		if !p.state.Target.Pool.FeatureOn(x.Name) {
			return false
		}
	}
	return true
}

// receive is the receive of a stream into a target.
func (p *planner) receive(target string) zfs.ReceiveSpec {
	whole := p.state.Target.Pool.Features[zfs.ResumeFeature] == "disabled"
	if whole && !p.whole {
		p.whole = true
		pool := &p.state.Target.Pool
		enable, _, _ := strings.Cut(pool.Enabling("on "+p.state.TargetHost, zfs.ResumeFeature), " (")
		p.note("pool %s lacks the feature %s: a stream that is cut off there begins anew; to resume: %s", p.onTarget(pool.Name), zfs.ResumeFeature, enable)
	}
	return zfs.ReceiveSpec{Target: target, Whole: whole}
}
