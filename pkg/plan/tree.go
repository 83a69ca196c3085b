package plan

import (
	"cmp"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// A raw stream brings a dataset as an encryption root of its own. Where the source has
// one root for a tree its copy becomes one, too: what has arrived takes its key from
// above where salts prove that it is one key, or, of keys that have none, the source says
// so. Nothing is encrypted anew by that, and it can be undone.
//
// Each dataset keeps its own wrapped key, also where it takes it from above, and an
// increment brings the source's. So that a copy can be opened at every moment, those
// that take their key from a root whose key changes become roots before, and join it
// again when they have arrived. Seen with 2.3.9: between both, nothing opened them.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c (spa_keystore_change_key_sync_impl)

// joins plans that a dataset takes its key from above once it has arrived.
func (p *planner) joins(d *zfs.Dataset, out *Dataset) {
	if p.req.Restore || encryptionRoot(d) == d.Name {
		return // a restore does it for itself
	}
	t := p.target[out.Target]
	if t == nil || t.Inconsistent() || encryptionRoot(t) == t.Name && t.Prompts() || p.parted[t.Name] {
		out.Joins = p.keyAbove(d, out)
		if out.Joins == "" {
			out.takes = p.keyAboveIsKnown(d, out)
		}
		if t == nil || encryptionRoot(t) != out.takes { // else only if it parts meanwhile
			out.Joins = cmp.Or(out.Joins, out.takes)
		}
	}
}

// keyAboveIsKnown plans to believe the source about a key of which ZFS shows nothing, as zfs
// receive does with a package of a tree: root and dataset must both arrive, so that both
// bring what the source has now.
func (p *planner) keyAboveIsKnown(d *zfs.Dataset, out *Dataset) string {
	key, at := p.rootThere(zfs.ParentOf(out.Target))
	if key == nil || key != p.sourceRoot(d) || !out.Encrypted || originDataset(d) != "" || len(out.Steps) == 0 || !zfs.KeyIsUnknown(key, d) {
		return ""
	}
	if above := p.arriving[at]; above == nil || len(above.Steps) == 0 {
		return ""
	}
	return at
}

// keyAbove is the encryption root of the target that a dataset could take its key from.
func (p *planner) keyAbove(d *zfs.Dataset, out *Dataset) string {
	key, at := p.rootThere(zfs.ParentOf(out.Target))
	if key == nil || !out.Encrypted || originDataset(d) != "" || !zfs.KeyIsProved(p.sourceRoot(d), key) {
		return ""
	}
	return at
}

// rootThere is the encryption root that a dataset of the target will have, and the
// dataset of either side that tells of its key; nil where it will not be encrypted, or
// that is not known. The highest copy of a tree is its root, wherever that is on the source.
func (p *planner) rootThere(target string) (key *zfs.Dataset, at string) {
	out := p.arriving[target]
	if out == nil {
		if key = p.state.Target.RootOf(p.target[target]); key != nil {
			at = key.Name
		}
		return key, at
	}
	if !out.Encrypted {
		return nil, ""
	}
	key = p.sourceRoot(p.source[out.Source])
	if above, at := p.rootThere(zfs.ParentOf(target)); above != nil && (above == key || zfs.KeyIsProved(key, above)) {
		return above, at
	}
	return key, target
}

// splits reports whether the source of a copy became an encryption root, or takes its key from one
// that did, where the copy still takes its key from above: zfs change-key was given below the root
// of a tree.
func (p *planner) splits(d, t *zfs.Dataset) bool {
	return !p.req.Restore && splits(d, t, p.source, p.target)
}

// splits needs copies that zxfer made raw and joined below the copy of the source's former root, and
// whose key is that of this root, as far as ZFS tells: only such a copy can become a root of the key
// that it has.
func splits(d, t *zfs.Dataset, sources, targets map[string]*zfs.Dataset) bool {
	to := encryptionRoot(t)
	root := targets[to]
	flags, ours := recordedFlags(t)
	if root == nil || to == t.Name || !ours || !flags.Raw || t.Inconsistent() || originDataset(t) != "" {
		return false
	}
	above, ok := relocate(t.Name, d.Name, to)
	former := sources[above]
	return ok && former != nil && former.Encrypted() && strings.HasPrefix(encryptionRoot(d), above+"/") && (zfs.KeyIsProved(t, root) || zfs.KeyIsUnknown(t, root))
}

// split plans that a copy becomes an encryption root of the key that it has before its stream
// brings the new one, and before it all below it that takes its key from the same root. What gets
// a stream of its own takes its key from above again as on the source. A copy that cannot become a
// root gets no stream: nothing would open it afterwards.
func (p *planner) split(t *zfs.Dataset, out *Dataset) {
	root := encryptionRoot(t)
	for _, below := range p.state.Target.Datasets {
		if below.Name != t.Name && strings.HasPrefix(below.Name, t.Name+"/") && encryptionRoot(below) == root && originDataset(below) == "" {
			out.Parts = append(out.Parts, below.Name)
			p.parted[below.Name] = true
		}
	}
	slices.SortFunc(out.Parts, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	out.Parts, p.parted[t.Name] = append(out.Parts, t.Name), true
	out.stuck = out.Parts
	p.note("%s became an encryption root on the source, or takes its key from one that did: its copy becomes one, too", p.onSource(out.Source))
}

// part plans that a copy becomes an encryption root before the key of the one above
// changes. Its salt must be that of the root: else something else opens it, or nothing.
func (p *planner) part(t, root *zfs.Dataset, above *Dataset) bool {
	if p.req.Restore || !zfs.KeyIsProved(t, root) {
		return false
	}
	above.Parts, p.parted[t.Name] = append(above.Parts, t.Name), true
	if out := p.arriving[t.Name]; out == nil || len(out.Steps) == 0 {
		above.stuck = append(above.stuck, t.Name)
		p.note("%s takes its key from %s, which changes, and no stream brings it that key: it becomes an encryption root of the key that it has", p.onTarget(t.Name), root.Name)
	}
	return true
}

// inherits notes that a copy of ours takes its key from one whose key may have changed,
// which only its stream will show.
func (p *planner) inherits(t, root *zfs.Dataset, above *Dataset) {
	flags, ours := recordedFlags(t)
	if p.req.Restore || !ours || !flags.Raw || !zfs.KeyIsUnknown(t, root) {
		return
	}
	above.inherit, p.parted[t.Name] = append(above.inherit, t.Name), true
	if out := p.arriving[t.Name]; out == nil || len(out.Steps) == 0 {
		above.stuck = append(above.stuck, t.Name)
	}
}

// Inherit are the copies that take their key from it and would be locked if its streams
// brought another one, of which ZFS shows nothing before.
func (d *Dataset) Inherit() []string { return d.inherit }

// Takes is the root that it takes its key from on the source's word, "" for none.
func (d *Dataset) Takes() string { return d.takes }

// KeepsKey is the source's root, where no stream may bring another key than the copy
// has, which takes it from above; else "".
func (d *Dataset) KeepsKey() string { return d.keepsKey }

// StuckReason tells, of one of Parts, that nothing would open it any more if it stayed.
func (d *Dataset) StuckReason(name string) bool { return slices.Contains(d.stuck, name) }

// ToJoin are the datasets of a plan that take their key from above in the end, those
// above first.
func (p *Plan) ToJoin() (out []*Dataset) {
	for _, d := range p.Datasets {
		if d.Joins != "" || d.takes != "" {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b *Dataset) int { return len(a.Target) - len(b.Target) })
	return out
}

// NeedInheritors tells that the key of a copy that is an encryption root changes, so
// that all that takes its key from there has to be listed.
func NeedInheritors(req Request, s State) bool {
	root, err := TargetName(req.Source, req.Target)
	if err != nil {
		return false
	}
	targets, sources := s.Target.ByName(), s.Source.ByName()
	for _, d := range s.Source.Datasets {
		t := targets[targetOf(d.Name, req.Source, root)]
		if t != nil && d.Encrypted() && splits(d, t, sources, targets) {
			return true
		}
		if t == nil || !d.Encrypted() || encryptionRoot(t) != t.Name {
			continue
		}
		if r := sources[encryptionRoot(d)]; r != nil && !zfs.SameKey(r, t) {
			return true
		}
	}
	return false
}
