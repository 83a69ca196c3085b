package plan

import (
	"fmt"

	"zxfer/pkg/finding"
)

// chain is the base of a step whose IV sets tell whether the step is possible.
// Every raw receive takes over the IV set of what was sent; every other write
// to an encrypted dataset begins a new one. GUIDs are equal all the same.
type chain struct {
	source string // full name of the base
	target string
	guid   uint64
	raw    bool
}

// NeedIVSets returns the bases, by full name on each side, whose IV set GUIDs
// (property ivsetguid) CheckIVSets compares.
func NeedIVSets(p Plan) (source, target []string) {
	for _, d := range p.Datasets {
		if d.chain != nil {
			source = append(source, d.chain.source)
			target = append(target, d.chain.target)
		}
	}
	return source, target
}

// CheckIVSets adds a conflict for every raw increment whose base has another
// IV set on the target, which the kernel refuses, and for every decrypted one
// that would end a raw chain. IV sets that are unknown are not judged.
//
// https://github.com/openzfs/zfs/issues/8758
func CheckIVSets(p *Plan, s State) {
	for _, d := range p.Datasets {
		c := d.chain
		if c == nil {
			continue
		}
		a, b := s.SourceIVSets[c.guid], s.TargetIVSets[c.guid]
		if a == "" || b == "" || (a == b) == c.raw {
			continue
		}
		conflict := finding.Finding{ID: IVSetMismatch, Source: d.Source, Target: d.Target}
		if c.raw {
			conflict.Summary = fmt.Sprintf("the raw chain is broken: %s and %s have one GUID but different IV sets (%s and %s), so no raw increment can go on from there",
				on(s.SourceHost, c.source), on(s.TargetHost, c.target), a, b)
			conflict.Remedy = "roll the target back to the last snapshot that was received raw: " + command("zfs", "rollback", "-r", d.Target+"@NAME") +
				"\nor send it in full to a new name"
		} else {
			conflict.Summary = fmt.Sprintf("%s was received raw: a decrypted increment of %s would end its chain for ever",
				on(s.TargetHost, c.target), on(s.SourceHost, d.Source))
			conflict.Remedy = "leave {{decrypt}} out, or send it in full to a new name"
		}
		p.Refuse(conflict)
	}
}
