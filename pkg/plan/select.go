package plan

import (
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Wanted reports whether the patterns select a snapshot name. The final snapshot is always
// sent.
func (r *Request) Wanted(name string) bool {
	if r.patterns == nil {
		r.patterns = &snapshotPatterns{ParsePatterns(r.IncludeSnapshots), ParsePatterns(r.OnlySnapshots), ParsePatterns(r.ExcludeSnapshots)}
	}
	return (len(r.IncludeSnapshots) == 0 || r.patterns.include.Match(name)) && (len(r.OnlySnapshots) == 0 || r.patterns.only.Match(name)) &&
		!r.patterns.exclude.Match(name)
}

// snapshotPatterns are the parsed patterns of a request.
type snapshotPatterns struct{ include, only, exclude Patterns }

// arrival returns the final snapshot of a dataset.
func (r *Request) arrival(d *zfs.Dataset) (zfs.Version, bool) {
	for _, v := range slices.Backward(d.Versions) {
		if v.Kind == zfs.Snapshot && (r.Snapshot == "" && r.Wanted(v.Name) || r.Snapshot != "" && v.Name == r.Snapshot) {
			return v, true
		}
	}
	return zfs.Version{}, false
}

// carried returns the snapshots that a full transfer sends, in order.
func (r *Request) carried(d *zfs.Dataset, to zfs.Version) []zfs.Version {
	most := r.Newest
	if r.LatestOnly {
		most = 1
	}
	var out []zfs.Version
	for _, v := range d.Versions {
		if v.Kind == zfs.Snapshot && (v.GUID == to.GUID || v.CreateTXG < to.CreateTXG && most != 1 && r.Wanted(v.Name) && r.recentEnough(d, v)) {
			out = append(out, v)
		}
	}
	if most > 0 && len(out) > most {
		out = out[len(out)-most:]
	}
	return out
}

// recentEnough reports whether a snapshot is not older than Since. A snapshot that is not taken
// yet has no time and counts as recent.
func (r *Request) recentEnough(d *zfs.Dataset, v zfs.Version) bool {
	at, known := r.created[v.In(d.Name)]
	return !known || !at.Before(r.Since)
}

// nearest returns the snapshot names most similar to a mistyped one: longest common prefix
// first, then most recent first.
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

// segment is a sequence of snapshots that one stream sends.
type segment struct {
	through []zfs.Version // intermediate snapshots
	to      zfs.Version
}

// names returns the names of the intermediate snapshots.
func (r segment) names() []string {
	var out []string
	for _, v := range r.through {
		out = append(out, v.Name)
	}
	return out
}

// arrival returns the expected content of the segment's stream.
func (r segment) arrival(base uint64, d *Dataset) zfs.Arrival {
	a := zfs.Arrival{Base: base, Raw: d.Encrypted, Volume: d.Type == zfs.Volume}
	for _, v := range append(slices.Clone(r.through), r.to) {
		a.Snapshots = append(a.Snapshots, zfs.SnapshotID{Name: v.Name, GUID: v.GUID})
	}
	return a
}

// segments splits the snapshots between a base and to into streams, one per sequence of wanted
// snapshots without gaps. after is the CreateTXG of the base. If alone is set, the first
// snapshot gets its own stream, because it is sent in full or from a bookmark.
func (r *Request) segments(d *zfs.Dataset, after uint64, to zfs.Version, alone bool) []segment {
	if to.CreateTXG <= after {
		return nil // to is the base
	}
	carried := map[uint64]bool{}
	for _, v := range r.carried(d, to) {
		carried[v.GUID] = true
	}
	var out []segment
	open := false // whether the last segment may be extended
	for _, v := range d.Versions {
		switch {
		case v.Kind != zfs.Snapshot || v.CreateTXG <= after || v.CreateTXG > to.CreateTXG:
		case !carried[v.GUID]:
			// A stream with intermediate snapshots (-I) includes all of them, so the snapshot
			// after a gap is sent alone (-i).
			alone, open = true, false
		case open && len(out[len(out)-1].through) < maxThrough:
			last := &out[len(out)-1]
			last.through = append(last.through, last.to)
			last.to = v
		default:
			out = append(out, segment{to: v})
			open, alone = !alone, false
		}
	}
	return out
}

// maxThrough is the maximum number of intermediate snapshots per stream. A request lists all
// their names.
const maxThrough = 10_000
