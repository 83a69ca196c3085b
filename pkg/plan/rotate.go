package plan

import (
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// DivergedRename is what becomes of a copy that diverged: it is kept, under another name.
type DivergedRename struct {
	As   string `json:"as"`
	GUID uint64 `json:"guid,string"`
	Why  string `json:"why"`
}

// rotateHint names the way out that destroys nothing.
func (p *planner) rotateHint(copied string) string {
	if p.req.Spent[copied] {
		return "it was set aside again and again: find out why, and destroy those of its former copies that nobody needs"
	}
	if others := p.state.Others[copied]; len(others) > 0 {
		return "it is not set aside, as what is below it would go along and is not of this job: " + finding.Some(others, evidence) + "; move that away"
	}
	return "to keep it under another name, and have it begun anew in full: {{rotate}}"
}

// copied reports whether a dataset of the target is one that may be set aside even if it has no
// snapshot in common with the source: what is known to be a copy, or with zxfer send --rotate
// whatever is there.
func (p *planner) copied(t *zfs.Dataset) bool {
	return !p.req.Restore && (p.req.Copies == nil || p.req.Copies[t.Name])
}

// stray notes that a copy went its own way: no stream brings it back. What was merely
// written to it does not count: to undo that takes seconds, a second copy perhaps days.
func (p *planner) stray(d, t *zfs.Dataset) {
	if p.req.Spent[t.Name] || len(p.state.Others[t.Name]) > 0 {
		return
	}
	if p.plan.astray == nil {
		p.plan.astray = map[string]string{}
	}
	why := "it has nothing in common with " + p.onSource(d.Name)
	if _, _, ok := common(d, t, zfs.Version{CreateTXG: 1<<64 - 1}); ok {
		why = "it has diverged from " + p.onSource(d.Name)
	}
	p.plan.astray[t.Name] = why
}

// NeedBelow names the copies whose descendants Rotate must know of.
func NeedBelow(p *Plan, req Request) []string {
	if req.Rotate == "" {
		return nil
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(p.astray)) {
		if !slices.ContainsFunc(names, func(above string) bool { return strings.HasPrefix(name, above+"/") }) {
			names = append(names, name)
		}
	}
	return names
}

// Rotate has the copies that a plan of Make found astray set aside, where the request
// has them so: what is below goes along. It tells whether it changed the state, by which
// the plan is to be made anew. A copy whose name leaves no room stays a conflict, and so
// does the root of a pool, which has no other name, and one with what is not ours below.
func Rotate(p *Plan, req Request, s *State) bool {
	if req.Rotate == "" {
		return false
	}
	found := s.Target.ByName()
	for _, d := range s.Below {
		found[d.Name] = d
	}
	aside := maps.Clone(s.Aside)
	if aside == nil {
		aside = map[string]*DivergedRename{}
	}
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(p.astray)) { // what is above comes first
		if slices.ContainsFunc(gone, func(above string) bool { return strings.HasPrefix(name, above+"/") }) || found[name] == nil {
			continue
		}
		a := zfs.DivergedCopy{Dataset: name, GUID: found[name].GUID, As: name + req.Rotate}
		if a.Check() != nil || roomless(found, a) {
			continue
		}
		if others := req.others(found, name); len(others) > 0 {
			if s.Others == nil {
				s.Others = map[string][]string{}
			}
			s.Others[name] = others
			continue
		}
		aside[name] = &DivergedRename{As: a.As, GUID: a.GUID, Why: p.astray[name]}
		gone = append(gone, name)
	}
	s.Target.Datasets = slices.DeleteFunc(slices.Clone(s.Target.Datasets), func(d *zfs.Dataset) bool {
		return slices.ContainsFunc(gone, func(name string) bool { return strings.HasPrefix(d.Name+"/", name+"/") })
	})
	s.Aside = aside
	return len(gone)+len(s.Others) > 0
}

// others are the datasets below a copy that are not ours, and were not set aside.
func (r *Request) others(found map[string]*zfs.Dataset, above string) (names []string) {
	if r.Ours == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if strings.HasPrefix(name, above+"/") && !r.Ours[name] && !zfs.IsDiverged(name) {
			names = append(names, name)
		}
	}
	return names
}

// roomless tells of a copy with a name, or one of a snapshot, below it that would be too
// long with the ending.
func roomless(found map[string]*zfs.Dataset, a zfs.DivergedCopy) bool {
	for name, d := range found {
		if !strings.HasPrefix(name+"/", a.Dataset+"/") {
			continue
		}
		for _, v := range append(slices.Clone(d.Versions), zfs.Version{Kind: zfs.Snapshot, Name: "x"}) {
			if len(v.In(name))+len(a.As)-len(a.Dataset) > zfs.MaxName {
				return true
			}
		}
	}
	return false
}

// isRecreated tells whether a dataset of the target, or one above it, is set aside: who asked
// for that asked for a new one in its place.
func (s *State) isRecreated(target string) bool {
	for name := range s.Aside {
		if strings.HasPrefix(target+"/", name+"/") {
			return true
		}
	}
	return false
}
