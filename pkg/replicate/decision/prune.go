package decision

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// side is the source or a target, as the input of pruning.
type side struct {
	name       string
	job        *replicate.Job
	scope      *replicate.Scope
	grid       *retention.Grid // nil if the mirror decides
	candidates []candidate
	now        time.Time
	noLimit    bool
	created    map[string]map[string]time.Time // of adopted snapshots; nil until they are queried
	queryError error

	// Only on a target:
	target  *replicate.Target
	mirror  *replicate.Mirror
	exists  map[uint64]bool // GUIDs of the source's snapshots, for the mirror
	overdue []*replicate.Orphan
	orphans *zfs.Listing // the overdue orphans with their descendants, or nil
}

// candidate is a dataset to prune.
type candidate struct {
	source, dataset *zfs.Dataset                // the original, and the dataset itself
	state           *replicate.DatasetState     // of the original; never nil
	protected       map[uint64]retention.Reason // versions to keep, by GUID, with the reason
	fingerprint     string
}

// sides returns the listed sides on which the job prunes. Copies of datasets that the source lacks,
// or that the target does not take, are no candidates.
func (v *RunState) sides(pairs []*pair, needed needs) (all []*side) {
	add := func(name string, g *retention.Grid) *side {
		s := &side{name: name, job: v.Survey.Job, scope: v.Survey.Scope, grid: g, now: v.Now, noLimit: v.NoLimit,
			created: v.Created[name], queryError: v.QueryErrors[name]}
		all = append(all, s)
		return s
	}
	stateOf := func(d *zfs.Dataset) *replicate.DatasetState {
		return cmp.Or(v.Survey.State.Datasets[d.Name], &replicate.DatasetState{})
	}
	if v.Survey.Job.Retention != nil {
		s := add(replicate.SourceSide, v.Survey.Job.Retention)
		for _, d := range v.Survey.Source.Datasets {
			s.candidates = append(s.candidates, candidate{source: d, dataset: d, state: stateOf(d), protected: needed.of(d.Name)})
		}
	}
	for _, t := range v.Targets {
		if t.Listing == nil || t.Failed || t.Retention == nil && t.Mirror == nil {
			continue
		}
		s := add(t.Name, t.Retention)
		s.target, s.mirror, s.overdue, s.orphans = t.Target, t.Mirror, v.Survey.OverdueOrphans(t.Target), v.DueOrphans[t.Name]
		for _, p := range pairs {
			if p.target == t && p.copied != nil {
				c := candidate{source: p.source, dataset: p.copied, state: stateOf(p.source), protected: p.protected()}
				s.candidates = append(s.candidates, c)
			}
		}
		if t.MirrorsSnapshots() {
			s.exists = map[uint64]bool{} // in any dataset: a promotion moves snapshots
			for _, d := range slices.Concat(v.Survey.All, v.Survey.Source.Datasets) {
				for _, have := range d.Snapshots() {
					s.exists[have.GUID] = true
				}
			}
		}
	}
	return all
}

// prune returns what to destroy on the side or, if their creation times are missing, the snapshots
// to query.
func (s *side) prune() (p *Pruning, ask []string) {
	p = &Pruning{Side: s.name, Mirror: s.grid == nil, Remove: []string{}, Held: []string{},
		KeepReasons: map[string]retention.Reason{}, Results: map[string]*PruneResult{}}
	if p.Mirror {
		s.mirrorSnapshots(p)
	} else if ask = s.applyGrid(p); len(ask) > 0 {
		return nil, ask
	}
	s.destroyOrphans(p)
	return p, nil
}

// applyGrid adds to p what the grid does not keep. It skips datasets that had nothing to prune and
// have not changed since.
func (s *side) applyGrid(p *Pruning) (ask []string) {
	var some []*candidate
	for i := range s.candidates {
		c := &s.candidates[i]
		c.fingerprint = s.fingerprint(c)
		if past := c.state.Histories[s.name]; c.state.Pruned[s.name] == c.fingerprint && (past == nil || past.CountUntrusted() == 0) {
			p.Kept += s.scope.Count(c.dataset)
			continue
		}
		some = append(some, c)
		for _, name := range s.scope.Adopted(c.dataset) {
			ask = append(ask, c.dataset.Name+"@"+name)
		}
	}
	if s.queryError == nil && len(ask) > 0 && s.created == nil {
		return ask
	}
	for _, c := range some {
		if s.queryError != nil {
			p.Error, p.Results[c.source.Name] = s.queryError.Error(), &PruneResult{}
		} else {
			p.Results[c.source.Name] = s.pruneOne(p, c)
		}
	}
	return nil
}

// pruneOne applies the grid to one dataset.
func (s *side) pruneOne(p *Pruning, c *candidate) *PruneResult {
	past, name := *c.state.Histories[s.name].ForDataset(c.dataset.GUID), c.dataset.Name
	found := s.grid.Prunable(c.dataset, s.scope.Dates(s.created[name]), c.protected, &past, s.now)
	if limit := s.job.PruneLimitOrDefault(); found.OverLimit > limit && !s.noLimit {
		p.refuse("retention would unexpectedly destroy %s of %s, but prune_limit is %d per run",
			english.Plural(found.OverLimit, "snapshot", ""), name, limit)
	}
	for _, snapshot := range found.Untrusted {
		p.Untrusted = append(p.Untrusted, name+"@"+snapshot)
	}
	for snapshot, why := range found.KeepReasons {
		p.KeepReasons[name+"@"+snapshot] = why
	}
	p.Kept += s.scope.Count(c.dataset) - len(found.Remove)
	for _, have := range c.dataset.Snapshots() {
		if c.protected[have.GUID].Kind != retention.NoReason {
			p.Protected++
		}
	}
	for _, version := range found.Remove {
		p.Remove = append(p.Remove, version.In(name))
	}
	result := &PruneResult{History: &past, Waiting: found.Waiting}
	if len(found.Remove) == 0 && !found.Waiting {
		result.Fingerprint = c.fingerprint
	}
	return result
}

// fingerprint returns the complete input of a retention decision.
func (s *side) fingerprint(c *candidate) string {
	latest, _ := c.dataset.Latest()
	var protected []uint64
	for _, have := range c.dataset.Versions {
		if have.Kind == zfs.Snapshot && c.protected[have.GUID].Kind != retention.NoReason {
			protected = append(protected, have.GUID)
		}
	}
	return fmt.Sprintf("%d %d %v %v %v", len(c.dataset.Snapshots()), latest.GUID, protected, *s.grid, s.scope.Patterns())
}
