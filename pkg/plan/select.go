package plan

import (
	"path"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Wanted tells whether a snapshot of this name is carried by choice; the one
// that the transfer arrives at always is.
func (r *Request) Wanted(name string) bool {
	if len(r.IncludeSnapshots) > 0 && !Matches(r.IncludeSnapshots, name) {
		return false
	}
	return !Matches(r.ExcludeSnapshots, name)
}

// Matches tells whether a name matches one of the shell patterns.
func Matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return ok && err == nil // a malformed pattern is the command line's to refuse
	})
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
	if r.LatestOnly {
		return []zfs.Version{to}
	}
	var out []zfs.Version
	for _, v := range d.Versions {
		if v.Kind == zfs.Snapshot && v.CreateTXG <= to.CreateTXG && (v.GUID == to.GUID || r.Wanted(v.Name)) {
			out = append(out, v)
		}
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
	if r.LatestOnly {
		return []run{{to: to}}
	}
	var out []run
	open := false // whether the last run may be extended
	for _, v := range d.Versions {
		switch {
		case v.Kind != zfs.Snapshot || v.CreateTXG <= after || v.CreateTXG > to.CreateTXG:
		case v.GUID != to.GUID && !r.Wanted(v.Name):
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
