package replicate

import (
	"slices"
	"strings"
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// SetAside is a copy that a run set aside, as long as it is there.
type SetAside struct {
	Target  string    `json:"target"`  // the target's name
	Dataset string    `json:"dataset"` // that it was a copy of, by its name on the target
	As      string    `json:"as"`
	GUID    uint64    `json:"guid,string"`
	Since   time.Time `json:"since"`
}

// SetsAside notes, before it is done, that a copy is set aside with all that is below
// it: the holds there go along, and nothing needs them any more.
func (s *State) SetsAside(a SetAside) {
	same := func(b SetAside) bool { return a.Target == b.Target && a.As == b.As }
	if !slices.ContainsFunc(s.Aside, same) {
		s.Aside = append(s.Aside, a)
	}
	for _, known := range s.Datasets {
		at := known.Targets[a.Target]
		if at == nil {
			continue
		}
		for _, h := range slices.Clone(at.Held) {
			if below, ok := strings.CutPrefix(h.There, a.Dataset); ok && (below[0] == '@' || below[0] == '/') {
				at.Held, at.Moving = append(at.Held, Held{There: a.As + below}), true
			}
		}
	}
}

// AsideAt are the copies of a target that were set aside, by their names.
func (s *State) AsideAt(target string) (names []string) {
	for _, a := range s.Aside {
		if a.Target == target {
			names = append(names, a.As)
		}
	}
	return names
}

// KeepAside drops those of a target that are not there any more, or are another dataset.
func (s *State) KeepAside(target string, there func(name string) (guid uint64)) {
	s.Aside = slices.DeleteFunc(s.Aside, func(a SetAside) bool { return a.Target == target && there(a.As) != a.GUID })
}

// maxAside is how many copies of one dataset may be kept: what diverges more often does so
// for a reason that setting it aside does not mend, as two sources of one copy, and would
// fill the pool.
const maxAside = 3

// Rotation has a request set aside what diverged, where the target's job has it so.
func (v *View) Rotation(t *Target, r *plan.Request) {
	if t.OnDivergence != "rotate" {
		return
	}
	r.Rotate, r.Copies, r.Spent = zfs.SetAsideEnding(v.Started), map[string]bool{}, map[string]bool{}
	for source, known := range v.State.Datasets {
		if a := known.Targets[t.Name]; a != nil && a.BaseGUID != 0 {
			r.Copies[t.CopyOf(v.Root, source)] = true
		}
	}
	times := map[string]int{}
	for _, a := range v.State.Aside {
		if a.Target == t.Name {
			times[a.Dataset]++
			r.Spent[a.Dataset] = times[a.Dataset] >= maxAside
		}
	}
}
