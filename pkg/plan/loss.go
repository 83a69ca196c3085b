package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// NeedLosses returns the target's snapshots, by full name, that a plan lets it
// lose. CheckLosses judges them by their holds and clones.
func NeedLosses(p Plan) []string {
	var names []string
	for _, d := range p.Datasets {
		for _, v := range d.newer {
			names = append(names, v.In(d.Target))
		}
	}
	return names
}

// MayLose tells whether a snapshot of the target is among those that Loses names.
func (d *Dataset) MayLose(v zfs.Version) bool {
	return slices.ContainsFunc(d.newer, func(n zfs.Version) bool { return n.GUID == v.GUID })
}

// CheckLosses adds a conflict for every dataset with a snapshot to lose that somebody else holds
// or that has clones. ZFS destroys the snapshots when the whole stream has arrived, and refuses
// only then. The holds of zxfer's jobs do not stand in the way: they move to the snapshot that the
// dataset goes back to, which is what the job's next run starts from.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (dmu_recv_end_check)
func CheckLosses(p *Plan, s State) {
	for _, d := range p.Datasets {
		var why, remedies []string
		moves := map[string][]string{}
		for _, v := range d.newer {
			name := v.In(d.Target)
			for _, tag := range s.TargetHolds[name] {
				if zfs.OwnTag(tag) {
					moves[tag] = append(moves[tag], name)
					continue
				}
				why = append(why, fmt.Sprintf("@%s is held (%s)", v.Name, tag))
				remedies = append(remedies, command("zfs", "release", tag, name))
			}
			for _, clone := range s.TargetClones[name] {
				why = append(why, fmt.Sprintf("@%s has the clone %s", v.Name, clone))
				remedies = append(remedies, "name another target, or do without the clone: "+command("zfs", "destroy", clone))
			}
		}
		d.Moves = nil
		for _, tag := range slices.Sorted(maps.Keys(moves)) {
			d.Moves = append(d.Moves, MovedHold{Tag: tag, To: d.kept.In(d.Target), From: moves[tag]})
		}
		if len(why) == 0 {
			continue
		}
		slices.Sort(remedies)
		remedies = slices.Compact(remedies)
		p.Refuse(finding.Finding{
			ID: Kept, Source: d.Source, Target: d.Target,
			Summary: fmt.Sprintf("%s cannot lose what is newer than the common snapshot: %s", on(s.TargetHost, d.Target), finding.Some(why, evidence)),
			Remedy:  strings.Join(remedies[:min(evidence, len(remedies))], "\n"),
		})
	}
}
