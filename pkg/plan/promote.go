package plan

import (
	"math"

	"zxfer/pkg/zfs"
)

// zfs promote on the source gives a clone the history that it shares with its origin,
// and makes that one the clone. Where both have a newer snapshot on both sides they go
// on from these. Else the copy's history is now another dataset's, and what is left
// of the demoted one is a clone, which ZFS receives as a new dataset only.

// demoted returns, of a dataset that was demoted since it was sent, the last snapshot of
// the copy's history that went to the promoted one.
func (p *planner) demoted(d, t *zfs.Dataset) (zfs.Version, bool) {
	guid, known := p.sourceSnap[d.Get("origin")]
	if !known {
		return zfs.Version{}, false
	}
	at, ok := t.SnapshotOf(guid)
	if _, _, goesOn := common(d, t, zfs.Version{CreateTXG: math.MaxUint64}); goesOn {
		return at, false
	}
	return at, ok
}

// refuseDemoted names the one command after which both go on.
func (p *planner) refuseDemoted(d, t *zfs.Dataset, at zfs.Version) {
	promoted := originDataset(d)
	hint := "there: " + command("zfs", "rename", t.Name, t.Name+"-old") + "\nit then arrives anew, as a clone: only what is not in @" + at.Name + " is sent"
	if there, ok := relocate(d.Name, t.Name, promoted); ok && p.target[there] == nil {
		hint = "there: " + command("zfs", "rename", t.Name, there) + "\nthat one then goes on, and " + d.Name + " arrives anew, as a clone of it: only what is not in @" + at.Name + " is sent"
	}
	p.conflict(NoCommon, d.Name, t.Name, hint,
		"%s was promoted over %s: the history of %s up to @%s is that of the former now, and they have nothing newer in common",
		p.onSource(promoted), d.Name, p.onTarget(t.Name), at.Name)
}

// checkPromoted refuses to send a promoted dataset in full, where its history is there
// under the name of the demoted one.
func (p *planner) checkPromoted(d *zfs.Dataset, out *Dataset) bool {
	for _, o := range p.clones[d.Name] {
		t := p.target[targetOf(o.Name, p.req.Source, p.targetRoot)]
		if t == nil {
			continue
		}
		if at, ok := p.demoted(o, t); ok {
			p.conflict(NoCommon, d.Name, out.Target, "there: "+command("zfs", "rename", t.Name, out.Target),
				"%s was promoted over %s: its history up to @%s is there as %s, and would be sent in full again", p.onSource(d.Name), o.Name, at.Name, p.onTarget(t.Name))
			return false
		}
	}
	return true
}
