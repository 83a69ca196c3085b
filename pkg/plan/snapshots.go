package plan

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/option"
	"zxfer/pkg/zfs"
)

// arrivalSnapshot returns the final snapshot of a dataset. Descendants without one are skipped,
// as zfs send -R --skip-missing does.
func (f *findings) arrivalSnapshot(d *zfs.Dataset, out *Dataset) (zfs.Version, bool) {
	top := d.Name == f.req.Source
	switch {
	case d.Inconsistent() && top && d.Properties[zfs.RestoreProperty].Local():
		f.conflict(HalfReceived, d.Name, out.Target, "wait until it ends; if it was interrupted, complete it: run the same zxfer restore again",
			"zxfer restore is receiving %s, or was interrupted: only a part of its first snapshot has arrived", f.onSource(d.Name))
		return zfs.Version{}, false
	case d.Inconsistent() && d.Properties[zfs.RestoreProperty].Local():
		f.note("%s is skipped: zxfer restore is receiving it, or was interrupted", d.Name)
		return zfs.Version{}, false
	case d.Inconsistent() && top:
		f.conflict(HalfReceived, d.Name, out.Target, "wait until its transfer ends; if it was interrupted, run the same command again",
			"%s is only partially received", f.onSource(d.Name))
		return zfs.Version{}, false
	case d.Inconsistent():
		f.note("%s is skipped: it is only partially received", d.Name)
		return zfs.Version{}, false
	}
	to, ok := f.req.arrival(d)
	if !ok {
		f.handleNoSnapshot(d, out, top)
	}
	return to, ok
}

// handleNoSnapshot explains that a dataset has no final snapshot: as a conflict if the user named
// the dataset, otherwise as a note.
func (f *findings) handleNoSnapshot(d *zfs.Dataset, out *Dataset, top bool) {
	refuse := func(hint, format string, args ...any) {
		f.conflict(NoSnapshot, d.Name, out.Target, hint, format, args...)
	}
	source, purpose := f.onSource(d.Name), "send"
	if f.req.Restore {
		purpose = "restore"
	}
	switch {
	case !top && f.req.Snapshot != "":
		f.note("%s is skipped: it has no snapshot @%s", d.Name, f.req.Snapshot)
	case !top:
		f.note("%s is skipped: it has no snapshot to %s", d.Name, purpose)
	case f.req.Snapshot != "":
		has := "no snapshot at all"
		if near := nearest(d, f.req.Snapshot); len(near) > 0 {
			has = finding.JoinFirst(near, maxEvidence)
		}
		hint := "name one of them"
		if !f.req.Restore {
			hint += ", or take a new one: " + option.Name("snapshot", f.req.Snapshot)
		}
		refuse(hint, "%s has no snapshot @%s; it has %s", source, f.req.Snapshot, has)
	case len(d.Snapshots()) > 0:
		refuse("", "%s has no snapshot that matches the selection ({{include-snaps}}); it has %s", source, listNames(d.Versions))
	case f.req.Restore:
		refuse("", "%s has no snapshot to restore", source)
	default:
		refuse("take one first: {{snapshot =}}", "%s has no snapshot to send", source)
	}
}

// Selects reports whether the patterns select a snapshot name. The final snapshot is always
// sent.
func (r *Request) Selects(name string) bool {
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
		if v.Kind == zfs.Snapshot && (r.Snapshot == "" && r.Selects(v.Name) || r.Snapshot != "" && v.Name == r.Snapshot) {
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
		if v.Kind == zfs.Snapshot && (v.GUID == to.GUID || v.CreateTXG < to.CreateTXG && most != 1 && r.Selects(v.Name) && r.recentEnough(d, v)) {
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
	out := shortNames(d.Snapshots())
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

// RegexpPrefix starts a regular-expression pattern.
const RegexpPrefix = "re:"

// Pattern matches names. It is a shell pattern (path.Match) for the whole name or, after "re:",
// a regular expression (package regexp) that is not anchored.
type Pattern struct {
	text string
	re   *regexp.Regexp // nil for a shell pattern
}

func ParsePattern(s string) (Pattern, error) {
	if re, ok := strings.CutPrefix(s, RegexpPrefix); ok {
		r, err := regexp.Compile(re)
		if err == nil && re == "" {
			err = errors.New("is empty")
		}
		if err != nil {
			return Pattern{}, fmt.Errorf("%q is not a regular expression: %w", s, err)
		}
		return Pattern{s, r}, nil
	}
	if _, err := path.Match(s, ""); err != nil || s == "" {
		return Pattern{}, fmt.Errorf("%q is not a pattern; use *, ? and [a-z], or re: and a regular expression", s)
	}
	return Pattern{s, nil}, nil
}

// IsRegexp reports whether the pattern is a regular expression.
func (p Pattern) IsRegexp() bool { return p.re != nil }

// Match reports whether the pattern matches a name.
func (p Pattern) Match(name string) bool {
	if p.re != nil {
		return p.re.MatchString(name)
	}
	ok, err := path.Match(p.text, name)
	return ok && err == nil
}

// Patterns match a name if any of them does.
type Patterns []Pattern

// ParsePatterns parses patterns and ignores malformed ones. Callers have refused those before.
func ParsePatterns(all []string) Patterns {
	var out Patterns
	for _, s := range all {
		if p, err := ParsePattern(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Match reports whether any pattern matches a name.
func (p Patterns) Match(name string) bool {
	return slices.ContainsFunc(p, func(one Pattern) bool { return one.Match(name) })
}

// Strings returns the patterns as written.
func (p Patterns) Strings() []string {
	var out []string
	for _, one := range p {
		out = append(out, one.text)
	}
	return out
}

// Matches reports whether any pattern matches a name.
func Matches(patterns []string, name string) bool { return ParsePatterns(patterns).Match(name) }
