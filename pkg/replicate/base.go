package replicate

import (
	"strings"

	"zxfer/pkg/zfs"
)

// incrementalSources are what the next increments begin with, once what was sent is held.
type incrementalSources struct {
	*RunState
	moved map[string]*HoldChange // by target
}

// arrival is what will be known of a dataset at a target.
func (b *incrementalSources) arrival(source, target string) *CopyState {
	if h := b.moved[target]; h != nil && h.Arrivals[source] != nil {
		return h.Arrivals[source]
	}
	if known := b.State.Datasets[source]; known != nil && known.Targets[target] != nil {
		return known.Targets[target]
	}
	return &CopyState{}
}

// needed are the versions of a source dataset that retention must leave, with why:
// those that the next increment to any target, or the rest of an interrupted one,
// begins with or brings. By GUID.
func (b *incrementalSources) needed(d *zfs.Dataset) map[uint64]string {
	out := map[uint64]string{}
	for _, t := range b.Targets {
		b.add(out, t, d)
	}
	return out
}

// add adds the versions that one target needs. Of a target that was not reached
// the state knows.
func (b *incrementalSources) add(out map[uint64]string, t *TargetState, d *zfs.Dataset) {
	if b.Excluded[t.Name][d.Name] {
		return
	}
	a := b.arrival(d.Name, t.Name)
	if a.BaseGUID != 0 {
		out[a.BaseGUID] = "base of " + t.Name
	}
	if t.Listing == nil || t.Failed || t.Cut[d.Name] {
		// The target may have any snapshot of the stream as its newest.
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

// Dataset is one of the target's, nil where it is not there, or was not seen.
func (t *TargetState) Dataset(name string) *zfs.Dataset {
	if t.Listing == nil {
		return nil
	}
	if t.byName == nil {
		t.byName = t.Listing.ByName()
	}
	return t.byName[name]
}

// arrival is what arrived of a dataset of the source, nil without any.
func (t *TargetState) arrival(source string) *SentDataset {
	if t.bySource == nil {
		t.bySource = make(map[string]*SentDataset, len(t.Arrived))
		for i := range t.Arrived {
			t.bySource[t.Arrived[i].Source] = &t.Arrived[i]
		}
	}
	return t.bySource[source]
}

// txgOf is the createtxg of a version by its GUID, 0 where there is none.
func txgOf(d *zfs.Dataset, guid uint64) uint64 {
	for _, v := range d.Versions {
		if v.GUID == guid {
			return v.CreateTXG
		}
	}
	return 0
}

// staleBookmarks are the job's bookmarks that are older than some target's base and no
// target's own: no increment begins with them any more. Of a target that is away
// for long there is but one, and not one for every run.
func (b *incrementalSources) staleBookmarks() []string {
	var gone []string
	for _, d := range b.Source.Datasets {
		own, newest, known := map[uint64]bool{}, uint64(0), len(b.Targets) > 0
		for _, t := range b.Targets {
			if b.Excluded[t.Name][d.Name] {
				continue
			}
			of, at := map[uint64]string{}, uint64(0)
			b.add(of, t, d)
			for _, v := range d.Versions {
				if of[v.GUID] != "" {
					own[v.GUID], at = true, max(at, v.CreateTXG)
				}
			}
			known, newest = known && at != 0, max(newest, at)
		}
		for _, v := range d.Versions {
			if known && v.Kind == zfs.Bookmark && v.CreateTXG < newest && !own[v.GUID] && strings.HasPrefix(v.Name, zfs.TagPrefix+b.Job.Name+":") {
				gone = append(gone, v.In(d.Name))
			}
		}
	}
	return gone
}

// CommonSnapshot is the newest snapshot of a target's dataset that the source still has
// as a snapshot or a bookmark: the base of the next increment, which neither
// side may lose. By GUID; false where there is none.
func CommonSnapshot(source, target *zfs.Dataset) (there zfs.Version, ok bool) {
	have := make(map[uint64]bool, len(source.Versions))
	for _, v := range source.Versions {
		have[v.GUID] = true
	}
	for _, v := range target.Snapshots() {
		if have[v.GUID] {
			there, ok = v, true
		}
	}
	return there, ok
}
