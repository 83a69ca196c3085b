package replicate

import (
	"strings"

	"zxfer/pkg/zfs"
)

// incrementalSources finds the incremental sources of the next run, after this run's hold changes.
type incrementalSources struct {
	*RunState
	moved map[string]*HoldChange // by target
}

// staleBookmarks returns bookmarks of the job that are older than the base of some target and are
// not themselves the base of any. An absent target therefore keeps one bookmark, not one per run.
func (b *incrementalSources) staleBookmarks() []string {
	var stale []string
	for _, d := range b.Source.Datasets {
		own, newest, known := map[uint64]bool{}, uint64(0), len(b.Targets) > 0
		for _, t := range b.Targets {
			if b.Excluded[t.Name][d.Name] {
				continue
			}
			of, at := map[uint64]string{}, uint64(0)
			b.addTarget(of, t, d)
			for _, v := range d.Versions {
				if of[v.GUID] != "" {
					own[v.GUID], at = true, max(at, v.CreateTXG)
				}
			}
			known, newest = known && at != 0, max(newest, at)
		}
		for _, v := range d.Versions {
			if known && v.Kind == zfs.Bookmark && v.CreateTXG < newest && !own[v.GUID] && strings.HasPrefix(v.Name, zfs.TagPrefix+b.Job.Name+":") {
				stale = append(stale, v.In(d.Name))
			}
		}
	}
	return stale
}

// needed returns the versions of a source dataset that retention must keep, by GUID, with the
// reason: bases of the targets, and snapshots that interrupted transfers still need.
func (b *incrementalSources) needed(d *zfs.Dataset) map[uint64]string {
	out := map[uint64]string{}
	for _, t := range b.Targets {
		b.addTarget(out, t, d)
	}
	return out
}

// addTarget adds the versions that one target needs. If the target was not reached, it uses the
// state of the last run.
func (b *incrementalSources) addTarget(out map[uint64]string, t *TargetState, d *zfs.Dataset) {
	if b.Excluded[t.Name][d.Name] {
		return
	}
	a := b.arrival(d.Name, t.Name)
	if a.BaseGUID != 0 {
		out[a.BaseGUID] = "base of " + t.Name
	}
	if t.Listing == nil || t.Failed || t.Cut[d.Name] {
		// Any snapshot of the stream may be the target's most recent one.
		for _, v := range d.Snapshots() {
			if v.CreateTXG > txgOf(d, a.BaseGUID) && v.CreateTXG <= a.Sending {
				out[v.GUID] = "on its way to " + t.Name
			}
		}
	}
	for guid := range t.Partial {
		out[guid] = "on its way to " + t.Name
	}
	if td := t.Dataset(t.CopyOf(b.Root, d.Name)); td != nil {
		if base, ok := CommonSnapshot(d, td); ok {
			out[base.GUID] = "base of " + t.Name
		}
	}
}

// arrival returns the state of a copy after this run. It never returns nil.
func (b *incrementalSources) arrival(source, target string) *CopyState {
	if h := b.moved[target]; h != nil && h.Arrivals[source] != nil {
		return h.Arrivals[source]
	}
	if known := b.State.Datasets[source]; known != nil && known.Targets[target] != nil {
		return known.Targets[target]
	}
	return &CopyState{}
}

// txgOf returns the createtxg of a version, or 0 if the dataset has no such GUID.
func txgOf(d *zfs.Dataset, guid uint64) uint64 {
	for _, v := range d.Versions {
		if v.GUID == guid {
			return v.CreateTXG
		}
	}
	return 0
}

// CommonSnapshot returns the target's most recent snapshot, by GUID, that the source still has as
// a snapshot or bookmark. Both sides must keep it, because it is the base of the next increment.
func CommonSnapshot(source, target *zfs.Dataset) (base zfs.Version, ok bool) {
	have := make(map[uint64]bool, len(source.Versions))
	for _, v := range source.Versions {
		have[v.GUID] = true
	}
	for _, v := range target.Snapshots() {
		if have[v.GUID] {
			base, ok = v, true
		}
	}
	return base, ok
}
