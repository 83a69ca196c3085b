package replicate

import (
	"cmp"
	"fmt"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Pruning lists what a run destroys on one side.
type Pruning struct {
	Side      string   `json:"side"`      // SourceSide or target name
	Remove    []string `json:"remove"`    // full names
	Kept      int      `json:"kept"`      // snapshots in the scope
	Held      []string `json:"held"`      // kept because of holds or clones
	Protected int      `json:"protected"` // bases of increments, and for interrupted receives
	// Doubted are snapshots with untrusted dates.
	Doubted []string `json:"doubted,omitempty"`
	Error   string   `json:"error,omitempty"`
	Hint    string   `json:"hint,omitempty"`
	// Mirror means that the mirror decided, not a grid.
	Mirror bool `json:"mirror,omitempty"`
	// Datasets are orphans to destroy.
	Datasets []string `json:"remove_datasets,omitempty"`
	// Refused means that Remove exceeds a limit. Then nothing is destroyed.
	Refused bool `json:"refused,omitempty"`

	// KeepReasons holds the reasons to keep snapshots in the scope, by full name. It omits
	// datasets without changes since an earlier run.
	KeepReasons map[string]string `json:"-"`
	// Removed counts the destroyed Datasets.
	Removed int `json:"-"`
	// Gone has the requests to destroy Datasets.
	Gone []zfs.Orphan `json:"-"`
	// Results holds new knowledge about each checked dataset, by the name of its original.
	Results map[string]*PruneResult `json:"-"`
}

// PruneResult is knowledge about a dataset on one side.
type PruneResult struct {
	History *History
	// Fingerprint is the fingerprint of the decision's input if nothing is to destroy. While it is
	// the same, later runs skip the dataset. "" = something is, or will be, to destroy.
	Fingerprint string
	// Waiting means that time alone will make something prunable.
	Waiting bool
	// Original is the GUID of the original of a mirror's copy; 0 = unchanged.
	Original uint64
}

// Rule returns the name of the rule that decided, for messages.
func (p *Pruning) Rule() string {
	if p.Mirror {
		return "mirror"
	}
	return "retention"
}

// Failed returns the error of the pruning, or nil.
func (p *Pruning) Failed() error {
	switch {
	case p.Error == "":
		return nil
	case p.Refused:
		return fault.Refusef(p.Hint, "%s: %s", p.Side, p.Error)
	}
	return fault.Failf(p.Hint, "%s: %s", p.Side, p.Error)
}

// Keep records a snapshot that has a hold or a clone.
func (p *Pruning) Keep(name string) {
	p.Held = append(p.Held, name)
	p.Kept++
}

// Done records that the pruning is complete.
func (p *Pruning) Done() {
	for _, l := range p.Results {
		if l.History != nil && !l.Waiting {
			l.History.Removed()
		}
	}
}

// Learn saves the new knowledge of p in the state. It does not depend on whether Remove succeeds.
func (s *State) Learn(p *Pruning) {
	for source, l := range p.Results {
		known := s.Dataset(source)
		if l.History != nil {
			if known.Past == nil {
				known.Past = map[string]*History{}
			}
			known.Past[p.Side] = l.History
		}
		if l.Original != 0 {
			s.Arrival(source, p.Side).Of = l.Original
		}
		switch {
		case l.Fingerprint != "":
			if known.Pruned == nil {
				known.Pruned = map[string]string{}
			}
			known.Pruned[p.Side] = l.Fingerprint
		case l.Waiting:
			delete(known.Pruned, p.Side)
		}
	}
}

// candidate is a dataset to prune, with its protected versions, by GUID, and the reasons.
type candidate struct {
	source      string
	dataset     *zfs.Dataset
	protected   map[uint64]string
	fingerprint string
}

// prune adds the prunings of all listed sides to d.
func (v *RunState) prune(d *Decision, b *incrementalSources) {
	if v.Job.Retention != nil {
		var all []candidate
		for _, s := range v.Source.Datasets {
			all = append(all, candidate{source: s.Name, dataset: s, protected: b.needed(s)})
		}
		v.pruneSide(d, SourceSide, v.Job.Retention, all)
	}
	for _, t := range v.Targets {
		if t.Listing == nil || t.Failed {
			continue
		}
		if t.Retention == nil {
			if p := newPruning(t.Name); t.Mirror != nil {
				p.Mirror = true
				v.mirror(p, t)
				v.destroyOrphans(p, t)
				d.Prunings = append(d.Prunings, p)
			}
			continue
		}
		// Copies of datasets that the source lacks, or the target does not take, are kept as they
		// are.
		var all []candidate
		for _, s := range v.To(t.Name) {
			if dst := t.Dataset(t.CopyOf(v.Root, s.Name)); dst != nil {
				all = append(all, candidate{source: s.Name, dataset: dst, protected: t.protected(s, dst)})
			}
		}
		v.pruneSide(d, t.Name, t.Retention, all)
		if n := len(d.Prunings); n > 0 && d.Prunings[n-1].Side == t.Name {
			v.destroyOrphans(d.Prunings[n-1], t)
		}
	}
}

func newPruning(side string) *Pruning {
	return &Pruning{Side: side, Remove: []string{}, Held: []string{}, KeepReasons: map[string]string{}, Results: map[string]*PruneResult{}}
}

// protected returns the versions of a copy that retention must keep, by GUID, with the reason.
func (t *TargetState) protected(source, dst *zfs.Dataset) map[uint64]string {
	out := map[uint64]string{}
	for guid := range t.Partial {
		out[guid] = "an interrupted receive needs it"
	}
	base, ok := CommonSnapshot(source, dst)
	if ok {
		out[base.GUID] = "base of the next increment"
		return out
	}
	for _, v := range dst.Versions { // a dataset that zxfer did not copy
		out[v.GUID] = "the source has none of these"
	}
	return out
}

// pruneSide applies a grid to the datasets of one side. If it lacks creation times, it adds them
// to d.Ask instead.
func (v *RunState) pruneSide(d *Decision, side string, g *Grid, all []candidate) {
	p := newPruning(side)
	var some []candidate
	var ask []string
	for _, c := range all {
		known := cmp.Or(v.State.Datasets[c.source], &DatasetState{})
		c.fingerprint = v.fingerprintOf(g, &c)
		if past := known.Past[side]; known.Pruned[side] == c.fingerprint && (past == nil || past.Doubts() == 0) {
			p.Kept += v.Scope.Count(c.dataset)
			continue
		}
		some = append(some, c)
		for _, name := range v.Scope.Adopted(c.dataset) {
			ask = append(ask, c.dataset.Name+"@"+name)
		}
	}
	switch {
	case v.QueryErrors[side] != nil:
		p.Error = v.QueryErrors[side].Error()
		for _, c := range some {
			p.Results[c.source] = &PruneResult{}
		}
	case len(ask) > 0 && v.Created[side] == nil:
		d.Ask[side] = ask
		return
	default:
		for _, c := range some {
			v.pruneOne(p, g, &c)
		}
	}
	d.Prunings = append(d.Prunings, p)
}

// pruneOne applies a grid to one dataset.
func (v *RunState) pruneOne(p *Pruning, g *Grid, c *candidate) {
	past := History{Dataset: c.dataset.GUID}
	if known := v.State.Datasets[c.source]; known != nil {
		past = *known.Past[p.Side].ForDataset(c.dataset.GUID)
	}
	found := g.Prunable(c.dataset, v.Scope, v.Created[p.Side][c.dataset.Name], c.protected, &past, v.Now)
	if found.OverLimit > v.Job.PruneAtMost() && !v.NoLimit {
		p.refuse(v.Job, c.dataset.Name, found.OverLimit)
	}
	for _, name := range found.Untrusted {
		p.Doubted = append(p.Doubted, c.dataset.Name+"@"+name)
	}
	for name, why := range found.KeepReasons {
		p.KeepReasons[c.dataset.Name+"@"+name] = why
	}
	p.Kept += v.Scope.Count(c.dataset) - len(found.Remove)
	for _, have := range c.dataset.Snapshots() {
		if c.protected[have.GUID] != "" {
			p.Protected++
		}
	}
	for _, version := range found.Remove {
		p.Remove = append(p.Remove, version.In(c.dataset.Name))
	}
	result := &PruneResult{History: &past, Waiting: found.Waiting}
	if len(found.Remove) == 0 && !found.Waiting {
		result.Fingerprint = c.fingerprint
	}
	p.Results[c.source] = result
}

// fingerprintOf returns the complete input of a retention decision.
func (v *RunState) fingerprintOf(g *Grid, c *candidate) string {
	latest, _ := c.dataset.Latest()
	var protected []uint64
	for _, have := range c.dataset.Versions {
		if have.Kind == zfs.Snapshot && c.protected[have.GUID] != "" {
			protected = append(protected, have.GUID)
		}
	}
	return fmt.Sprintf("%d %d %v %v %v", len(c.dataset.Snapshots()), latest.GUID, protected, *g, v.Scope.Patterns())
}
