package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// Stored describes how a file of a snapshot is stored on one side.
type Stored struct {
	Size     uint64 // of the file, in bytes
	Block    uint64 // block size, in bytes
	OneBlock bool   // it may have only one block
}

// LosesBlocks reports whether plain increments may lose the data of a file that both sides have, or fail
// permanently. ZFS sends the block size of a file also if only a neighbour changed. If it differs, the
// receiver frees a file of one block. If the file has several, the receiver keeps its blocks, and
// refuses a smaller size; OpenZFS 2.1 then frees data, too. Streams in one direction leave the receiver
// with the same size, or with smaller blocks in a file of several, which later streams do not free.
// An empty file is no exception: ZFS counts several blocks if it was truncated in the transaction group that wrote
// them, and refuses the stream (2.3.9: "invalid backup stream").
//
// https://github.com/openzfs/zfs/pull/18663
func LosesBlocks(source, target Stored) bool {
	switch {
	case target.Block > source.Block:
		return true
	case target.Block < source.Block:
		return target.OneBlock && target.Size > 0
	}
	return false
}

// BlockPair is a common snapshot of a pair that starts a new direction: before the first plain increment,
// the block sizes of its files are compared.
type BlockPair struct {
	Source string // the snapshot on the source, "" if only its bookmark is left there
	Target string
	// Next is the first snapshot that is sent, or the dataset if it is not taken yet. A file that no
	// longer exists there cannot lose data. "" = unknown.
	Next string
	// Required reports that the direction changed. Otherwise it is unknown, and the increment is sent even
	// if the comparison is impossible.
	Required bool
	// Exposed reports that the roles changed, and nothing records that block sizes were compared, as in earlier
	// versions: data may be lost already.
	Exposed bool

	since uint64 // createtxg of Target
}

// Key identifies the comparison. Clones of one origin share the target, and have other files.
func (p *BlockPair) Key() string { return p.Target + "\n" + p.Next }

// BlockRisk is the result of a comparison.
type BlockRisk struct {
	Count   uint64   // files that would lose data; at least, if More
	More    bool     // not all files were compared
	Files   []string // some of them, with both block sizes
	Refused error    // why the comparison is impossible; nil = it was made
}

// PairOf returns the comparison that is needed before a plain increment from base, on the source d, is
// received into t, which has it as at. It returns nil if the direction is the one in which t was made.
func PairOf(d, t *zfs.Dataset, base, at zfs.Version, role zfs.Role) *BlockPair {
	p := &BlockPair{Target: at.In(t.Name), Required: true, since: at.CreateTXG}
	if base.Kind == zfs.Snapshot {
		p.Source = base.In(d.Name)
	}
	record, back := t.Direction(), d.Direction()
	sourceReceived, targetReceived := d.Properties[zfs.FlagsProperty].Local(), t.Properties[zfs.FlagsProperty].Local()
	switch {
	case back.From == t.GUID && back.From != 0: // the source received from the target
	case record.From == d.GUID && record.From != 0:
		if at.CreateTXG >= record.Since {
			return nil
		}
	case t.Properties[zfs.DirectionProperty].Local() || back.From != 0:
	case role.Kind != "":
		p.Exposed = true
	case t.Properties[zfs.OriginProperty].Local(), targetReceived && !sourceReceived:
		return nil // a copy that an earlier version made
	case targetReceived == sourceReceived: // another program made the copy, or the source is a copy, too
		p.Required = false
	}
	return p
}

// directions determines the comparisons of block sizes before the first stream of a dataset.
type directions struct {
	*findings
	*arrivals
}

// planClone sets the comparison for the first stream of a clone: of its origin, of which both sides have
// the snapshot.
func (s directions) planClone(source, target string, guid uint64, out *Dataset) {
	from, name, _ := strings.Cut(source, "@")
	to, _, _ := strings.Cut(target, "@")
	if planned := s.byTarget[to]; planned != nil && planned.arriving()[name] {
		return // it arrives in this direction
	}
	d, t := s.source[from], s.target[to]
	switch {
	case d != nil && t != nil:
		at, listed := t.SnapshotOf(guid)
		if !listed {
			_, name, _ = strings.Cut(target, "@")
			at = zfs.Version{Kind: zfs.Snapshot, Name: name}
		}
		s.plan(d, t, out, zfs.Version{Kind: zfs.Snapshot, Name: strings.TrimPrefix(source, from+"@")}, at)
	case s.comparable(out):
		out.blocks = &BlockPair{Source: source, Target: target, Next: s.next(out)}
	}
}

// comparable reports whether the first stream is plain and has files.
func (s directions) comparable(out *Dataset) bool {
	return len(out.Steps) > 0 && !out.Steps[0].Send.Flags.Raw && out.Type == zfs.Filesystem
}

// plan sets the comparison of base on the source d with at on its copy t.
func (s directions) plan(d, t *zfs.Dataset, out *Dataset, base, at zfs.Version) {
	if !s.comparable(out) {
		return
	}
	_, role, err := zfs.RoleOf(t.Name, func(name string) map[string]zfs.Property {
		if a := s.target[name]; a != nil {
			return a.Properties
		}
		return nil
	})
	if err != nil {
		role.Kind = zfs.RoleSource // unknown
	}
	if out.blocks = PairOf(d, t, base, at, role); out.blocks != nil {
		out.blocks.Next = s.next(out)
	}
}

// next returns the first snapshot that is sent, or the dataset if it is not taken yet.
func (s directions) next(out *Dataset) string {
	first := out.Steps[0].Send.To
	if through := out.Steps[0].Send.Through; len(through) > 0 {
		first = through[0]
	}
	if from := s.source[out.Source]; from != nil && slices.ContainsFunc(from.Versions, func(v zfs.Version) bool { return v.Simulated && v.Name == first }) {
		return out.Source
	}
	return out.Source + "@" + first
}

// BlockPair returns the comparison that must precede the first stream, or nil.
func (d *Dataset) BlockPair() *BlockPair { return d.blocks }

// Exposed returns the copies whose BlockPair is Exposed.
func (p *Plan) Exposed() (copies []string) {
	for _, d := range p.Datasets {
		if d.blocks != nil && d.blocks.Exposed {
			copies = append(copies, d.Target)
		}
	}
	return copies
}

// BlockPairs returns the datasets that need a comparison and have no conflict.
func (p *Plan) BlockPairs() (out []*Dataset) {
	for _, d := range p.Datasets {
		refused := slices.ContainsFunc(p.Conflicts, func(c finding.Finding) bool { return c.Source == d.Source })
		if d.blocks != nil && !refused {
			out = append(out, d)
		}
	}
	return out
}

// CheckBlockSizes applies the results of the comparisons by BlockPair.Key: it refuses streams that lose
// data, and records the direction with the first stream of the others.
func CheckBlockSizes(p *Plan, req Request, s State, results map[string]BlockRisk) {
	root, _ := TargetName(req.Source, req.Target)
	f := &findings{view: newView(req, s, root), plan: p}
	for _, d := range p.BlockPairs() {
		pair := d.blocks
		risk, compared := results[pair.Key()]
		switch {
		case !compared:
			f.refuseDirection(d, "the block sizes of its files were not compared", "")
		case risk.Refused != nil && pair.Required:
			f.refuseDirection(d, "the block sizes of its files cannot be compared: "+risk.Refused.Error(), fault.HintOf(risk.Refused))
		case risk.Count > 0:
			f.refuseDirection(d, risk.Describe(), "replace each on "+cmp.Or(s.SourceHost, "the source")+" by a copy of itself (cp -a, then mv), and destroy the snapshots after "+pair.baseName())
		case risk.Refused != nil: // not recorded, which may need a permission that this copy never needed
			receive := &d.Steps[0].Receive
			receive.Set = maps.Clone(receive.Set)
			delete(receive.Set, zfs.DirectionProperty)
			f.note("%s: zxfer does not know whether it ever was the source of %s, and cannot compare the block sizes of their files: %v", f.onTarget(d.Target), d.Source, risk.Refused)
		default:
			f.recordDirection(d, pair.since)
		}
	}
}

// Describe returns the files of a risk for a message.
func (r *BlockRisk) Describe() string {
	atLeast := ""
	if r.More {
		atLeast = "at least "
	}
	more := ""
	if n := int(r.Count) - min(len(r.Files), maxEvidence); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("plain increments would lose data of %s%s, because the block sizes differ: %s%s",
		atLeast, english.Plural(int(r.Count), "file", ""), strings.Join(r.Files[:min(len(r.Files), maxEvidence)], ", "), more)
}

func (p *BlockPair) baseName() string {
	_, name, _ := strings.Cut(p.Target, "@")
	return "@" + name
}

// refuseDirection adds a conflict for a stream in a new direction.
func (f *findings) refuseDirection(d *Dataset, why, hint string) {
	from, t := f.source[d.Source], f.target[d.Target]
	switch {
	case f.req.Restore:
		hint += "\nor restore to a new dataset"
	case t != nil && from != nil:
		hint = f.offerRotate(from, t, hint)
		if _, marked := f.plan.diverged[t.Name]; marked {
			f.plan.diverged[t.Name] = "its files have other block sizes than those of " + f.onSource(d.Source)
		}
	}
	f.conflict(BlockSizes, d.Source, d.Target, strings.TrimPrefix(hint, "\n"), "%s is not received into %s: %s", f.onSource(d.Source), f.onTarget(d.Target), why)
}

// recordDirection records with the first stream that the direction is safe since a transaction group.
func (f *findings) recordDirection(d *Dataset, since uint64) {
	from, t := f.source[d.Source], f.target[d.Target]
	if from == nil || from.GUID == 0 || t == nil { // a new dataset has a record
		return
	}
	receive := &d.Steps[0].Receive
	receive.Set = maps.Clone(receive.Set)
	if receive.Set == nil {
		receive.Set = map[string]string{}
	}
	receive.Set[zfs.DirectionProperty] = zfs.Direction{From: from.GUID, Since: since}.String()
	d.EndsDirection = from.Direction().From == t.GUID
}
