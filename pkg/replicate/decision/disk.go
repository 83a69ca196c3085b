package decision

import (
	"slices"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

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
