package plan

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Pair is a match of two datasets by snapshot GUIDs. One side may be missing.
type Pair struct {
	Relation string `json:"relation"`
	// Renamed reports whether the names below the roots differ.
	Renamed bool `json:"renamed,omitempty"`
	// Common is the most recent common version: a snapshot or, on one side, its bookmark.
	// Shared is the number of common snapshots.
	Common *zfs.Version `json:"common,omitempty"`
	Shared int          `json:"shared"`
	A      *PairSide    `json:"a,omitempty"`
	B      *PairSide    `json:"b,omitempty"`
}

type PairSide struct {
	Dataset string `json:"dataset"`
	// Only are the snapshots missing on the other side, oldest first. Newer counts those newer
	// than the common version.
	Only  []zfs.Version `json:"only"`
	Newer int           `json:"newer"`
	// Bytes is the estimated size of the streams that would send the newer snapshots; 0 if
	// unknown or none.
	Bytes uint64 `json:"bytes,omitempty"`
	// Written is the number of bytes written since the most recent snapshot.
	Written uint64 `json:"written,omitempty"`
	// Resume describes an interrupted receive; nil if there is none.
	Resume *PairResume `json:"resume,omitempty"`

	d     *zfs.Dataset
	base  zfs.Version // the common version on this side
	below string      // the name below the root
}

// PairResume describes an interrupted receive.
type PairResume struct {
	Snapshot string `json:"snapshot"` // full name on the source
	Bytes    uint64 `json:"bytes"`    // received so far
}

// Relations of the two datasets of a Pair.
const (
	PairSame         = "same"          // same snapshots
	PairSameNewest   = "same-newest"   // same most recent snapshot; one side has additional older ones
	PairNewerA       = "a-newer"       // A has snapshots newer than the common version
	PairNewerB       = "b-newer"       // B has
	PairDiverged     = "diverged"      // both have
	PairUnrelated    = "unrelated"     // no common version
	PairHalfReceived = "half-received" // a first receive is interrupted or running
	PairNoSnapshots  = "no-snapshots"  // neither side has snapshots
	PairOnlyA        = "only-a"        // missing in B
	PairOnlyB        = "only-b"
	PairSetAside     = "set-aside" // a copy set aside, missing on the other side: no difference
)

// Differs reports whether the datasets differ. If newest is set, additional older snapshots on
// one side do not count.
func (p *Pair) Differs(newest bool) bool {
	switch p.Relation {
	case PairSame, PairNoSnapshots, PairSetAside:
		return false
	case PairSameNewest:
		return !newest
	}
	return true
}

// RelativeName returns the name below the root of A, or of B if A is missing; "" for the root.
func (p *Pair) RelativeName() string { return cmp.Or(p.A, p.B).below }

// RelativeName returns the name of the dataset below its root, "" for the root.
func (s *PairSide) RelativeName() string { return s.below }

// Compare matches the datasets of two listings with all their versions. It matches equal names
// with a common version first, then different names with the most common versions, then equal
// names. Copies set aside match equal names only.
func Compare(a, b zfs.Listing) []*Pair {
	left, right := sides(a), sides(b)
	var pairs []*Pair
	match := func(l, r *PairSide) {
		pairs = append(pairs, newPair(l, r))
		if l != nil {
			delete(left, l.below)
		}
		if r != nil {
			delete(right, r.below)
		}
	}
	for _, l := range sortedSides(left) {
		if r := right[l.below]; r != nil && countCommon(l, r) > 0 {
			match(l, r)
		}
	}
	for _, m := range renamedPairs(left, right) {
		if left[m[0].below] != nil && right[m[1].below] != nil && !m[0].isSetAside() && !m[1].isSetAside() {
			match(m[0], m[1])
		}
	}
	for _, l := range sortedSides(left) {
		match(l, right[l.below])
	}
	for _, r := range sortedSides(right) {
		match(nil, r)
	}
	slices.SortFunc(pairs, func(p, q *Pair) int { return cmp.Compare(p.RelativeName(), q.RelativeName()) })
	return pairs
}

func sides(l zfs.Listing) map[string]*PairSide {
	out := make(map[string]*PairSide, len(l.Datasets))
	for _, d := range l.Datasets {
		below := strings.TrimPrefix(strings.TrimPrefix(d.Name, l.Root), "/")
		s := &PairSide{Dataset: d.Name, Only: []zfs.Version{}, Written: written(d), d: d, below: below}
		if token, err := zfs.ParseToken(d.ResumeToken()); d.ResumeToken() != "" && err == nil {
			s.Resume = &PairResume{Snapshot: token.ToName, Bytes: token.Bytes}
		}
		out[below] = s
	}
	return out
}

func sortedSides(m map[string]*PairSide) []*PairSide {
	var out []*PairSide
	for _, s := range m {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *PairSide) int { return cmp.Compare(a.below, b.below) })
	return out
}

// renamedPairs returns all pairs with a common version, most common versions first.
func renamedPairs(left, right map[string]*PairSide) [][2]*PairSide {
	of := map[uint64][]*PairSide{}
	for _, r := range sortedSides(right) {
		for _, v := range r.d.Versions {
			if with := of[v.GUID]; len(with) == 0 || with[len(with)-1] != r && len(with) < maxCopies {
				of[v.GUID] = append(with, r)
			}
		}
	}
	type match struct {
		pair [2]*PairSide
		n    int
	}
	var all []match
	for _, l := range sortedSides(left) {
		seen := map[*PairSide]bool{}
		for _, v := range l.d.Versions {
			for _, r := range of[v.GUID] {
				if seen[r] {
					continue
				}
				seen[r] = true
				if n := countCommon(l, r); n > 0 {
					all = append(all, match{[2]*PairSide{l, r}, n})
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b match) int { return cmp.Compare(b.n, a.n) })
	var out [][2]*PairSide
	for _, m := range all {
		out = append(out, m.pair)
	}
	return out
}

// maxCopies limits the datasets per version on one side. A version in each of a thousand
// datasets would cost minutes.
const maxCopies = 8

// countCommon counts the versions of l that are snapshots of r, or the reverse.
func countCommon(l, r *PairSide) (n int) {
	have := make(map[uint64]zfs.VersionKind, len(r.d.Versions))
	for _, v := range r.d.Versions {
		have[v.GUID] = max(have[v.GUID], v.Kind) // prefer snapshots
	}
	for _, v := range l.d.Versions {
		if k := have[v.GUID]; k == zfs.Snapshot || k != "" && v.Kind == zfs.Snapshot {
			n++
		}
	}
	return n
}

// newPair compares two datasets, one of which may be nil.
func newPair(l, r *PairSide) *Pair {
	p := &Pair{A: l, B: r}
	switch {
	case r == nil:
		p.setOnly(l, PairOnlyA)
		return p
	case l == nil:
		p.setOnly(r, PairOnlyB)
		return p
	}
	p.Renamed = l.below != r.below
	p.Common = l.common(r)
	p.Shared = l.countMissing(r)
	r.countMissing(l)
	switch {
	case l.d.Inconsistent() || r.d.Inconsistent():
		p.Relation = PairHalfReceived
	case p.Common == nil && len(l.Only)+len(r.Only) == 0:
		p.Relation = PairNoSnapshots
	case p.Common == nil:
		p.Relation = PairUnrelated
	case l.Newer > 0 && r.Newer > 0:
		p.Relation = PairDiverged
	case l.Newer > 0:
		p.Relation = PairNewerA
	case r.Newer > 0:
		p.Relation = PairNewerB
	case len(l.Only)+len(r.Only) > 0:
		p.Relation = PairSameNewest
	default:
		p.Relation = PairSame
	}
	return p
}

// setOnly fills in a Pair of which only one side exists.
func (p *Pair) setOnly(s *PairSide, relation string) {
	s.countMissing(nil)
	if p.Relation = relation; s.isSetAside() { // none of its snapshots would be sent
		p.Relation, s.Newer = PairSetAside, 0
	}
}

// isSetAside reports whether the name below the root is that of a copy set aside. A root is
// always compared.
func (s *PairSide) isSetAside() bool { return zfs.IsDiverged(s.below) }

// common returns the most recent common version. Either side may have only its bookmark.
func (s *PairSide) common(other *PairSide) *zfs.Version {
	last := zfs.Version{CreateTXG: math.MaxUint64}
	mine, theirs, ok := common(s.d, other.d, last)
	if back, here, also := common(other.d, s.d, last); also && (!ok || here.CreateTXG > mine.CreateTXG) {
		mine, theirs, ok = here, back, true
	}
	if !ok {
		return nil
	}
	s.base, other.base = mine, theirs
	return &mine
}

// countMissing fills in Only and Newer, and returns the number of shared snapshots.
func (s *PairSide) countMissing(other *PairSide) (shared int) {
	var theirs map[uint64]zfs.Version
	if other != nil {
		theirs = other.d.SnapshotsByGUID()
	}
	for _, v := range s.d.Snapshots() {
		if _, both := theirs[v.GUID]; both {
			shared++
			continue
		}
		s.Only = append(s.Only, v)
		if v.CreateTXG > s.base.CreateTXG && v.GUID != s.base.GUID {
			s.Newer++
		}
	}
	return shared
}

// Streams returns the streams that would send the newer snapshots, raw if encrypted.
func (s *PairSide) Streams() (out []zfs.SendSpec) {
	to, ok := s.d.Latest()
	if !ok || s.Newer == 0 {
		return nil
	}
	flags := zfs.StreamFlags{LargeBlocks: true, Compressed: true}
	if s.d.Encrypted() {
		flags = zfs.StreamFlags{Raw: true}
	}
	from := ""
	if s.base.Kind != "" {
		from = s.base.Short()
	}
	for _, r := range (&Request{}).segments(s.d, s.base.CreateTXG, to, s.base.Kind != zfs.Snapshot) {
		out = append(out, zfs.SendSpec{Dataset: s.Dataset, From: from, Through: r.names(), To: r.to.Name, Flags: flags})
		from = "@" + r.to.Name
	}
	return out
}
