package replicate

import (
	"slices"
	"time"
)

// Orphan is a copy whose original no longer exists on the source.
type Orphan struct {
	Target  string `json:"target"`                // name of the target
	Dataset string `json:"dataset"`               // the copy
	Source  string `json:"source"`                // its original
	GUID    uint64 `json:"guid,string,omitempty"` // of the copy; 0 = not yet listed
	// Since is the start of the first run that missed the original, Seen of the last one.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
	// Waited is the elapsed grace period. One interval between runs counts for at most a quarter
	// of the period, so that a wrong clock destroys nothing.
	Waited time.Duration `json:"waited"`
	// SourceReplaced means that the source's root was recreated, for example after a loss. Then
	// the copy is kept permanently.
	SourceReplaced bool `json:"anew,omitempty"`
	// Held are snapshots of the copy that may have the job's hold.
	Held []string `json:"held,omitempty"`
}

// Due returns the earliest time to destroy the copy, or zero for never.
func (g *Orphan) Due(t *Target) time.Time {
	if !t.MirrorsDatasets() || g.SourceReplaced {
		return time.Time{}
	}
	return g.Seen.Add(max(0, time.Duration(t.Mirror.Gone)-g.Waited))
}

// Wait adds the time since the last run to Waited. grace is the complete grace period.
func (g *Orphan) Wait(now time.Time, grace time.Duration) {
	if passed := now.Sub(g.Seen); passed > 0 {
		g.Waited += min(passed, grace/4)
	}
	g.Seen = now
}

// OrphansAt returns the orphans of a target.
func (s *State) OrphansAt(target string) (all []*Orphan) {
	for _, g := range s.Orphans {
		if g.Target == target {
			all = append(all, g)
		}
	}
	return all
}

// DropOrphan drops an orphan that was destroyed.
func (s *State) DropOrphan(target, dataset string) {
	s.Orphans = slices.DeleteFunc(s.Orphans, func(g *Orphan) bool { return g.Target == target && g.Dataset == dataset })
}
