package replicate

import (
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Tag is the tag of the holds that a job places for a target.
func Tag(job, target string) string { return zfs.TagPrefix + job + ":" + target }

// JobOfTag returns the job whose tag it is; false for tags of others.
func JobOfTag(tag string) (string, bool) {
	rest, ours := strings.CutPrefix(tag, zfs.TagPrefix)
	job, _, whole := strings.Cut(rest, ":")
	return job, ours && whole
}

// bookmarkOf is the name of the job's bookmark of a snapshot, "" where it
// would be too long.
func bookmarkOf(job, dataset, snapshot string) string {
	name := dataset + "#" + zfs.TagPrefix + job + ":" + snapshot
	if _, _, err := zfs.ParseBookmark(name); err != nil {
		return ""
	}
	return name
}

// HoldChange moves a target's holds to the new bases. Arrivals, by dataset of the
// source, are to be written down before anything is placed, so that a crash at
// any moment leaves no hold behind that the next run does not know of.
type HoldChange struct {
	Target        string
	Arrivals      map[string]*CopyState
	Source, There HoldMove
	// Bookmarks are to be made of what was sent: of each, by full name, the snapshot.
	Bookmarks map[string]string
}

// HoldMove is what is to be held on one side, and what no more once that is. Each
// side is on its own: that one cannot be held does not let the holds of the other
// pile up.
type HoldMove struct{ Place, Drop []string }

// holdChange is what is to be held for a target, nil where all is.
func (v *RunState) holdChange(t *TargetState) *HoldChange {
	if t.Failed {
		return nil
	}
	h := &HoldChange{Target: t.Name, Arrivals: map[string]*CopyState{}, Bookmarks: map[string]string{}}
	for _, at := range t.Arrived {
		h.add(v, at)
	}
	if len(h.Arrivals) == 0 {
		return nil
	}
	return h
}

// add moves the holds of one dataset.
func (h *HoldChange) add(v *RunState, at SentDataset) {
	var a CopyState
	if known := v.State.Datasets[at.Source]; known != nil && known.Targets[h.Target] != nil {
		a = *known.Targets[h.Target]
	}
	var base Held
	if v.Job.Holds != "none" && v.Job.Holds != "target" {
		base.Source = at.Newest.In(at.Source)
	}
	if v.Job.Holds != "none" && v.Job.Holds != "source" {
		base.There = at.Target + "@" + at.There
	}
	var now []Held // one, or none
	if base != (Held{}) {
		now = append(now, base)
	}
	if a.BaseGUID == at.Newest.GUID && !a.Moving && slices.Equal(a.Held, now) {
		return
	}
	held := slices.Clone(a.Held)
	for _, was := range a.Held {
		// Where the copy was renamed its hold went along.
		if _, snapshot, ok := strings.Cut(was.There, "@"); ok && was.There != at.Target+"@"+snapshot {
			held = append(held, Held{There: at.Target + "@" + snapshot})
		}
	}
	if base != (Held{}) && v.isRolledBack(at.Source, a.BaseGUID) {
		held = append(held, v.possibleHolds(at, base)...)
	}
	for _, was := range held {
		h.Source.drop(was.Source, base.Source)
		h.There.drop(was.There, base.There)
	}
	h.Source.place(base.Source)
	h.There.place(base.There)
	a.Held = append(slices.DeleteFunc(held, func(h Held) bool { return h == base }), now...)
	a.Base, a.There, a.BaseGUID, a.Moving = at.Newest.Name, at.There, at.Newest.GUID, true
	if b := bookmarkOf(v.Job.Name, at.Source, at.Newest.Name); b != "" && v.Job.Bookmarks != "none" {
		h.Bookmarks[b] = at.Newest.In(at.Source)
	}
	h.Arrivals[at.Source] = &a
}

// isRolledBack reports whether the source no longer has the snapshot that a target's holds were on. It
// was taken back behind it then, as zxfer restore --rollback does, which moves the holds to where
// it went back to.
func (v *RunState) isRolledBack(source string, base uint64) bool {
	d := v.Source.Find(source)
	if d == nil || base == 0 {
		return false
	}
	_, there := d.SnapshotOf(base)
	return !there
}

// maxReleased bounds the snapshots that anywhere names.
const maxReleased = 1000

// possibleHolds returns the snapshots of a dataset, the newest ones if there are many, that may carry a
// hold besides the base.
func (v *RunState) possibleHolds(at SentDataset, base Held) (out []Held) {
	all := v.Source.Find(at.Source).Snapshots()
	for _, s := range all[max(0, len(all)-maxReleased):] {
		var h Held
		if base.Source != "" {
			h.Source = s.In(at.Source)
		}
		if base.There != "" {
			h.There = at.Target + "@" + s.Name
		}
		if s.GUID != at.Newest.GUID {
			out = append(out, h)
		}
	}
	return out
}

func (s *HoldMove) place(name string) {
	if name != "" {
		s.Place = append(s.Place, name)
	}
}

func (s *HoldMove) drop(old, now string) {
	if old != "" && old != now {
		s.Drop = append(s.Drop, old)
	}
}

// Placed takes the names out of the arrivals that certainly carry no hold, on the
// source and on the target; whole tells that all was done that was to be.
func (h *HoldChange) Placed(source, there []string, whole bool) {
	bare := func(names []string) map[string]bool {
		set := make(map[string]bool, len(names))
		for _, n := range names {
			set[n] = true
		}
		return set
	}
	bareSource, bareThere := bare(source), bare(there)
	for _, a := range h.Arrivals {
		for i := range a.Held {
			if bareSource[a.Held[i].Source] {
				a.Held[i].Source = ""
			}
			if bareThere[a.Held[i].There] {
				a.Held[i].There = ""
			}
		}
		a.Held = slices.Compact(slices.DeleteFunc(a.Held, func(h Held) bool { return h == Held{} }))
		a.Moving = !whole
	}
}
