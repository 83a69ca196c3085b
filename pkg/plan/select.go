package plan

import (
	"math"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Wanted tells whether a snapshot of this name is carried by choice; the one
// that the transfer arrives at always is.
func (r *Request) Wanted(name string) bool {
	if r.names == nil {
		r.names = &names{ParsePatterns(r.IncludeSnapshots), ParsePatterns(r.OnlySnapshots), ParsePatterns(r.ExcludeSnapshots)}
	}
	return (len(r.IncludeSnapshots) == 0 || r.names.include.Match(name)) && (len(r.OnlySnapshots) == 0 || r.names.only.Match(name)) &&
		!r.names.exclude.Match(name)
}

// names are the patterns of a request.
type names struct{ include, only, exclude Patterns }

// recent tells whether a snapshot is not too old to be carried by choice. One whose
// time is not known, as it is yet to be taken, is not.
func (r *Request) recent(d *zfs.Dataset, v zfs.Version) bool {
	at, known := r.created[v.In(d.Name)]
	return !known || !at.Before(r.Since)
}

// arrival returns the snapshot that a dataset's transfer arrives at.
func (r *Request) arrival(d *zfs.Dataset) (zfs.Version, bool) {
	for _, v := range slices.Backward(d.Versions) {
		if v.Kind == zfs.Snapshot && (r.Snapshot == "" && r.Wanted(v.Name) || r.Snapshot != "" && v.Name == r.Snapshot) {
			return v, true
		}
	}
	return zfs.Version{}, false
}

// carried returns the snapshots that a full transfer would bring, in order.
func (r *Request) carried(d *zfs.Dataset, to zfs.Version) []zfs.Version {
	most := r.Newest
	if r.LatestOnly {
		most = 1
	}
	var out []zfs.Version
	for _, v := range d.Versions {
		if v.Kind == zfs.Snapshot && (v.GUID == to.GUID || v.CreateTXG < to.CreateTXG && most != 1 && r.Wanted(v.Name) && r.recent(d, v)) {
			out = append(out, v)
		}
	}
	if most > 0 && len(out) > most {
		out = out[len(out)-most:]
	}
	return out
}

// nearest returns the names of snapshots that a mistyped one may have meant:
// those with the longest common beginning first, newest before older.
func nearest(d *zfs.Dataset, name string) []string {
	var out []string
	for _, v := range slices.Backward(d.Snapshots()) {
		out = append(out, v.Short())
	}
	slices.SortStableFunc(out, func(a, b string) int { return commonPrefix(b[1:], name) - commonPrefix(a[1:], name) })
	return out
}

func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && strings.EqualFold(a[n:n+1], b[n:n+1]) {
		n++
	}
	return n
}

// maxThrough is how many snapshots one stream carries before its last: a request
// names them all.
const maxThrough = 10_000

// run is a stretch of snapshots that one stream carries, the last included.
type run struct {
	through []zfs.Version // between the base and to
	to      zfs.Version
}

// names are those of the snapshots between the base and the last one.
func (r run) names() []string {
	var out []string
	for _, v := range r.through {
		out = append(out, v.Name)
	}
	return out
}

// arrival is what the stream of the run may bring.
func (r run) arrival(base uint64, d *Dataset) zfs.Arrival {
	a := zfs.Arrival{Base: base, Raw: d.Encrypted, Volume: d.Type == zfs.Volume}
	for _, v := range append(slices.Clone(r.through), r.to) {
		a.Snapshots = append(a.Snapshots, zfs.SnapshotID{Name: v.Name, GUID: v.GUID})
	}
	return a
}

// runs cuts the way from a base to a snapshot into streams: one for every
// stretch of wanted snapshots with no unwanted one in between. after is the
// CreateTXG of the base. alone tells that the first of them cannot be part of
// a stretch: it is sent in full, or from a bookmark.
func (r *Request) runs(d *zfs.Dataset, after uint64, to zfs.Version, alone bool) []run {
	if to.CreateTXG <= after {
		return nil // it is the base
	}
	carried := map[uint64]bool{}
	for _, v := range r.carried(d, to) {
		carried[v.GUID] = true
	}
	var out []run
	open := false // whether the last run may be extended
	for _, v := range d.Versions {
		switch {
		case v.Kind != zfs.Snapshot || v.CreateTXG <= after || v.CreateTXG > to.CreateTXG:
		case !carried[v.GUID]:
			// A stream of several snapshots (-I) carries every one in
			// between: behind this gap, one goes alone (-i).
			alone, open = true, false
		case open && len(out[len(out)-1].through) < maxThrough:
			last := &out[len(out)-1]
			last.through = append(last.through, last.to)
			last.to = v
		default:
			out = append(out, run{to: v})
			open, alone = !alone, false
		}
	}
	return out
}

// NeedCreated are the snapshots of the source whose time decides what is carried: those
// behind what the target has, where nothing can make the way begin before that.
func NeedCreated(req Request, state *State) (snapshots []string) {
	if req.Since.IsZero() {
		return nil
	}
	root, err := TargetName(req.Source, req.Target)
	there, onward := state.Target.ByName(), err == nil && req.Snapshot == "" && !req.Rollback && req.Rotate == ""
	for _, d := range state.Source.Datasets {
		after := uint64(0)
		if t := there[targetOf(d.Name, req.Source, root)]; t != nil && onward {
			base, _, _ := common(d, t, zfs.Version{CreateTXG: math.MaxUint64})
			after = base.CreateTXG
		}
		for _, v := range d.Versions {
			if v.Kind == zfs.Snapshot && v.CreateTXG > after && !v.Pretended && req.Wanted(v.Name) {
				snapshots = append(snapshots, v.In(d.Name))
			}
		}
	}
	return snapshots
}
