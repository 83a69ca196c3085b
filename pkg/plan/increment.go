package plan

import (
	"fmt"
	"strings"

	"zxfer/pkg/zfs"
)

// common returns the newest version of the source, a snapshot rather than a
// bookmark, that is a snapshot on the target too. GUIDs decide, never names.
func common(d, t *zfs.Dataset) (base zfs.Version, onTarget zfs.Version, ok bool) {
	have := make(map[uint64]zfs.Version, len(t.Versions))
	for _, v := range t.Snapshots() {
		have[v.GUID] = v
	}
	for _, v := range d.Versions {
		tv, there := have[v.GUID]
		if !there {
			continue
		}
		if !ok || v.CreateTXG > base.CreateTXG || v.CreateTXG == base.CreateTXG && v.Kind == zfs.Snapshot {
			base, onTarget, ok = v, tv, true
		}
	}
	return base, onTarget, ok
}

// increment plans what the target lacks of a dataset that it has.
func (p *planner) increment(d, t *zfs.Dataset, out *Dataset, to zfs.Version) {
	if v, ok := snapshotWithGUID(t, to.GUID); ok {
		if latest, _ := t.Latest(); latest.GUID != v.GUID {
			p.note("%s already has @%s, and newer snapshots: nothing to send", out.Target, v.Name)
		}
		return
	}
	base, tbase, ok := common(d, t)
	if !ok {
		p.noCommon(d, t, out)
		return
	}
	if base.CreateTXG > to.CreateTXG {
		p.conflict(Diverged, d.Name, out.Target,
			fmt.Sprintf("%s is already at @%s, which is newer than %s", on(p.state.TargetHost, out.Target), tbase.Name, to.In(d.Name)),
			"send a newer snapshot")
		return
	}
	if !p.baseIsLatest(d, t, out, tbase) {
		return
	}
	flags, ok := p.flags(d, t, out)
	if !ok {
		return
	}
	p.follow(d, out, base, p.req.runs(d, base.CreateTXG, to, base.Kind == zfs.Bookmark), flags)
	out.targetBase = tbase.In(t.Name)
	first := &out.Steps[0]
	first.Why = fmt.Sprintf("%s is the newest version on both sides", base.Short())
	if base.Kind == zfs.Bookmark {
		first.Why = fmt.Sprintf("bookmark %s remembers @%s, the target's newest common snapshot", base.Short(), tbase.Name)
	}
	first.Receive.Rollback = len(out.Loses) > 0
}

func snapshotWithGUID(d *zfs.Dataset, guid uint64) (zfs.Version, bool) {
	for _, v := range d.Snapshots() {
		if v.GUID == guid {
			return v, true
		}
	}
	return zfs.Version{}, false
}

// baseIsLatest tells whether the target can take an increment from its base:
// nothing may have come after it, or Rollback allows to lose that.
func (p *planner) baseIsLatest(d, t *zfs.Dataset, out *Dataset, tbase zfs.Version) bool {
	var newer []string
	for _, v := range t.Snapshots() {
		if v.CreateTXG > tbase.CreateTXG {
			newer = append(newer, v.Short())
		}
	}
	written := t.Get("written")
	changed := written != "" && written != "0"
	if len(newer) == 0 && !changed {
		return true
	}
	if p.req.Rollback {
		return p.lose(t, out, tbase.CreateTXG)
	}
	host, name := p.state.TargetHost, t.Name
	if len(newer) > 0 {
		p.conflict(Diverged, d.Name, name,
			fmt.Sprintf("both sides went on since the common snapshot @%s: %s has %s, %s has %s", tbase.Name,
				on(p.state.SourceHost, d.Name), quoted(newest(d)), on(host, name), quoted(newer)),
			fmt.Sprintf("send to another name, or let the target lose %s: --rollback", strings.Join(newer, ", ")))
		return false
	}
	p.conflict(Modified, d.Name, name,
		fmt.Sprintf("%s has been modified since its newest snapshot @%s: %s bytes were written", on(host, name), tbase.Name, written),
		fmt.Sprintf("lose the changes: zfs rollback %s@%s (or --rollback)\nkeep it from happening: zfs set readonly=on %s", name, tbase.Name, name))
	return false
}

// noCommon says why a target with a history of its own cannot be sent to.
func (p *planner) noCommon(d, t *zfs.Dataset, out *Dataset) {
	source, target := on(p.state.SourceHost, d.Name), on(p.state.TargetHost, t.Name)
	hint := fmt.Sprintf("send to another name, or move the target away: zfs rename %s %s-old", t.Name, t.Name)
	if len(t.Snapshots()) == 0 {
		p.conflict(NoCommon, d.Name, t.Name, fmt.Sprintf("%s exists and has no snapshot: it is not a copy of %s", target, source), hint)
		return
	}
	byName := map[string]uint64{}
	for _, v := range t.Snapshots() {
		byName[v.Name] = v.GUID
	}
	for i := len(d.Versions) - 1; i >= 0; i-- {
		v := d.Versions[i]
		if guid, ok := byName[v.Name]; ok {
			p.conflict(NoCommon, d.Name, t.Name,
				fmt.Sprintf("%s and %s both have @%s, but these are different snapshots (GUIDs %d and %d); they have no common one: the source has %s, the target %s",
					source, target, v.Name, v.GUID, guid, quoted(newest(d)), quoted(newest(t))), hint)
			return
		}
	}
	p.conflict(NoCommon, d.Name, t.Name,
		fmt.Sprintf("%s and %s have no common snapshot: the source has %s, the target %s", source, target, quoted(newest(d)), quoted(newest(t))), hint)
}
