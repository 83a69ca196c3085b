package decision

import (
	"cmp"
	"strings"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// needs holds, by the name of a source dataset, the versions that each of its targets needs: by GUID,
// with the reason.
type needs map[string][]map[uint64]retention.Reason

// neededBy returns the needs of the targets after the holds were moved.
func neededBy(j *replicate.Job, pairs []*pair, moved []*HoldChange, now time.Time) needs {
	after, out := map[string]map[string]*replicate.CopyState{}, needs{}
	for _, h := range moved {
		after[h.Target] = h.Copies
	}
	for _, p := range pairs {
		name := p.source.Name
		a := cmp.Or(after[p.target.Name][name], p.known)
		need := p.needed(a)
		if p.target.expired(j, a, now) && hasBookmark(p.source, a.BaseGUID) {
			need[a.BaseGUID] = retention.Reason{Kind: retention.BookmarkSuffices}
		}
		out[name] = append(out[name], need)
	}
	return out
}

// needed returns the base of the copy, and the snapshots that an interrupted transfer still needs.
// If the target was not reached, it uses a, the state of the copy.
func (p *pair) needed(a *replicate.CopyState) map[uint64]retention.Reason {
	out, t := map[uint64]retention.Reason{}, p.target
	base, sent := retention.Reason{Kind: retention.IncrementalSource, Of: t.Name}, retention.Reason{Kind: retention.BeingSent, Of: t.Name}
	if a.BaseGUID != 0 {
		out[a.BaseGUID] = base
	}
	if t.Listing == nil || t.Failed || t.Cut[p.source.Name] {
		// Any snapshot of the stream may be the target's most recent one.
		for _, v := range p.source.Versions { // also the bookmarks of destroyed ones
			if v.CreateTXG > txgOf(p.source, a.BaseGUID) && v.CreateTXG <= a.Sending {
				out[v.GUID] = sent
			}
		}
	}
	for guid := range t.Partial {
		out[guid] = sent
	}
	if p.copied != nil {
		if common, ok := CommonSnapshot(p.source, p.copied); ok {
			out[common.GUID] = base
		}
	}
	return out
}

// protected returns the versions of the copy that pruning must keep, by GUID, with the reason.
func (p *pair) protected() map[uint64]retention.Reason {
	out := unsent(p.target.Target, p.copied)
	for guid := range p.target.Partial {
		out[guid] = retention.Reason{Kind: retention.InterruptedReceive}
	}
	if base, ok := CommonSnapshot(p.source, p.copied); ok {
		out[base.GUID] = retention.Reason{Kind: retention.NextIncremental}
		return out
	}
	for _, v := range p.copied.Versions { // a dataset that zxfer did not copy
		out[v.GUID] = retention.Reason{Kind: retention.SourceLacks}
	}
	return out
}

// of returns the snapshots of a source dataset that any target needs.
func (n needs) of(dataset string) map[uint64]retention.Reason {
	out := map[uint64]retention.Reason{}
	for _, versions := range n[dataset] {
		for guid, why := range versions {
			if why.Kind != retention.BookmarkSuffices {
				out[guid] = why
			}
		}
	}
	return out
}

// staleBookmarks returns bookmarks of the job that are older than the base of some target and are
// not themselves the base of any. An absent target therefore keeps one bookmark, not one per run.
func (n needs) staleBookmarks(job string, datasets []*zfs.Dataset) (stale []string) {
	for _, d := range datasets {
		own, newest, known := map[uint64]bool{}, uint64(0), true
		for _, versions := range n[d.Name] {
			at := uint64(0)
			for _, v := range d.Versions {
				if versions[v.GUID].Kind != retention.NoReason {
					own[v.GUID], at = true, max(at, v.CreateTXG)
				}
			}
			known, newest = known && at != 0, max(newest, at)
		}
		for _, v := range d.Versions {
			if known && v.Kind == zfs.Bookmark && v.CreateTXG < newest && !own[v.GUID] && strings.HasPrefix(v.Name, zfs.TagPrefix+job+":") {
				stale = append(stale, v.In(d.Name))
			}
		}
	}
	return stale
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
