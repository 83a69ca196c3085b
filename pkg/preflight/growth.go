package preflight

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"zxfer/pkg/plan"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// Growth is the space that a plan is expected to use on the target.
type Growth struct {
	// Bytes is the sum of the estimated sizes of the streams, each times the target's copies.
	Bytes uint64 `json:"bytes"`
	Bound Bound  `json:"bound"`
	// Unknown is the number of streams of unknown size. Bytes does not include them.
	Unknown int `json:"unknown_streams,omitempty"`
	// Target is the existing dataset at or above all targets. Available is the space in bytes
	// that its pool and the quotas leave, nil = unknown.
	Target    string   `json:"target"`
	Available *uint64  `json:"available,omitempty"`
	Reasons   []string `json:"reasons"` // of Bytes and Bound, a clause each
}

// Bound is the relation of the space to Growth.Bytes.
type Bound string

// The bounds. About also applies if effects in both directions are known.
const (
	About   Bound = "about"
	AtMost  Bound = "at most"
	AtLeast Bound = "at least"
)

func boundOf(less, more bool) Bound {
	switch {
	case less && !more:
		return AtMost
	case more && !less:
		return AtLeast
	}
	return About
}

// PlanGrowth returns the expected growth of the target, nil if the plan sends nothing.
func PlanGrowth(in *Input) *Growth {
	if in.Plan.Steps() == 0 {
		return nil
	}
	g := &Growth{Target: nearestExisting(&in.TargetListing), Reasons: []string{}}
	targets := in.TargetListing.ByName()
	if t := targets[g.Target]; t != nil {
		if n, ok := number(t.Get("available")); ok && !hasRefquota(t) {
			g.Available = &n
		}
	}
	var all datasetGrowth
	for _, d := range in.Plan.Datasets {
		all.add(growthOf(in, targets, d))
	}
	g.Bytes, g.Unknown, g.Bound = all.bytes, all.unknown, boundOf(len(all.less) > 0, len(all.more) > 0)
	g.Reasons = append(g.Reasons, slices.Concat(all.factors, all.less, all.more)...)
	return g
}

// datasetGrowth is the expected growth by the streams of one or more datasets.
type datasetGrowth struct {
	bytes      uint64
	unknown    int      // streams of unknown size
	factors    []string // reasons that bytes includes
	less, more []string // reasons for less space, and for more
}

func (g *datasetGrowth) add(other datasetGrowth) {
	g.bytes, g.unknown = addSizes(g.bytes, other.bytes), g.unknown+other.unknown
	union := func(a *[]string, b []string) {
		for _, why := range b {
			if !slices.Contains(*a, why) {
				*a = append(*a, why)
			}
		}
	}
	union(&g.factors, other.factors)
	union(&g.less, other.less)
	union(&g.more, other.more)
}

// storage holds the facts that determine the stored size of a dataset's streams.
type storage struct {
	compression, dedup string // of the target
	copies             uint64 // of the target, 1 to 3
	uncompressed       bool   // the source stores blocks uncompressed
	unpacked           bool   // a stream has all blocks uncompressed
	packed             bool   // a stream has blocks as the source stores them, and is not raw
	frees              bool   // data of the target is destroyed first
	moved              bool   // increments of a pool in which zfs rewrite -P was used
	ashift             uint64 // of the source's pool, 0 = unknown or mixed
	targetAshift       uint64
	blockSize          uint64 // largest size of the source's blocks in bytes, 0 = unknown
	draid              bool   // of the target
}

// smallBlock is the block size in bytes up to which dRAID may use much more space than the property
// available assumes, which is the space of blocks of 128 KiB.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/vdev.c (vdev_set_deflate_ratio)
const smallBlock = 16 << 10

// factors, less and more return the reasons for a stored size that differs from the size of the
// streams. Data that a pool stores once, by clones or deduplication, is not among them, because
// estimates count it as often as streams contain it. Unknown compression counts as on.
func (s *storage) factors() (out []string) {
	if s.copies > 1 {
		out = append(out, fmt.Sprintf("copies=%d on the target", s.copies))
	}
	return out
}

func (s *storage) less() (out []string) {
	if s.unpacked && s.compression != "off" {
		out = append(out, "the target compresses the uncompressed stream")
	}
	if s.packed && s.uncompressed && s.compression != "off" {
		out = append(out, "the target compresses blocks that the source stores uncompressed")
	}
	if isOn(s.dedup) {
		out = append(out, "the target deduplicates")
	}
	if s.frees {
		out = append(out, "the transfer first destroys data of the target")
	}
	if s.moved {
		out = append(out, "estimates count blocks that zfs rewrite -P moved, streams omit them")
	}
	return out
}

func (s *storage) more() (out []string) {
	if s.ashift > 0 && s.targetAshift > s.ashift {
		out = append(out, fmt.Sprintf("the target has larger sectors (ashift %d, the source %d)", s.targetAshift, s.ashift))
	}
	if s.draid && s.blockSize > 0 && s.blockSize <= smallBlock {
		out = append(out, "dRAID may pad blocks of "+size.Text(s.blockSize))
	}
	return out
}

// growthOf returns the expected growth by a dataset.
func growthOf(in *Input, targets map[string]*zfs.Dataset, d *plan.Dataset) (g datasetGrowth) {
	if len(d.Steps) == 0 {
		return g
	}
	s := storageOf(in, targets, d)
	for _, st := range d.Steps {
		if st.Bytes == 0 {
			g.unknown++
		}
		for range s.copies {
			g.bytes = addSizes(g.bytes, st.Bytes)
		}
	}
	g.factors, g.less, g.more = s.factors(), s.less(), s.more()
	return g
}

func storageOf(in *Input, targets map[string]*zfs.Dataset, d *plan.Dataset) storage {
	arriving := func(property string) string {
		return onArrival(targets, d.Target, property, d.Steps[0].Receive.Set[property])
	}
	s := storage{compression: arriving("compression"), dedup: arriving("dedup"), copies: 1,
		frees: len(d.Loses) > 0 || d.Discard != "", draid: in.TargetListing.Pool.Features["draid"] == "active"}
	if n, ok := number(arriving("copies")); ok && n > 1 && n <= 3 {
		s.copies = n
	}
	if source := in.SourceListing.Find(d.Source); source != nil {
		s.uncompressed = source.Get("compression") == "off"
		s.blockSize, _ = number(cmp.Or(source.Get("volblocksize"), source.Get("recordsize")))
	}
	s.ashift, _ = number(in.SourceListing.Pool.Properties["ashift"])
	s.targetAshift, _ = number(in.TargetListing.Pool.Properties["ashift"])
	for _, st := range d.Steps {
		s.unpacked = s.unpacked || !st.Send.Flags.Raw && !st.Send.Flags.Compressed
		s.packed = s.packed || !st.Send.Flags.Raw && st.Send.Flags.Compressed
		s.moved = s.moved || isIncrement(st) && in.SourceListing.Pool.Features[physicalRewrite] == "active"
	}
	return s
}

// hasRefquota reports whether a dataset has a limit that does not apply to its descendants.
func hasRefquota(d *zfs.Dataset) bool {
	q := d.Get("refquota")
	return q != "" && q != "0"
}

// isOn reports whether a property such as compression is known and not off.
func isOn(value string) bool { return value != "" && value != "off" }

// addSizes adds estimates, which another host made, without overflow.
func addSizes(a, b uint64) uint64 {
	if b > math.MaxUint64-a {
		return math.MaxUint64
	}
	return a + b
}
