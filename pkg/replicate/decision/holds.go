package decision

import (
	"slices"
	"strings"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// HoldChange moves the holds of a target to its new bases. The caller must save Copies, keyed by
// source dataset, before it places holds. Otherwise a crash leaves holds that the next run does
// not know.
type HoldChange struct {
	Target             string
	Copies             map[string]*replicate.CopyState
	OnSource, OnTarget HoldMove
	// Bookmarks maps full names of bookmarks to create to the full names of their snapshots.
	Bookmarks map[string]string
}

// HoldMove lists the holds to place on one side, and the holds to release afterwards. The sides
// are independent: if placing fails on one, the other still releases its old holds.
type HoldMove struct{ Place, Drop []string }

// moveHolds returns the changes for the copies on a target, or nil if there are none.
func moveHolds(j *replicate.Job, t *TargetState, copies []*pair, now time.Time) *HoldChange {
	h := &HoldChange{Target: t.Name, Copies: map[string]*replicate.CopyState{}, Bookmarks: map[string]string{}}
	for _, p := range copies {
		if p.sent != nil && !t.Failed {
			h.add(j, p)
		}
		if t.expired(j, p.known, now) {
			h.expire(j, p)
		}
	}
	if len(h.Copies) == 0 {
		return nil
	}
	return h
}

// add adds the changes for one copy.
func (h *HoldChange) add(j *replicate.Job, p *pair) {
	a, at := *p.known, p.sent
	var base replicate.Held
	if j.HoldsSource() {
		base.Source = at.Newest.In(at.Source)
	}
	if j.Holds != "none" && j.Holds != "source" {
		base.Target = at.Target + "@" + at.NewestOnTarget
	}
	var now []replicate.Held // at most one
	if base != (replicate.Held{}) {
		now = append(now, base)
	}
	if a.BaseGUID == at.Newest.GUID && !a.Moving && slices.Equal(a.Held, now) {
		return
	}
	held := slices.Clone(a.Held)
	for _, was := range a.Held {
		// If the copy was renamed, its holds have the new name.
		if _, snapshot, ok := strings.Cut(was.Target, "@"); ok && was.Target != at.Target+"@"+snapshot {
			held = append(held, replicate.Held{Target: at.Target + "@" + snapshot})
		}
	}
	// If the base no longer exists, the source was rolled back, and zxfer restore --rollback has moved
	// the holds to an older snapshot.
	if _, exists := p.source.SnapshotOf(a.BaseGUID); !exists && a.BaseGUID != 0 && base != (replicate.Held{}) {
		held = append(held, p.possibleHolds(base)...)
	}
	held = slices.DeleteFunc(held, func(was replicate.Held) bool { return was == replicate.Held{Source: base.Source} }) // part of the new base
	for _, was := range held {
		h.OnSource.drop(was.Source, base.Source)
		h.OnTarget.drop(was.Target, base.Target)
	}
	h.OnSource.place(base.Source)
	h.OnTarget.place(base.Target)
	a.Held = append(slices.DeleteFunc(held, func(h replicate.Held) bool { return h == base }), now...)
	a.Base, a.BaseOnTarget, a.BaseGUID, a.Moving = at.Newest.Name, at.NewestOnTarget, at.Newest.GUID, true
	if b := bookmarkOf(j.Name, at.Source, at.Newest.Name); b != "" && j.Bookmarks != "none" && !hasNamedBookmark(p.source, b, at.Newest.GUID) {
		h.Bookmarks[b] = at.Newest.In(at.Source)
	}
	h.Copies[at.Source] = &a
}

// maxReleased limits the result of possibleHolds.
const maxReleased = 1000

// possibleHolds returns the snapshots of the source dataset, other than the base, that may have a
// hold of the job. If there are more than maxReleased, it returns the newest.
func (p *pair) possibleHolds(base replicate.Held) (out []replicate.Held) {
	all := p.source.Snapshots()
	for _, s := range all[max(0, len(all)-maxReleased):] {
		var h replicate.Held
		if base.Source != "" {
			h.Source = s.In(p.source.Name)
		}
		if base.Target != "" {
			h.Target = p.sent.Target + "@" + s.Name
		}
		if s.GUID != p.sent.Newest.GUID {
			out = append(out, h)
		}
	}
	return out
}

// hasNamedBookmark reports whether a dataset has a bookmark with that full name and GUID.
func hasNamedBookmark(d *zfs.Dataset, name string, guid uint64) bool {
	return slices.ContainsFunc(d.Versions, func(v zfs.Version) bool {
		return v.Kind == zfs.Bookmark && v.GUID == guid && v.In(d.Name) == name
	})
}

// bookmarkOf returns the full name of the job's bookmark of a snapshot, or "" if it would be too
// long.
func bookmarkOf(job, dataset, snapshot string) string {
	name := dataset + "#" + zfs.TagPrefix + job + ":" + snapshot
	if _, _, err := zfs.ParseBookmark(name); err != nil {
		return ""
	}
	return name
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

// ExpectHolds records the new bases of copies, before their holds are placed.
func ExpectHolds(s *replicate.State, changes []*HoldChange) {
	for _, h := range changes {
		for source, a := range h.Copies {
			s.Dataset(source).Targets[h.Target] = a
		}
	}
}

// Placed removes names from the arrivals. source and there are full names on the two sides that
// certainly have no hold. whole means that all changes succeeded.
func (h *HoldChange) Placed(source, target []string, whole bool) {
	setOf := func(names []string) map[string]bool {
		set := make(map[string]bool, len(names))
		for _, n := range names {
			set[n] = true
		}
		return set
	}
	noHoldSource, noHoldTarget := setOf(source), setOf(target)
	for _, a := range h.Copies {
		for i := range a.Held {
			if noHoldSource[a.Held[i].Source] {
				a.Held[i].Source = ""
			}
			if noHoldTarget[a.Held[i].Target] {
				a.Held[i].Target = ""
			}
		}
		a.Held = slices.Compact(slices.DeleteFunc(a.Held, func(h replicate.Held) bool { return h == replicate.Held{} }))
		a.Moving = !whole
	}
}

// expired reports whether a bookmark suffices for a copy on an absent disk.
func (t *TargetState) expired(j *replicate.Job, a *replicate.CopyState, now time.Time) bool {
	if !t.Absent || t.Disk == nil || j.Bookmarks == "none" || a.BaseGUID == 0 || a.Success.IsZero() {
		return false
	}
	hold := t.Disk.HoldOrDefault()
	return hold > 0 && now.Sub(a.Success) > hold
}

// hasBookmark reports whether a dataset has a bookmark of a snapshot.
func hasBookmark(d *zfs.Dataset, guid uint64) bool {
	return slices.ContainsFunc(d.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Bookmark && v.GUID == guid })
}

// expire replaces the hold on the source with a bookmark.
func (h *HoldChange) expire(j *replicate.Job, p *pair) {
	a := *p.known
	base, exists := p.source.SnapshotOf(a.BaseGUID)
	if !exists {
		return
	}
	if !hasBookmark(p.source, a.BaseGUID) {
		b := bookmarkOf(j.Name, p.source.Name, base.Name)
		if b == "" { // the name is too long: the hold stays
			return
		}
		h.Bookmarks[b] = base.In(p.source.Name)
		h.Copies[p.source.Name] = &a // the next run releases the hold, when it has seen the bookmark
		return
	}
	a.Held = slices.Clone(a.Held) // Placed removes the released holds
	for _, held := range a.Held {
		if held.Source != "" {
			h.OnSource.drop(held.Source, "")
			h.Copies[p.source.Name] = &a
		}
	}
}
