package plan

import (
	"cmp"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// A raw stream creates each dataset as its own encryption root. If the source tree has one
// root, its copy gets one too: arrived datasets inherit the key from above if the salts prove
// that the key is the same. For keys without salt, the source's assertion decides. This
// re-encrypts nothing and can be undone.
//
// Each dataset keeps its own wrapped key even if it inherits, and an increment brings the
// source's. Before the key of a root changes, its dependents become roots, and they join it
// again after they have arrived. Otherwise nothing could open them in between (seen with
// 2.3.9).
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c (spa_keystore_change_key_sync_impl)

// planJoins plans that datasets inherit their keys from above after they have arrived. Restores
// decide that for themselves.
func (k *keys) planJoins() {
	for _, out := range k.plan.Datasets {
		d, t := k.source[out.Source], k.target[out.Target]
		isRoot := t == nil || t.Inconsistent() || encryptionRoot(t) == t.Name && t.Prompts() || k.becomesRoot[t.Name]
		if k.req.Restore || encryptionRoot(d) == d.Name || !isRoot {
			continue
		}
		out.Joins = k.provedRootAbove(d, out)
		if out.Joins == "" {
			out.assertedRoot = k.assertedRootAbove(d, out)
		}
		if t == nil || encryptionRoot(t) != out.assertedRoot { // otherwise only if it becomes a root meanwhile
			out.Joins = cmp.Or(out.Joins, out.assertedRoot)
		}
	}
}

// assertedRootAbove returns the root above whose key the source asserts to be the same, or "".
// ZFS shows nothing of such a key. As in a zfs receive of a replication stream, root and
// dataset must both arrive, so that both bring the source's present key.
func (k *keys) assertedRootAbove(d *zfs.Dataset, out *Dataset) string {
	key, at := k.futureRoot(zfs.ParentOf(out.Target))
	if key == nil || key != k.sourceRoot(d) || key == d || !out.Encrypted || originDataset(d) != "" || !zfs.KeyIsUnknown(key, d) {
		return ""
	}
	above := k.byTarget[at]
	switch {
	case above == nil, k.req.Restore && !above.Restore.Due:
		return ""
	case !k.req.Restore && (len(above.Steps) == 0 || len(out.Steps) == 0):
		return ""
	}
	return at
}

// provedRootAbove returns the target's encryption root above with provably the same key, or "".
func (k *keys) provedRootAbove(d *zfs.Dataset, out *Dataset) string {
	key, at := k.futureRoot(zfs.ParentOf(out.Target))
	if key == nil || !out.Encrypted || originDataset(d) != "" || !zfs.KeyIsProved(k.sourceRoot(d), key) {
		return ""
	}
	return at
}

// futureRoot returns the encryption root that a target dataset will have, and the dataset on
// either side that describes its key. key is nil if the dataset will not be encrypted, or the
// root is unknown. The topmost copy of a tree is its root.
func (k *keys) futureRoot(target string) (key *zfs.Dataset, at string) {
	out := k.byTarget[target]
	if out == nil {
		if key = k.state.Target.RootOf(k.target[target]); key != nil {
			at = key.Name
		}
		return key, at
	}
	if !out.Encrypted {
		return nil, ""
	}
	key = k.sourceRoot(k.source[out.Source])
	if above, at := k.futureRoot(zfs.ParentOf(target)); above != nil && (above == key || zfs.KeyIsProved(key, above)) {
		return above, at
	}
	return key, target
}

// isSplit reports whether the source of a copy, or its encryption root, became a root (zfs
// change-key inside a tree) while the copy still inherits its key from above.
func (k *keys) isSplit(d, t *zfs.Dataset) bool {
	return !k.req.Restore && sourceSplit(d, t, k.source, k.target)
}

// sourceSplit implements isSplit. The copy must have been received raw by zxfer, and its key
// must be the key of the source's former root as far as ZFS shows. Only such a copy can become
// a root of its present key.
func sourceSplit(d, t *zfs.Dataset, sources, targets map[string]*zfs.Dataset) bool {
	to := encryptionRoot(t)
	root := targets[to]
	flags, own := recordedFlags(t)
	if root == nil || to == t.Name || !own || !flags.Raw || t.Inconsistent() || originDataset(t) != "" {
		return false
	}
	above, ok := relocate(t.Name, d.Name, to)
	former := sources[above]
	return ok && former != nil && former.Encrypted() && strings.HasPrefix(encryptionRoot(d), above+"/") && (zfs.KeyIsProved(t, root) || zfs.KeyIsUnknown(t, root))
}

// planSplit plans that a copy becomes an encryption root with its present key before its stream
// brings the new one. Descendants with the same root come first. Those that get a stream
// inherit again as on the source. A copy that cannot become a root gets no stream, because
// nothing could open it afterwards.
func (k *keys) planSplit(t *zfs.Dataset, out *Dataset) {
	root := encryptionRoot(t)
	for _, below := range k.state.Target.Datasets {
		if below.Name != t.Name && strings.HasPrefix(below.Name, t.Name+"/") && encryptionRoot(below) == root && originDataset(below) == "" {
			out.NewRoots = append(out.NewRoots, below.Name)
			k.becomesRoot[below.Name] = true
		}
	}
	slices.SortFunc(out.NewRoots, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	out.NewRoots, k.becomesRoot[t.Name] = append(out.NewRoots, t.Name), true
	out.mustBecomeRoot = out.NewRoots
	k.note("%s became an encryption root on the source, or inherits its key from one: zxfer makes its copy an encryption root too", k.onSource(out.Source))
}

// becomeRootBefore plans that a copy becomes an encryption root before its root's key changes.
// It reports false if the salts do not prove that both have one key.
func (k *keys) becomeRootBefore(t, root *zfs.Dataset, above *Dataset) bool {
	if k.req.Restore || !zfs.KeyIsProved(t, root) {
		return false
	}
	above.NewRoots, k.becomesRoot[t.Name] = append(above.NewRoots, t.Name), true
	if k.streamTo(t.Name) == nil {
		above.mustBecomeRoot = append(above.mustBecomeRoot, t.Name)
		k.note("%s inherits its key from %s, whose key changes, and no stream brings it that key: zxfer makes it an encryption root with its present key", k.onTarget(t.Name), root.Name)
	}
	return true
}

// addKeyDependent records a copy made by zxfer whose root may get another key. Only the root's
// stream shows whether it does.
func (k *keys) addKeyDependent(t, root *zfs.Dataset, above *Dataset) {
	flags, own := recordedFlags(t)
	if k.req.Restore || !own || !flags.Raw || !zfs.KeyIsUnknown(t, root) {
		return
	}
	above.keyDependents, k.becomesRoot[t.Name] = append(above.keyDependents, t.Name), true
	if k.streamTo(t.Name) == nil {
		above.mustBecomeRoot = append(above.mustBecomeRoot, t.Name)
	}
}

// parentEncryption describes the encryption above a new dataset.
type parentEncryption struct {
	// inherits is the existing ancestor whose encryption a plain receive inherits; nil if there
	// is none.
	inherits *zfs.Dataset
	// belowRawCopy reports whether the plan brings an encrypted ancestor.
	belowRawCopy bool
}

// encryptionAbove returns the encryption of the ancestors of a new target dataset.
func (k *keys) encryptionAbove(target string) parentEncryption {
	for name := zfs.ParentOf(target); name != ""; name = zfs.ParentOf(name) {
		if out := k.byTarget[name]; out != nil && out.Encrypted {
			return parentEncryption{belowRawCopy: true}
		}
		if t := k.target[name]; t != nil && !t.Inconsistent() {
			if t.Encrypted() {
				return parentEncryption{inherits: t}
			}
			return parentEncryption{}
		}
	}
	return parentEncryption{}
}

// KeyDependents returns the copies that inherit their key from this dataset and would be locked
// if its streams brought another key. ZFS does not show that in advance.
func (d *Dataset) KeyDependents() []string { return d.keyDependents }

// AssertedRoot returns the root from which the dataset inherits its key on the source's
// assertion, or "".
func (d *Dataset) AssertedRoot() string { return d.assertedRoot }

// RequiredKeyRoot returns the source's encryption root if a stream must not change the
// inherited key of the copy, otherwise "".
func (d *Dataset) RequiredKeyRoot() string { return d.requiredKeyRoot }

// MustBecomeRoot reports whether nothing could open a dataset of NewRoots or KeyDependents if it
// did not become an encryption root.
func (d *Dataset) MustBecomeRoot(name string) bool { return slices.Contains(d.mustBecomeRoot, name) }

// ToJoin returns the datasets that inherit their key at the end, ancestors first.
func (p *Plan) ToJoin() (out []*Dataset) {
	for _, d := range p.Datasets {
		if d.Joins != "" || d.assertedRoot != "" {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b *Dataset) int { return len(a.Target) - len(b.Target) })
	return out
}
