package replicate

import (
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/zfs"
)

// Orphan is a copy whose original the source no longer has.
type Orphan struct {
	Target  string `json:"target"`                // the target's name
	Dataset string `json:"dataset"`               // there
	Source  string `json:"source"`                // that it was a copy of
	GUID    uint64 `json:"guid,string,omitempty"` // of the copy; 0 = it was not looked at yet
	// Since is when a run first missed the original, Seen when one last did.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
	// Waited is the time that counts. Between two runs that is at most a quarter of what
	// is to be waited: a clock that was wrong removes nothing.
	Waited time.Duration `json:"waited"`
	// SourceReplaced tells that the source's root is another than the one that had the original: as
	// after a loss. It is kept then.
	SourceReplaced bool `json:"anew,omitempty"`
	// Held are the snapshots of the copy that may carry the job's hold.
	Held []string `json:"held,omitempty"`
}

// Wait has the time count until now, of which grace is to pass.
func (g *Orphan) Wait(now time.Time, grace time.Duration) {
	if passed := now.Sub(g.Seen); passed > 0 {
		g.Waited += min(passed, grace/4)
	}
	g.Seen = now
}

// Due is when it may go at the soonest, zero where it never does.
func (g *Orphan) Due(t *Target) time.Time {
	if !t.MirrorsDatasets() || g.SourceReplaced {
		return time.Time{}
	}
	return g.Seen.Add(max(0, time.Duration(t.Mirror.Gone)-g.Waited))
}

// NoteOrphans notes which datasets, of those that a run has brought to a target, the source no
// longer has, and which it has again. The source is there, and was listed as a whole.
func (v *RunState) NoteOrphans() {
	names, guids, root := map[string]bool{}, map[uint64]bool{}, uint64(0)
	for _, d := range v.All {
		names[d.Name], guids[d.GUID] = true, true
		if d.Name == v.Root {
			root = d.GUID
		}
	}
	v.State.Orphans = slices.DeleteFunc(v.State.Orphans, func(g *Orphan) bool {
		if names[g.Source] {
			v.noteReturned(g)
		}
		return names[g.Source]
	})
	if !v.Job.Recursive {
		return // what is below is not known
	}
	was := v.State.Root
	if known := v.State.Datasets[v.Root]; was == 0 && known != nil {
		was = known.GUID
	}
	anew := was != 0 && was != root
	v.State.Root = root
	for _, g := range v.State.Orphans {
		g.SourceReplaced = g.SourceReplaced || anew
	}
	for source, known := range v.State.Datasets {
		if names[source] || known.GUID != 0 && guids[known.GUID] || !strings.HasPrefix(source, v.Root+"/") {
			continue
		}
		for target, a := range known.Targets {
			same := func(g *Orphan) bool { return g.Target == target && g.Dataset == a.Target }
			if a.BaseGUID == 0 || a.Target == "" || slices.ContainsFunc(v.State.Orphans, same) {
				continue
			}
			g := &Orphan{Target: target, Dataset: a.Target, Source: source, Since: v.Started, Seen: v.Started, SourceReplaced: anew}
			for _, h := range a.Held {
				if h.There != "" {
					g.Held = append(g.Held, h.There)
				}
			}
			v.State.Orphans = append(v.State.Orphans, g)
		}
	}
	slices.SortFunc(v.State.Orphans, func(a, b *Orphan) int { return strings.Compare(a.Target+" "+a.Dataset, b.Target+" "+b.Dataset) })
}

// noteReturned notes that the source has a dataset of that name again. Its copy is still one that the
// job brought there, and carries its holds.
func (v *RunState) noteReturned(g *Orphan) {
	a := v.State.Arrival(g.Source, g.Target)
	for _, snapshot := range g.Held {
		if h := (Held{There: snapshot}); !slices.Contains(a.Held, h) {
			a.Held, a.Moving = append(a.Held, h), true
		}
	}
}

// OrphansAt are the copies at a target.
func (s *State) OrphansAt(target string) (all []*Orphan) {
	for _, g := range s.Orphans {
		if g.Target == target {
			all = append(all, g)
		}
	}
	return all
}

// UpdateOrphans drops copies of a target that are gone as well, or are another dataset, and has
// the time count for the others.
func (v *RunState) UpdateOrphans(t *Target, there func(name string) (guid uint64)) {
	v.State.Orphans = slices.DeleteFunc(v.State.Orphans, func(g *Orphan) bool {
		guid := there(g.Dataset)
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

// Overdue are the copies of a target that may go by the time that passed.
func (v *RunState) Overdue(t *Target) (all []*Orphan) {
	for _, g := range v.State.OrphansAt(t.Name) {
		if t.MirrorsDatasets() && v.Job.Recursive && g.GUID != 0 && !g.SourceReplaced && strings.HasPrefix(g.Source, v.Root+"/") && g.Waited >= time.Duration(t.Mirror.Gone) {
			all = append(all, g)
		}
	}
	return all
}

// destroyOrphans decides which copies go with what the source no longer has: only those that
// hold nothing but the job's snapshots, what is below first.
func (v *RunState) destroyOrphans(p *Pruning, t *TargetState) {
	there := v.Leftovers[t.Name]
	if there == nil {
		return
	}
	found, going := there.ByName(), map[string]bool{}
	for _, g := range slices.Backward(v.Overdue(t.Target)) { // by name
		d := found[g.Dataset]
		if d == nil || d.GUID != g.GUID {
			continue
		}
		if why := v.keepReason(d, there, going); why != "" {
			p.KeepReasons[d.Name] = why
			continue
		}
		going[d.Name] = true
		remove := zfs.Orphan{Dataset: d.Name, GUID: d.GUID, Tag: Tag(v.Job.Name, t.Name)}
		for _, s := range d.Snapshots() {
			remove.Snapshots = append(remove.Snapshots, zfs.SnapshotID{Name: s.Name, GUID: s.GUID})
		}
		p.Datasets, p.Gone = append(p.Datasets, d.Name), append(p.Gone, remove)
	}
	if n := len(p.Datasets); n > t.Mirror.AtMost() && !v.NoLimit {
		p.refuseMirror("nothing was removed: %s are gone from the source, and mirror.limit allows one run %d", english.Plural(n, "dataset", ""), t.Mirror.AtMost())
	}
}

// keepReason tells why a copy is to stay though its original is gone.
func (v *RunState) keepReason(d *zfs.Dataset, there *zfs.Listing, going map[string]bool) string {
	for _, below := range there.Datasets {
		if strings.HasPrefix(below.Name, d.Name+"/") && !going[below.Name] {
			return below.Name + " is below it, and stays"
		}
	}
	for _, s := range d.Snapshots() {
		if !v.Scope.Has(s.Name) {
			return "@" + s.Name + " is none of the job's"
		}
	}
	switch {
	case d.ResumeToken() != "" || d.Inconsistent():
		return "a receive into it was interrupted"
	case len(d.Snapshots()) > 0 && d.WrittenTo():
		return "it was written to since its newest snapshot"
	}
	return ""
}

// Removed notes that a copy is gone.
func (s *State) Removed(target, dataset string) {
	s.Orphans = slices.DeleteFunc(s.Orphans, func(g *Orphan) bool { return g.Target == target && g.Dataset == dataset })
}
