package decision

import (
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// NoteOrphans updates the state: it adds copies whose original is missing and drops those whose
// original returned. v.All must be a complete listing of the source.
func (v *Survey) NoteOrphans() {
	names, guids, root := map[string]bool{}, map[uint64]bool{}, uint64(0)
	for _, d := range v.All {
		names[d.Name], guids[d.GUID] = true, true
		if d.Name == v.Root {
			root = d.GUID
		}
	}
	v.State.Orphans = slices.DeleteFunc(v.State.Orphans, func(g *replicate.Orphan) bool {
		if names[g.Source] {
			noteReturned(v.State, g)
		}
		return names[g.Source]
	})
	if !v.Job.Recursive {
		return // the descendants are unknown
	}
	was := v.State.Root
	if known := v.State.Datasets[v.Root]; was == 0 && known != nil {
		was = known.GUID
	}
	replaced := was != 0 && was != root
	v.State.Root = root
	for _, g := range v.State.Orphans {
		g.SourceReplaced = g.SourceReplaced || replaced
	}
	for source, known := range v.State.Datasets {
		if names[source] || known.GUID != 0 && guids[known.GUID] || !strings.HasPrefix(source, v.Root+"/") {
			continue
		}
		for target, a := range known.Targets {
			same := func(g *replicate.Orphan) bool { return g.Target == target && g.Dataset == a.Target }
			if a.BaseGUID == 0 || a.Target == "" || slices.ContainsFunc(v.State.Orphans, same) {
				continue
			}
			g := &replicate.Orphan{Target: target, Dataset: a.Target, Source: source, Since: v.Started, Seen: v.Started, SourceReplaced: replaced}
			for _, h := range a.Held {
				if h.Target != "" {
					g.Held = append(g.Held, h.Target)
				}
			}
			v.State.Orphans = append(v.State.Orphans, g)
		}
	}
	slices.SortFunc(v.State.Orphans, func(a, b *replicate.Orphan) int {
		return strings.Compare(a.Target+" "+a.Dataset, b.Target+" "+b.Dataset)
	})
}

// noteReturned adds the holds of an orphan to the state of its dataset again, because the source
// has that dataset again.
func noteReturned(s *replicate.State, g *replicate.Orphan) {
	a := s.Copy(g.Source, g.Target)
	for _, snapshot := range g.Held {
		if h := (replicate.Held{Target: snapshot}); !slices.Contains(a.Held, h) {
			a.Held, a.Moving = append(a.Held, h), true
		}
	}
}

// UpdateOrphans drops orphans of a target that no longer exist or were recreated, and advances the
// grace period of the others.
func (v *Survey) UpdateOrphans(t *replicate.Target, guidOf func(name string) (guid uint64)) {
	v.State.Orphans = slices.DeleteFunc(v.State.Orphans, func(g *replicate.Orphan) bool {
		guid := guidOf(g.Dataset)
		if g.Target != t.Name {
			return false
		}
		if guid == 0 || g.GUID != 0 && g.GUID != guid {
			return true
		}
		g.GUID = guid
		if t.MirrorsDatasets() && v.Job.Recursive && strings.HasPrefix(g.Source, v.Root+"/") {
			g.Wait(v.Started, time.Duration(t.Mirror.Gone))
		}
		return false
	})
}

// destroyOrphans adds overdue orphans to p, descendants first. It spares copies that have data
// other than the job's snapshots.
func (s *side) destroyOrphans(p *Pruning) {
	if s.orphans == nil {
		return
	}
	found, planned := s.orphans.ByName(), map[string]bool{}
	for _, o := range slices.Backward(s.overdue) { // by name
		d := found[o.Dataset]
		if d == nil || d.GUID != o.GUID {
			continue
		}
		if why := s.keepReason(d, planned); why.Kind != retention.NoReason {
			p.KeepReasons[d.Name] = why
			continue
		}
		planned[d.Name] = true
		remove := zfs.Orphan{Dataset: d.Name, GUID: d.GUID, Tag: s.job.Tag(s.name)}
		for _, have := range d.Snapshots() {
			remove.Snapshots = append(remove.Snapshots, zfs.SnapshotID{Name: have.Name, GUID: have.GUID})
		}
		p.Datasets, p.OrphanRequests = append(p.Datasets, d.Name), append(p.OrphanRequests, remove)
	}
	if n := len(p.Datasets); n > s.mirror.LimitOrDefault() && !s.noLimit {
		p.refuse("%s were deleted on the source, but mirror.limit is %d per run", english.Plural(n, "dataset", ""), s.mirror.LimitOrDefault())
	}
}

// OverdueOrphans returns the orphans of a target whose grace period is over.
func (v *Survey) OverdueOrphans(t *replicate.Target) (all []*replicate.Orphan) {
	for _, g := range v.State.OrphansAt(t.Name) {
		if t.MirrorsDatasets() && v.Job.Recursive && g.GUID != 0 && !g.SourceReplaced && strings.HasPrefix(g.Source, v.Root+"/") && g.Waited >= time.Duration(t.Mirror.Gone) {
			all = append(all, g)
		}
	}
	return all
}

// keepReason returns why an orphan must be kept, or no reason if it may be destroyed.
func (s *side) keepReason(d *zfs.Dataset, planned map[string]bool) retention.Reason {
	for _, below := range s.orphans.Datasets {
		if strings.HasPrefix(below.Name, d.Name+"/") && !planned[below.Name] {
			return retention.Reason{Kind: retention.DescendantKept, Of: below.Name}
		}
	}
	for _, have := range d.Snapshots() {
		if !s.scope.Has(have.Name) {
			return retention.Reason{Kind: retention.ForeignSnapshot, Of: have.Name}
		}
	}
	unsent := unsent(s.target, d)
	for _, have := range d.Snapshots() {
		if why := unsent[have.GUID]; why.Kind != retention.NoReason {
			why.Snapshot = have.Name
			return why
		}
	}
	switch {
	case d.ResumeToken() != "" || d.Inconsistent():
		return retention.Reason{Kind: retention.ReceiveInterrupted}
	case len(d.Snapshots()) > 0 && d.Modified():
		return retention.Reason{Kind: retention.ModifiedCopy}
	}
	return retention.Reason{}
}
