package plan

import (
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// origin returns a clone's origin on the source and its counterpart on the
// target, where that is or will be.
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
			out.chain = &chain{source: source, target: target, guid: guid, raw: true}
		}
	}
	return source, target, true
}

// counterpart finds the origin's snapshot on the target by GUID: preferably
// where this job would have put it.
func (p *planner) counterpart(source, target, origin string, guid uint64) string {
	there := p.targetSnap[guid]
	if want, ok := relocate(source, target, origin); ok && slices.Contains(there, want) {
		return want
	}
	if sent, ok := p.sent[guid]; ok {
		return sent.target
	}
	if len(there) == 0 {
		return ""
	}
	return slices.Min(there)
}

// relocate returns where name goes if source goes to target: both end in the
// same components, and what is before them is exchanged.
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

// NeedOrigins returns the origins of clones that lie outside of the listings:
// their full names on the source, and where a job like this one would have
// put them on the target. The two lists need not be of one length.
func NeedOrigins(req Request, state State) (source, target []string) {
	root, err := TargetName(req.Source, req.Target)
	if err != nil {
		return nil, nil
	}
	listed := make(map[string]bool, len(state.Source.Datasets))
	for _, d := range state.Source.Datasets {
		listed[d.Name] = true
	}
	for _, d := range state.Source.Datasets {
		origin := originDataset(d)
		if origin == "" || listed[origin] {
			continue
		}
		name := d.Get("origin")
		source = append(source, name)
		if there, ok := relocate(d.Name, targetOf(d.Name, req.Source, root), name); ok {
			target = append(target, there)
		}
	}
	slices.Sort(source)
	slices.Sort(target)
	return slices.Compact(source), slices.Compact(target)
}
