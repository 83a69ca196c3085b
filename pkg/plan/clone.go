package plan

import (
	"math"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// origin returns a clone's origin on the source and its counterpart that the target has or will
// have.
func (p *planner) origin(d *zfs.Dataset, out *Dataset) (source, target string, ok bool) {
	source = d.Get("origin")
	if source == "" {
		return "", "", false
	}
	guid, known := p.sourceSnap[source]
	if known {
		target = p.counterpart(d.Name, out.Target, source, guid)
	}
	if target == "" {
		p.note("%s is a clone of %s, which the target does not have: it is sent in full and shares no blocks there", d.Name, source)
		return "", "", false
	}
	dataset, _, _ := strings.Cut(target, "@")
	if t := p.target[dataset]; t != nil {
		if out.Encrypted != t.Encrypted() {
			p.note("%s is sent in full, not as a clone: %s differs from its origin in encryption", d.Name, p.onTarget(target))
			return "", "", false
		}
		if out.Encrypted && p.sent[guid].target != target {
			out.ivBase = &ivBase{source: source, target: target, guid: guid, raw: true}
		}
	}
	return source, target, true
}

// counterpart returns the target snapshot with the origin's GUID, or "". It prefers the name
// that this job would have used.
func (p *planner) counterpart(source, target, origin string, guid uint64) string {
	counterpart := p.targetSnap[guid]
	if want, ok := relocate(source, target, origin); ok && slices.Contains(counterpart, want) {
		return want
	}
	if sent, ok := p.sent[guid]; ok {
		return sent.target
	}
	if len(counterpart) == 0 {
		return ""
	}
	return slices.Min(counterpart)
}

// relocate applies the renaming from source to target to name. It strips their common last
// components and exchanges the remaining prefix.
func relocate(source, target, name string) (string, bool) {
	for {
		i, j := strings.LastIndexByte(source, '/'), strings.LastIndexByte(target, '/')
		if i < 0 || j < 0 || source[i:] != target[j:] {
			break
		}
		source, target = source[:i], target[:j]
	}
	rest, ok := strings.CutPrefix(name, source)
	if !ok || rest != "" && rest[0] != '/' && rest[0] != '@' {
		return "", false
	}
	return target + rest, true
}

// checkPromoted refuses a full send of a promoted dataset whose history the target has under
// the name of the demoted one.
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

// On the source, zfs promote moves the shared history from the origin to the clone, and the
// former origin becomes the clone. If both have a newer common snapshot, they continue from it.
// Otherwise the copy holds the history of another dataset, and the demoted dataset must arrive
// as a new clone.

// demoted reports whether a dataset was demoted since it was sent. It returns the last snapshot
// of the copy that now belongs to the promoted dataset.
func (p *planner) demoted(d, t *zfs.Dataset) (zfs.Version, bool) {
	guid, known := p.sourceSnap[d.Get("origin")]
	if !known {
		return zfs.Version{}, false
	}
	at, ok := t.SnapshotOf(guid)
	if _, _, continues := common(d, t, zfs.Version{CreateTXG: math.MaxUint64}); continues {
		return at, false
	}
	return at, ok
}

// refuseDemoted adds a conflict whose hint is the command that lets both continue.
func (p *planner) refuseDemoted(d, t *zfs.Dataset, at zfs.Version) {
	promoted := originDataset(d)
	hint := "there: " + command("zfs", "rename", t.Name, t.Name+"-old") + "\nit then arrives anew, as a clone: only what is not in @" + at.Name + " is sent"
	if counterpart, ok := relocate(d.Name, t.Name, promoted); ok && p.target[counterpart] == nil {
		hint = "there: " + command("zfs", "rename", t.Name, counterpart) + "\nthat one then goes on, and " + d.Name + " arrives anew, as a clone of it: only what is not in @" + at.Name + " is sent"
	}
	p.conflict(NoCommon, d.Name, t.Name, hint,
		"%s was promoted over %s: the history of %s up to @%s is that of the former now, and they have nothing newer in common",
		p.onSource(promoted), d.Name, p.onTarget(t.Name), at.Name)
}
