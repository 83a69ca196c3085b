package plan

import "fmt"

// NeedIVSets returns the bases of raw increments, by full name on each side,
// whose IV set GUIDs (property ivsetguid) CheckIVSets compares.
func NeedIVSets(p Plan) (source, target []string) {
	for _, d := range p.Datasets {
		if len(d.Steps) == 0 || d.Steps[0].Kind != Incremental || !d.Steps[0].Send.Flags.Raw {
			continue
		}
		source = append(source, d.Source+d.Steps[0].Send.From)
		target = append(target, d.targetBase)
	}
	return source, target
}

// CheckIVSets adds a conflict for every raw increment whose base has another
// IV set on the target: the kernel refuses it, although the GUIDs are equal.
// https://github.com/openzfs/zfs/issues/8758
func CheckIVSets(p *Plan, s State) {
	for _, d := range p.Datasets {
		if len(d.Steps) == 0 || d.Steps[0].Kind != Incremental || !d.Steps[0].Send.Flags.Raw {
			continue
		}
		guid := d.Steps[0].BaseGUID
		a, b := s.SourceIVSets[guid], s.TargetIVSets[guid]
		if a == "" || b == "" || a == b {
			continue
		}
		p.Conflicts = append(p.Conflicts, &Conflict{
			ID: IVSetMismatch, Source: d.Source, Target: d.Target,
			Message: fmt.Sprintf("the raw chain is broken: %s was not received raw on %s as %s (IV sets %s and %s)",
				d.Source+d.Steps[0].Send.From, s.TargetHost, d.targetBase, a, b),
			Hint: fmt.Sprintf("roll %s back to its last snapshot that was received raw: zfs rollback -r %s@NAME, then send again\nor send in full to another name", d.Target, d.Target),
		})
	}
}
