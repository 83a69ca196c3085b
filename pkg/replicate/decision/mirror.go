package decision

import (
	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// mirrorSnapshots adds to p the snapshots that were deleted on the source. If a source dataset is
// partially received, or has no snapshot in the scope, it keeps all. It also keeps snapshots newer
// than the most recent common one, because they are a divergence.
func (s *side) mirrorSnapshots(p *Pruning) {
	for i := range s.candidates {
		c := &s.candidates[i]
		p.Kept += s.scope.Count(c.dataset)
		base, _ := CommonSnapshot(c.source, c.dataset)
		var deleted []zfs.Version
		for _, have := range c.dataset.Snapshots() {
			switch why := c.protected[have.GUID]; {
			case s.exists[have.GUID] || !s.scope.Has(have.Name):
			case c.source.Inconsistent() || s.scope.Count(c.source) == 0:
				p.KeepReasons[have.In(c.dataset.Name)] = retention.Reason{Kind: retention.SourceEmpty}
			case why.Kind != retention.NoReason:
				p.Protected++
				p.KeepReasons[have.In(c.dataset.Name)] = why
			case have.CreateTXG > base.CreateTXG:
				p.KeepReasons[have.In(c.dataset.Name)] = retention.Reason{Kind: retention.NewerThanCommon}
			default:
				deleted = append(deleted, have)
			}
		}
		p.Results[c.source.Name] = s.checkMirror(p, c, len(deleted))
		p.Kept -= len(deleted)
		for _, have := range deleted {
			p.Remove = append(p.Remove, have.In(c.dataset.Name))
		}
	}
}

// checkMirror refuses to destroy snapshots if the source dataset is not the one that was copied, or
// if there are more than the limit. It returns what the run learned about the dataset.
func (s *side) checkMirror(p *Pruning, c *candidate, deleted int) *PruneResult {
	result, count := &PruneResult{Original: c.source.GUID}, english.Plural(deleted, "snapshot", "")
	if deleted == 0 {
		result.Fingerprint = "mirror"
		return result
	}
	of := uint64(0)
	if a := c.state.Targets[s.name]; a != nil {
		of = a.OriginalGUID
	}
	switch {
	case s.noLimit:
	case of == 0:
		result.Original = 0
		p.refuse("%s lacks %s that its copy has, and no earlier run saw it: it may have been restored", c.source.Name, count)
	case of != c.source.GUID:
		result.Original = 0
		p.refuse("%s was recreated or restored, and lacks %s that its copy has", c.source.Name, count)
	case deleted > s.mirror.LimitOrDefault():
		p.refuse("%s of %s were deleted on the source, but mirror.limit is %d per run", count, c.dataset.Name, s.mirror.LimitOrDefault())
	}
	return result
}
