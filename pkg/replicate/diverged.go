package replicate

import (
	"slices"
	"strings"
	"time"
)

// DivergedCopy is an existing copy that a run renamed because it had diverged.
type DivergedCopy struct {
	Target  string    `json:"target"`  // name of the target
	Dataset string    `json:"dataset"` // its former name
	As      string    `json:"as"`
	GUID    uint64    `json:"guid,string"`
	Since   time.Time `json:"since"`
}

// AddDiverged records a diverged copy, before the run renames it with its descendants. Their holds
// move with them and are stale.
func (s *State) AddDiverged(a DivergedCopy) {
	same := func(b DivergedCopy) bool { return a.Target == b.Target && a.As == b.As }
	if !slices.ContainsFunc(s.Diverged, same) {
		s.Diverged = append(s.Diverged, a)
	}
	for _, known := range s.Datasets {
		at := known.Targets[a.Target]
		if at == nil {
			continue
		}
		for _, h := range slices.Clone(at.Held) {
			if below, ok := strings.CutPrefix(h.Target, a.Dataset); ok && (below[0] == '@' || below[0] == '/') {
				at.Held, at.Moving = append(at.Held, Held{Target: a.As + below}), true
			}
		}
	}
}

// DivergedAt returns the names of the diverged copies on a target.
func (s *State) DivergedAt(target string) (names []string) {
	for _, a := range s.Diverged {
		if a.Target == target {
			names = append(names, a.As)
		}
	}
	return names
}

// UpdateDiverged drops diverged copies of a target that no longer exist or were recreated.
func (s *State) UpdateDiverged(target string, guidOf func(name string) (guid uint64)) {
	s.Diverged = slices.DeleteFunc(s.Diverged, func(a DivergedCopy) bool { return a.Target == target && guidOf(a.As) != a.GUID })
}
