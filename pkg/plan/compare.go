package plan

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// How the two datasets of a Pair stand to each other.
const (
	PairSame         = "same"          // the same snapshots
	PairSameNewest   = "same-newest"   // the newest is the same; of older ones only one side has some
	PairNewerA       = "a-newer"       // A went on from the common version
	PairNewerB       = "b-newer"       // B did
	PairDiverged     = "diverged"      // both did
	PairUnrelated    = "unrelated"     // no version in common
	PairHalfReceived = "half-received" // a first receive of one was cut off, or is under way
	PairNoSnapshots  = "no-snapshots"  // neither has any
	PairOnlyA        = "only-a"        // B has no such dataset
	PairOnlyB        = "only-b"
	PairSetAside     = "set-aside" // the other has no such dataset, as this was set aside: no difference
)

// Pair is a dataset of one tree and what it is in the other, by the GUIDs of snapshots.
type Pair struct {
	Relation string `json:"relation"`
	// Renamed tells that the two have different names below their roots.
	Renamed bool `json:"renamed,omitempty"`
	// Common is the newest version that both have: a snapshot or, on one side, a
	// bookmark of it. Shared is how many snapshots both have.
	Common *zfs.Version `json:"common,omitempty"`
	Shared int          `json:"shared"`
	A      *PairSide    `json:"a,omitempty"`
	B      *PairSide    `json:"b,omitempty"`
}

// PairSide is one side of a Pair.
type PairSide struct {
	Dataset string `json:"dataset"`
	// Only are the snapshots that the other side lacks, the oldest first; Newer of
	// them are newer than the common version.
	Only  []zfs.Version `json:"only"`
	Newer int           `json:"newer"`
	// Bytes is the estimate of the streams that would bring the newer ones to the
	// other side; 0 where there are none, or it is unknown.
	Bytes uint64 `json:"bytes,omitempty"`
	// Written is what changed since the newest snapshot.
	Written uint64 `json:"written,omitempty"`
	// Resume is a receive into it that was cut off.
	Resume *PairResume `json:"resume,omitempty"`

	d     *zfs.Dataset
	base  zfs.Version // the common version as it is called here
	below string      // the name below the root
}

// PairResume is a receive that was cut off.
type PairResume struct {
	Snapshot string `json:"snapshot"` // its full name, on the source
	Bytes    uint64 `json:"bytes"`    // that were received
}

// Differs tells whether the two differ; newest passes over older snapshots that only
// one side has.
func (p *Pair) Differs(newest bool) bool {
	switch p.Relation {
	case PairSame, PairNoSnapshots, PairSetAside:
		return false
	case PairSameNewest:
		return !newest
	}
	return true
}

// Compare pairs the datasets of two listings with all their versions: those of one
// name below their roots that have a snapshot in common, then those of different
// names that have the most, then those of one name. A copy that was set aside is for
// none of another name.
func Compare(a, b zfs.Listing) []*Pair {
	left, right := sides(a), sides(b)
	var pairs []*Pair
	match := func(l, r *PairSide) {
		pairs = append(pairs, paired(l, r))
		if l != nil {
			delete(left, l.below)
		}
		if r != nil {
			delete(right, r.below)
		}
	}
	for _, l := range inOrder(left) {
		if r := right[l.below]; r != nil && related(l, r) > 0 {
			match(l, r)
		}
	}
	for _, m := range renamed(left, right) {
		if left[m[0].below] != nil && right[m[1].below] != nil && !m[0].aside() && !m[1].aside() {
			match(m[0], m[1])
		}
	}
	for _, l := range inOrder(left) {
		match(l, right[l.below])
	}
	for _, r := range inOrder(right) {
		match(nil, r)
	}
	slices.SortFunc(pairs, func(p, q *Pair) int { return cmp.Compare(p.Below(), q.Below()) })
	return pairs
}

// Below is the name of the dataset below its root, "" for the root: that of A, where
// there is one.
func (p *Pair) Below() string { return cmp.Or(p.A, p.B).below }

// aside tells of a copy that was set aside, by its name below the root: whose root was
// set aside is what somebody wants to compare.
func (s *PairSide) aside() bool { return zfs.IsDiverged(s.below) }

// Below is the name of the dataset below its root, "" for the root.
func (s *PairSide) Below() string { return s.below }

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

func inOrder(m map[string]*PairSide) []*PairSide {
	var out []*PairSide
	for _, s := range m {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *PairSide) int { return cmp.Compare(a.below, b.below) })
	return out
}

// related counts the versions of l that are snapshots of r, or the other way round.
func related(l, r *PairSide) (n int) {
	have := make(map[uint64]zfs.VersionKind, len(r.d.Versions))
	for _, v := range r.d.Versions {
		have[v.GUID] = max(have[v.GUID], v.Kind) // snapshots
	}
	for _, v := range l.d.Versions {
		if k := have[v.GUID]; k == zfs.Snapshot || k != "" && v.Kind == zfs.Snapshot {
			n++
		}
	}
	return n
}

// maxCopies bounds the datasets of one side in which a version is looked for: one that
// has it in each of a thousand would cost minutes.
const maxCopies = 8

// renamed are the pairs that have a version in common, those with the most first.
func renamed(left, right map[string]*PairSide) [][2]*PairSide {
	of := map[uint64][]*PairSide{}
	for _, r := range inOrder(right) {
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
	for _, l := range inOrder(left) {
		seen := map[*PairSide]bool{}
		for _, v := range l.d.Versions {
			for _, r := range of[v.GUID] {
				if seen[r] {
					continue
				}
				seen[r] = true
				if n := related(l, r); n > 0 {
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

// paired says how two datasets stand to each other, of which one may be nil.
func paired(l, r *PairSide) *Pair {
	p := &Pair{A: l, B: r}
	switch {
	case r == nil:
		p.alone(l, PairOnlyA)
		return p
	case l == nil:
		p.alone(r, PairOnlyB)
		return p
	}
	p.Renamed = l.below != r.below
	p.Common = l.common(r)
	p.Shared = l.lacking(r)
	r.lacking(l)
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

// alone says it of a dataset that only one side has.
func (p *Pair) alone(s *PairSide, relation string) {
	s.lacking(nil)
	if p.Relation = relation; s.aside() { // and nothing of it is to be sent
		p.Relation, s.Newer = PairSetAside, 0
	}
}

// common finds the newest version that both have, whichever of them has only a
// bookmark of it.
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

// lacking fills in what the other side lacks, and returns how many snapshots it has.
func (s *PairSide) lacking(other *PairSide) (shared int) {
	for _, v := range s.d.Snapshots() {
		if other != nil {
			if _, both := other.d.SnapshotOf(v.GUID); both {
				shared++
				continue
			}
		}
		s.Only = append(s.Only, v)
		if v.CreateTXG > s.base.CreateTXG && v.GUID != s.base.GUID {
			s.Newer++
		}
	}
	return shared
}

// Streams are those that would bring what is newer to the other side, raw where that
// is encrypted.
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
	for _, r := range (&Request{}).runs(s.d, s.base.CreateTXG, to, s.base.Kind != zfs.Snapshot) {
		out = append(out, zfs.SendSpec{Dataset: s.Dataset, From: from, Through: r.names(), To: r.to.Name, Flags: flags})
		from = "@" + r.to.Name
	}
	return out
}
