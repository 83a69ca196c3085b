package plan

import (
	"fmt"

	"zxfer/pkg/finding"
)

// ivBase is an incremental source whose IV sets decide whether the step is possible. A raw
// receive adopts the sender's IV set; every other write to an encrypted dataset starts a new
// one. The GUIDs do not change.
type ivBase struct {
	source string // full name
	target string
	guid   uint64
	raw    bool
}

// NeedIVSets returns the full names on each side whose property ivsetguid CheckIVSets compares.
func NeedIVSets(p Plan) (source, target []string) {
	for _, d := range p.Datasets {
		if d.ivBase != nil {
			source = append(source, d.ivBase.source)
			target = append(target, d.ivBase.target)
		}
	}
	return source, target
}

// CheckIVSets adds a conflict for each raw increment whose base has another IV set on the
// target, which the kernel refuses. It also refuses decrypted increments that would end a raw
// chain. Unknown IV sets are not checked.
//
// https://github.com/openzfs/zfs/issues/8758
func CheckIVSets(p *Plan, s State) {
	for _, d := range p.Datasets {
		c := d.ivBase
		if c == nil {
			continue
		}
		a, b := s.SourceIVSets[c.guid], s.TargetIVSets[c.guid]
		if a == "" || b == "" || (a == b) == c.raw {
			continue
		}
		conflict := finding.Finding{ID: IVSetMismatch, Source: d.Source, Target: d.Target}
		if c.raw {
			conflict.Summary = fmt.Sprintf("the raw chain is broken: %s and %s have the same GUID but different IV sets (%s and %s), so that no raw incremental stream fits",
				withHost(s.SourceHost, c.source), withHost(s.TargetHost, c.target), a, b)
			conflict.Remedy = "roll the target back to the last snapshot received raw: " + s.TargetAt.Command("zfs", "rollback", "-r", d.Target+"@NAME") +
				"\nor send in full to a new name"
		} else {
			conflict.Summary = fmt.Sprintf("%s was received raw: a decrypted incremental stream of %s would permanently prevent further raw streams",
				withHost(s.TargetHost, c.target), withHost(s.SourceHost, d.Source))
			conflict.Remedy = "omit {{decrypt}}, or send in full to a new name"
		}
		p.Refuse(conflict)
	}
}
