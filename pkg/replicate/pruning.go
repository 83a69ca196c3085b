package replicate

import (
	"cmp"
	"fmt"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Pruning is what retention removes on one side.
type Pruning struct {
	Side      string   `json:"side"`      // SourceSide, or the target's name
	Remove    []string `json:"remove"`    // full names
	Kept      int      `json:"kept"`      // snapshots of the job that stay
	Held      []string `json:"held"`      // would go, but are held or have clones
	Protected int      `json:"protected"` // bases of increments, and what interrupted receives need
	// Doubted are those whose dates are not believed.
	Doubted []string `json:"doubted,omitempty"`
	Error   string   `json:"error,omitempty"`
	Hint    string   `json:"hint,omitempty"`
	// Mirror tells that what goes is what the source no longer has.
	Mirror bool `json:"mirror,omitempty"`
	// Datasets are copies that go, of datasets that are gone from the source.
	Datasets []string `json:"remove_datasets,omitempty"`
	// Refused tells that Remove is more than one run may remove: all of it stays.
	Refused bool `json:"refused,omitempty"`

	// KeepReasons is why snapshots of the job stay, by full name; not of the datasets that
	// are as an earlier run left them.
	KeepReasons map[string]string `json:"-"`
	// Removed is how many of Datasets are destroyed.
	Removed int `json:"-"`
	// Gone are Datasets, as their host is asked to destroy them.
	Gone []zfs.Orphan `json:"-"`
	// Looked is what retention learnt of each dataset that it looked at, by the name
	// of the source's.
	Looked map[string]*PruneLook `json:"-"`
}

// PruneLook is what retention learnt of a dataset on one side.
type PruneLook struct {
	Past *History
	// Print is what the decision depended on, where there was nothing to remove: as
	// long as it is the same there is no need to look again. "" = there was, or will
	// be in time.
	Print string
	// Waiting tells that something will go in time, without anything new.
	Waiting bool
	// Of is the GUID of the dataset that a mirror's snapshots are now known to be of; 0 =
	// as before.
	Of uint64
}

// Failed is why the side keeps what it should not, as an error.
func (p *Pruning) Failed() error {
	switch {
	case p.Error == "":
		return nil
	case p.Refused:
		return fault.Refusef(p.Hint, "%s: %s", p.Side, p.Error)
	}
	return fault.Failf(p.Hint, "%s: %s", p.Side, p.Error)
}

// Keep notes a snapshot that cannot be removed: it is held, or has clones.
func (p *Pruning) Keep(name string) {
	p.Held = append(p.Held, name)
	p.Kept++
}

// Learn takes over into the state what was learnt, whatever becomes of Remove.
func (s *State) Learn(p *Pruning) {
	for source, l := range p.Looked {
		known := s.Dataset(source)
		if l.Past != nil {
			if known.Past == nil {
				known.Past = map[string]*History{}
			}
			known.Past[p.Side] = l.Past
		}
		if l.Of != 0 {
			s.Arrival(source, p.Side).Of = l.Of
		}
		switch {
		case l.Print != "":
			if known.Pruned == nil {
				known.Pruned = map[string]string{}
			}
			known.Pruned[p.Side] = l.Print
		case l.Waiting:
			delete(known.Pruned, p.Side)
		}
	}
}

// Done takes note that all of Remove that could go is gone.
func (p *Pruning) Done() {
	for _, l := range p.Looked {
		if l.Past != nil && !l.Waiting {
			l.Past.Removed()
		}
	}
}

// candidate is a dataset of a side, with what of it is protected and why.
type candidate struct {
	source    string
	dataset   *zfs.Dataset
	protected map[uint64]string
	print     string
}

// prune decides what retention removes on every side that was seen.
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
		// Of a dataset that the source has no more, or that the job or the target does not
		// take, the copy stays as it is.
		var all []candidate
		for _, s := range v.To(t.Name) {
			if there := t.Dataset(t.CopyOf(v.Root, s.Name)); there != nil {
				all = append(all, candidate{source: s.Name, dataset: there, protected: t.protected(s, there)})
			}
		}
		v.pruneSide(d, t.Name, t.Retention, all)
		if n := len(d.Prunings); n > 0 && d.Prunings[n-1].Side == t.Name {
			v.destroyOrphans(d.Prunings[n-1], t)
		}
	}
}

// Rule names what decides what goes.
func (p *Pruning) Rule() string {
	if p.Mirror {
		return "mirror"
	}
	return "retention"
}

func newPruning(side string) *Pruning {
	return &Pruning{Side: side, Remove: []string{}, Held: []string{}, KeepReasons: map[string]string{}, Looked: map[string]*PruneLook{}}
}

// protected are the versions of a copy that retention must leave.
func (t *TargetState) protected(source, there *zfs.Dataset) map[uint64]string {
	out := map[uint64]string{}
	for guid := range t.Partial {
		out[guid] = "an interrupted receive needs it"
	}
	base, ok := CommonSnapshot(source, there)
	if ok {
		out[base.GUID] = "base of the next increment"
		return out
	}
	for _, v := range there.Versions { // another dataset, which is not ours to prune
		out[v.GUID] = "the source has none of these"
	}
	return out
}

// pruneSide decides for the datasets of one side, or asks what it has to know.
func (v *RunState) pruneSide(d *Decision, side string, g *Grid, all []candidate) {
	p := newPruning(side)
	var some []candidate
	var ask []string
	for _, c := range all {
		known := cmp.Or(v.State.Datasets[c.source], &DatasetState{})
		c.print = v.fingerprintOf(g, &c)
		if past := known.Past[side]; known.Pruned[side] == c.print && (past == nil || past.Doubts() == 0) {
			p.Kept += v.Scope.Count(c.dataset)
			continue
		}
		some = append(some, c)
		for _, name := range v.Scope.Adopted(c.dataset) {
			ask = append(ask, c.dataset.Name+"@"+name)
		}
	}
	switch {
	case v.Unasked[side] != nil:
		p.Error = v.Unasked[side].Error()
		for _, c := range some {
			p.Looked[c.source] = &PruneLook{}
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

// pruneOne decides for one dataset.
func (v *RunState) pruneOne(p *Pruning, g *Grid, c *candidate) {
	past := History{Dataset: c.dataset.GUID}
	if known := v.State.Datasets[c.source]; known != nil {
		past = *known.Past[p.Side].Of(c.dataset.GUID)
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
	for _, gone := range found.Remove {
		p.Remove = append(p.Remove, gone.In(c.dataset.Name))
	}
	look := &PruneLook{Past: &past, Waiting: found.Waiting}
	if len(found.Remove) == 0 && !found.Waiting {
		look.Print = c.print
	}
	p.Looked[c.source] = look
}

// refuse keeps a side as it is: more would go than time and newer snapshots
// explain.
func (p *Pruning) refuse(j *Job, dataset string, beyond int) {
	p.Refused = true
	p.Error = fmt.Sprintf("nothing was removed: %s of %s would go, although neither time nor newer ones explain it, and prune_limit allows one run %d",
		english.Plural(beyond, "snapshot", ""), dataset, j.PruneAtMost())
}

// fingerprintOf is all that retention depends on.
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
