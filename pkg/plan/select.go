package plan

import (
	"path"
	"sort"
	"strings"

	"zxfer/pkg/zfs"
)

// wanted tells whether a snapshot of this name is carried by choice; the one
// that the transfer arrives at always is.
func (r *Request) wanted(name string) bool {
	if len(r.IncludeSnapshots) > 0 && !matches(r.IncludeSnapshots, name) {
		return false
	}
	return !matches(r.ExcludeSnapshots, name)
}

func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); err == nil && ok { // bad patterns were refused before
			return true
		}
	}
	return false
}

// arrival returns the snapshot that a dataset's transfer arrives at.
func (r *Request) arrival(d *zfs.Dataset) (zfs.Version, bool) {
	snaps := d.Snapshots()
	for i := len(snaps) - 1; i >= 0; i-- {
		if r.Snapshot == "" && r.wanted(snaps[i].Name) || r.Snapshot != "" && snaps[i].Name == r.Snapshot {
			return snaps[i], true
		}
	}
	return zfs.Version{}, false
}

// nearest returns up to n snapshot names that a mistyped name may have meant,
// those with the longest common beginning first, newest before older.
func nearest(d *zfs.Dataset, name string, n int) []string {
	snaps := d.Snapshots()
	common := func(s string) int {
		i := 0
		for i < len(s) && i < len(name) && s[i] == name[i] {
			i++
		}
		return i
	}
	var names []string
	for i := len(snaps) - 1; i >= 0; i-- {
		names = append(names, snaps[i].Name)
	}
	sort.SliceStable(names, func(i, j int) bool { return common(names[i]) > common(names[j]) })
	return names[:min(n, len(names))]
}

// newest lists up to five versions of a dataset, newest first, as evidence.
func newest(d *zfs.Dataset) []string {
	var out []string
	if d == nil {
		return nil
	}
	for i := len(d.Versions) - 1; i >= 0 && len(out) < 5; i-- {
		out = append(out, d.Versions[i].Short())
	}
	return out
}

// quoted joins versions for a message.
func quoted(versions []string) string {
	if len(versions) == 0 {
		return "no snapshot"
	}
	return strings.Join(versions, ", ")
}

// run is a stretch of snapshots that one stream carries, the last included.
type run struct {
	through []string // between the base and to
	to      zfs.Version
}

// runs cuts the way from a base to a snapshot into streams: one for every
// stretch of wanted snapshots with no unwanted one in between. after is the
// CreateTXG of the base; a bookmark cannot begin a stretch of several.
func (r *Request) runs(d *zfs.Dataset, after uint64, to zfs.Version, fromBookmark bool) []run {
	if r.LatestOnly {
		return []run{{to: to}}
	}
	var out []run
	var open []zfs.Version
	flush := func() {
		if len(open) == 0 {
			return
		}
		last := run{to: open[len(open)-1]}
		for _, v := range open[:len(open)-1] {
			last.through = append(last.through, v.Name)
		}
		out = append(out, last)
		open = nil
	}
	// A stream of several snapshots (-I) carries every one in between and
	// cannot begin at a bookmark: behind either, one goes alone (-i).
	alone := fromBookmark
	for _, v := range d.Snapshots() {
		switch {
		case v.CreateTXG <= after || v.CreateTXG > to.CreateTXG:
		case v.GUID != to.GUID && !r.wanted(v.Name):
			flush()
			alone = true
		case alone:
			out = append(out, run{to: v})
			alone = false
		default:
			open = append(open, v)
		}
	}
	flush()
	return out
}
