package plan

import (
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// rotateHint returns the hint to set a copy aside, or why that is not possible.
func (v *view) rotateHint(copied string) string {
	if v.req.RenameLimited[copied] {
		return "find out why the copy diverges repeatedly, and destroy former copies that are not needed"
	}
	if others := v.state.NotOwned[copied]; len(others) > 0 {
		return "it is not renamed, because its descendants do not belong to this job: " + finding.JoinFirst(others, maxEvidence) + "; rename them first"
	}
	return "to keep it under another name and send in full, add {{rotate}}"
}

// isKnownCopy reports whether a target dataset may be set aside even without a common snapshot:
// Request.Copies lists it or is nil (zxfer send --rotate).
func (v *view) isKnownCopy(t *zfs.Dataset) bool {
	return !v.req.Restore && (v.req.Copies == nil || v.req.Copies[t.Name])
}

// offerRotate extends the hint of a conflict by Rotate, if the target dataset is a known copy.
func (f *findings) offerRotate(d, t *zfs.Dataset, hint string) string {
	if !f.isKnownCopy(t) {
		return hint
	}
	f.markDiverged(d, t)
	return hint + "\n" + f.rotateHint(t.Name)
}

// markDiverged records a diverged copy, unless it may not be renamed. Copies that were only
// written to do not count: undoing takes seconds, another full send perhaps days.
func (f *findings) markDiverged(d, t *zfs.Dataset) {
	if f.req.RenameLimited[t.Name] || len(f.state.NotOwned[t.Name]) > 0 {
		return
	}
	if f.plan.diverged == nil {
		f.plan.diverged = map[string]string{}
	}
	why := "it has no common snapshot with " + f.onSource(d.Name)
	if _, _, ok := common(d, t, zfs.Version{CreateTXG: 1<<64 - 1}); ok {
		why = "it has diverged from " + f.onSource(d.Name)
	}
	f.plan.diverged[t.Name] = why
}

// NeedDescendants returns the diverged copies whose descendants Rotate must know.
func NeedDescendants(p *Plan, req Request) []string {
	if req.Rotate == "" {
		return nil
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(p.diverged)) {
		if !slices.ContainsFunc(names, func(above string) bool { return strings.HasPrefix(name, above+"/") }) {
			names = append(names, name)
		}
	}
	return names
}

// Rotate sets aside the diverged copies of a plan, with their descendants, if the request says
// so. It reports whether it changed the state; then call Make again. A copy remains a conflict
// if the new name is too long, if it is a pool's root, or if it has descendants that are not in
// Owned.
func Rotate(p *Plan, req Request, s *State) bool {
	if req.Rotate == "" {
		return false
	}
	found := s.Target.ByName()
	for _, d := range s.Descendants {
		found[d.Name] = d
	}
	aside := maps.Clone(s.Renames)
	if aside == nil {
		aside = map[string]*DivergedRename{}
	}
	var renamed []string
	for _, name := range slices.Sorted(maps.Keys(p.diverged)) { // ancestors come first
		if slices.ContainsFunc(renamed, func(above string) bool { return strings.HasPrefix(name, above+"/") }) || found[name] == nil {
			continue
		}
		a := zfs.DivergedCopy{Dataset: name, GUID: found[name].GUID, As: name + req.Rotate}
		if a.Check() != nil || nameTooLong(found, a) {
			continue
		}
		if others := req.notOwned(found, name); len(others) > 0 {
			if s.NotOwned == nil {
				s.NotOwned = map[string][]string{}
			}
			s.NotOwned[name] = others
			continue
		}
		aside[name] = &DivergedRename{As: a.As, GUID: a.GUID, Why: p.diverged[name]}
		renamed = append(renamed, name)
	}
	s.Target.Datasets = slices.DeleteFunc(slices.Clone(s.Target.Datasets), func(d *zfs.Dataset) bool {
		return slices.ContainsFunc(renamed, func(name string) bool { return strings.HasPrefix(d.Name+"/", name+"/") })
	})
	s.Renames = aside
	return len(renamed)+len(s.NotOwned) > 0
}

// notOwned returns the descendants of a copy that are not in Owned. Copies set aside do not
// count.
func (r *Request) notOwned(found map[string]*zfs.Dataset, above string) (names []string) {
	if r.Owned == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if strings.HasPrefix(name, above+"/") && !r.Owned[name] && !zfs.IsDiverged(name) {
			names = append(names, name)
		}
	}
	return names
}

// nameTooLong reports whether the suffix makes the name of a descendant or its snapshots too
// long.
func nameTooLong(found map[string]*zfs.Dataset, a zfs.DivergedCopy) bool {
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

// isRecreated reports whether the dataset or an ancestor is set aside, so that the user asked
// for a new copy.
func (s *State) isRecreated(target string) bool {
	for name := range s.Renames {
		if strings.HasPrefix(target+"/", name+"/") {
			return true
		}
	}
	return false
}
