package plan

import (
	"strings"

	"zxfer/pkg/zfs"
)

// checkFeatures refuses a stream that the target's pool cannot store. newFlags drops optional
// features from plain streams.
func (p *planner) checkFeatures(d *zfs.Dataset, out *Dataset) bool {
	ok := true
	for _, x := range (zfs.StreamFlags{Raw: out.Encrypted}).Features() {
		needed := x.Name == "encryption" || p.sourceUses(x.Name) && (!x.OfDataset || uses(d, x.Name))
		if !needed || p.targetSupports(x.Name) {
			continue
		}
		ok = false
		pool := &p.state.Target.Pool
		p.conflict(FeatureMissing, d.Name, out.Target, pool.Enabling("on "+p.state.TargetHost, x.Name),
			"pool %s lacks the feature %s, which %s needs to arrive", p.onTarget(pool.Name), x.Name, p.onSource(d.Name))
	}
	return ok
}

// uses reports whether a dataset's properties make new writes use a feature. Earlier writes may
// have used others.
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

// sourceUses reports whether anything in the source's pool uses a feature. Properties cannot
// show that for one dataset: they apply to new writes only.
func (p *planner) sourceUses(feature string) bool {
	features := p.state.Source.Pool.Features
	return len(features) == 0 || features[feature] == "active"
}

// targetSupports reports whether the target's pool supports a feature. If its features are
// unknown, zfs receive decides.
func (p *planner) targetSupports(feature string) bool {
	pool := &p.state.Target.Pool
	return len(pool.Features) == 0 || pool.FeatureOn(feature)
}

// receiveSpec returns the receive of a stream into a target.
func (p *planner) receiveSpec(target string) zfs.ReceiveSpec {
	whole := p.state.Target.Pool.Features[zfs.ResumeFeature] == "disabled"
	if whole && !p.notedWhole {
		p.notedWhole = true
		pool := &p.state.Target.Pool
		enable, _, _ := strings.Cut(pool.Enabling("on "+p.state.TargetHost, zfs.ResumeFeature), " (")
		p.note("pool %s lacks the feature %s: a stream that is cut off there begins anew; to resume: %s", p.onTarget(pool.Name), zfs.ResumeFeature, enable)
	}
	return zfs.ReceiveSpec{Target: target, Whole: whole}
}
