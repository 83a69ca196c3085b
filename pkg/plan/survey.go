package plan

import (
	"maps"
	"math"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// NeedHistories returns what a plan made from only the most recent target snapshots still
// needs: datasets whose whole history it needs, and full names of snapshots that other datasets
// must not have.
//
// If the target's most recent snapshot exists on the source, as in every intact copy, it is the
// base, and only taken names matter. Otherwise the plan has a conflict, which the history
// explains or removes. A clone may find its origin anywhere.
func NeedHistories(p Plan, s State) (datasets, names []string) {
	newestOnly := map[string]bool{}
	for _, t := range s.Target.Datasets {
		if t.NewestOnly {
			newestOnly[t.Name] = true
		}
	}
	if len(newestOnly) == 0 {
		return nil, nil
	}
	clone := map[string]bool{}
	for _, d := range s.Source.Datasets {
		clone[d.Name] = originDataset(d) != ""
	}
	uncertain, all := map[string]bool{}, false
	for _, c := range p.Conflicts {
		uncertain[c.Target] = true
	}
	for _, d := range p.Datasets {
		if d.RollsBack() { // newer bookmarks must be destroyed too
			uncertain[d.Target] = true
		}
	}
	for _, d := range p.Datasets {
		first := len(d.Steps) > 0 && (d.Steps[0].Kind == Full || d.Steps[0].Kind == Clone)
		all = all || first && clone[d.Source]
	}
	for _, t := range s.Target.Datasets {
		if newestOnly[t.Name] && (all || uncertain[t.Name]) {
			datasets = append(datasets, t.Name)
			delete(newestOnly, t.Name)
		}
	}
	for d, st := range p.Streams() {
		if !newestOnly[d.Target] {
			continue
		}
		for _, name := range st.Send.Through {
			names = append(names, d.Target+"@"+name)
		}
		names = append(names, d.Target+"@"+st.Send.To)
	}
	return datasets, names
}

// NewestSuffices reports whether a plan may start from the most recent snapshot of each source
// dataset, with NeedSourceHistories. Otherwise the request selects snapshots by other criteria.
func NewestSuffices(req *Request) bool {
	return req.Snapshot == "" && !req.Restore && !req.Bookmark && req.Since.IsZero() &&
		len(req.IncludeSnapshots)+len(req.OnlySnapshots)+len(req.ExcludeSnapshots) == 0
}

// NeedSourceHistories returns the source datasets whose whole history a plan needs, if both
// listings have only the most recent snapshots: those whose most recent snapshot is not also that
// of the copy. A clone may find its origin anywhere, so a tree with a clone needs all.
func NeedSourceHistories(req Request, s State) (datasets []string) {
	root, err := TargetName(req.Source, req.Target)
	if err != nil {
		return nil
	}
	all := slices.ContainsFunc(s.Source.Datasets, func(d *zfs.Dataset) bool { return originDataset(d) != "" })
	copies := s.Target.ByName()
	for _, d := range s.Source.Datasets {
		t := copies[targetOf(d.Name, req.Source, root)]
		if all || t == nil || t.ResumeToken() != "" || t.Inconsistent() || !sameNewest(d, t) {
			datasets = append(datasets, d.Name)
		}
	}
	return datasets
}

// sameNewest reports whether two datasets have the same most recent snapshot.
func sameNewest(d, t *zfs.Dataset) bool {
	here, ok := d.Latest()
	there, also := t.Latest()
	return ok && also && here.GUID == there.GUID
}

// NeedCreated returns the source snapshots whose creation times Since needs. It omits snapshots
// up to the common one, if nothing can move the start before it.
func NeedCreated(req Request, state *State) (snapshots []string) {
	if req.Since.IsZero() {
		return nil
	}
	root, err := TargetName(req.Source, req.Target)
	counterpart, continues := state.Target.ByName(), err == nil && req.Snapshot == "" && !req.Rollback && req.Rotate == ""
	for _, d := range state.Source.Datasets {
		after := uint64(0)
		if t := counterpart[targetOf(d.Name, req.Source, root)]; t != nil && continues {
			base, _, _ := common(d, t, zfs.Version{CreateTXG: math.MaxUint64})
			after = base.CreateTXG
		}
		for _, v := range d.Versions {
			if v.Kind == zfs.Snapshot && v.CreateTXG > after && !v.Simulated && req.Selects(v.Name) {
				snapshots = append(snapshots, v.In(d.Name))
			}
		}
	}
	return snapshots
}

// NeedOrigins returns the origins of clones outside the listings: full names on the source, and
// the expected names on the target. The lists may differ in length.
func NeedOrigins(req Request, state State) (source, target []string) {
	root, err := TargetName(req.Source, req.Target)
	if err != nil {
		return nil, nil
	}
	listed := make(map[string]bool, len(state.Source.Datasets))
	for _, d := range state.Source.Datasets {
		listed[d.Name] = true
	}
	for _, d := range state.Source.Datasets {
		origin := originDataset(d)
		if origin == "" || listed[origin] {
			continue
		}
		name := d.Get("origin")
		source = append(source, name)
		if counterpart, ok := relocate(d.Name, targetOf(d.Name, req.Source, root), name); ok {
			target = append(target, counterpart)
		}
	}
	slices.Sort(source)
	slices.Sort(target)
	return slices.Compact(source), slices.Compact(target)
}

// NeedKeyDependents reports whether the key of a copy that is an encryption root may change. The
// survey must then list all datasets that inherit the key.
func NeedKeyDependents(req Request, s State) bool {
	root, err := TargetName(req.Source, req.Target)
	if err != nil {
		return false
	}
	targets, sources := s.Target.ByName(), s.Source.ByName()
	for _, d := range s.Source.Datasets {
		t := targets[targetOf(d.Name, req.Source, root)]
		if t != nil && d.Encrypted() && sourceSplit(d, t, sources, targets) {
			return true
		}
		if t == nil || !d.Encrypted() || encryptionRoot(t) != t.Name {
			continue
		}
		if r := sources[encryptionRoot(d)]; r != nil && !zfs.SameKey(r, t) {
			return true
		}
	}
	return false
}

// SnapshotsNamed returns the full names of the snapshots named name.
func SnapshotsNamed(l zfs.Listing, name string) (out []string) {
	for _, d := range l.Datasets {
		for _, v := range d.Snapshots() {
			if v.Name == name {
				out = append(out, v.In(d.Name))
			}
		}
	}
	return out
}

// Simulate returns a copy of a listing with the snapshots that are about to be taken, so that a
// plan is complete before anything changes. name returns a dataset's new snapshot, or "".
func Simulate(l zfs.Listing, name func(dataset string) string) zfs.Listing {
	all := l.Datasets
	l.Datasets = make([]*zfs.Dataset, len(all))
	for i, d := range all {
		l.Datasets[i] = d
		if snapshot := name(d.Name); snapshot != "" {
			c := *d
			v := zfs.Version{Kind: zfs.Snapshot, Name: snapshot, GUID: ^uint64(i), CreateTXG: nextTXG(d), Simulated: true}
			c.Versions = append(append([]zfs.Version{}, d.Versions...), v)
			l.Datasets[i] = &c
		}
	}
	return l
}

// SimulateRenames returns a copy of a listing after datasets were renamed with their descendants.
// Origins and encryption roots have the new names, too.
func SimulateRenames(l zfs.Listing, renames []zfs.RenamedCopy) zfs.Listing {
	if len(renames) == 0 {
		return l
	}
	renamed := func(name string) string {
		for _, r := range renames {
			if rest, ok := strings.CutPrefix(name, r.Dataset); ok && (rest == "" || strings.ContainsAny(rest[:1], "/@")) {
				name = r.As + rest
			}
		}
		return name
	}
	l.Datasets = slices.Clone(l.Datasets)
	for i, d := range l.Datasets {
		c := *d
		c.Name, c.Properties = renamed(d.Name), maps.Clone(d.Properties)
		for _, property := range []string{"encryptionroot", "origin"} {
			if p, ok := c.Properties[property]; ok {
				p.Value = renamed(p.Value)
				c.Properties[property] = p
			}
		}
		l.Datasets[i] = &c
	}
	return l
}

// Predict returns the target listing expected after the plan runs. Arriving snapshots become
// the most recent ones. source is the listing that the plan was made from.
func (p *Plan) Predict(source, target zfs.Listing) zfs.Listing {
	from, at := source.ByName(), make(map[string]int, len(target.Datasets))
	target.Datasets = slices.Clone(target.Datasets)
	for i, t := range target.Datasets {
		at[t.Name] = i
	}
	for _, d := range p.Datasets {
		if len(d.Steps) == 0 {
			continue
		}
		counterpart := &zfs.Dataset{Name: d.Target, Type: d.Type}
		i, exists := at[d.Target]
		if !exists {
			i, target.Datasets = len(target.Datasets), append(target.Datasets, counterpart)
		} else {
			*counterpart = *target.Datasets[i]
		}
		counterpart.Versions = slices.Clone(counterpart.Versions)
		arrives, next := d.arriving(), nextTXG(counterpart)
		for _, v := range from[d.Source].Snapshots() { // oldest first
			if arrives[v.Name] {
				v.CreateTXG = next
				counterpart.Versions = append(counterpart.Versions, v)
				next++
			}
		}
		target.Datasets[i] = counterpart
	}
	return target
}

// nextTXG returns a CreateTXG greater than in all versions of a dataset.
func nextTXG(d *zfs.Dataset) uint64 {
	next := uint64(1)
	for _, have := range d.Versions {
		next = max(next, have.CreateTXG+1)
	}
	return next
}
