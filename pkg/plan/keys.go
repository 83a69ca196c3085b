package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// keys determines the encryption roots and keys that open a copy before and after its streams.
type keys struct {
	*findings
	*arrivals
	becomesRoot map[string]bool // copies that become encryption roots
}

// A raw increment brings the key as the source's encryption root wraps it. If the copy is an
// encryption root, the source's key opens it afterwards. Otherwise ZFS keeps the copy's present
// root. Unless that root has the source's key, nothing opens the copy any more: even zfs
// change-key panics (seen with 2.3.9).
//
// https://github.com/openzfs/zfs/issues/12614
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c (dsl_crypto_recv_raw_key_sync)

// checkRoot refuses a raw increment that would leave the copy with a key that nothing opens.
func (k *keys) checkRoot(d, t *zfs.Dataset, out *Dataset) bool {
	if !k.raw(d) || !t.Encrypted() || t.Inconsistent() || k.req.AnyKey {
		return true
	}
	from, to := encryptionRoot(d), encryptionRoot(t)
	if to == t.Name {
		k.noteNewKey(d, t, out)
		return true
	}
	if k.isSplit(d, t) {
		k.planSplit(t, out)
		return true
	}
	if of := originDataset(t); of != "" {
		// A clone shares its origin's key and root.
		if o := k.target[of]; o == nil || encryptionRoot(o) == to {
			return true
		}
	}
	was := t.Name // each stream of zxfer creates an encryption root
	if recorded, ok := recordedFlags(t); !ok || !recorded.Raw {
		// zfs receive of a replication stream (zfs send -R -w) makes the copy of the source's
		// root the root of the copy.
		if want, ok := relocate(d.Name, t.Name, from); ok && want != "" {
			was = want
		}
		if was == to {
			return k.checkCopiedRoot(d, t, out, from, to)
		}
	}
	root := k.target[to]
	if root != nil && zfs.KeyIsProved(k.sourceRoot(d), root) || root == nil && zfs.KeyIsProved(k.sourceRoot(d), t) || k.bringsRoot(out, from, to) {
		return true // or the copy has this key already
	}
	if k.isCopyOfRoot(d, t, to, from) && !k.req.Restore && zfs.KeyIsUnknown(k.sourceRoot(d), t) {
		out.requiredKeyRoot = from // the stream shows whether it has the same key
		return true
	}
	why := ""
	if root == nil || !root.HasPassphrase() {
		why = fmt.Sprintf(", unless the key of %s is that of %s, which ZFS does not tell", to, k.onSource(from))
	}
	k.refuseKeyChanged(d, t, out, "the encryption root of %s was changed, from %s to %s: a raw increment of %s would leave it with a key that fits neither%s (openzfs#12614)",
		k.onTarget(t.Name), was, to, k.onSource(d.Name), why)
	return false
}

// noteNewKey notes, for a copy that is an encryption root, that its key becomes or may become
// the source's.
func (k *keys) noteNewKey(d, t *zfs.Dataset, out *Dataset) {
	root := k.sourceRoot(d)
	at := t.Get("keylocation")
	elsewhere := at != "" && at != "prompt" && at != "none" && at != root.Get("keylocation")
	then := fmt.Sprintf("this increment brings the key of %s, which alone opens it from then on", k.onSource(root.Name))
	if elsewhere {
		then += fmt.Sprintf(" (its keylocation stays %s)", at)
	}
	switch {
	case !zfs.SameKey(root, t):
		out.NewKey = fmt.Sprintf("the key of %s is not that of %s by now: %s", k.onTarget(t.Name), k.onSource(root.Name), then)
	case elsewhere && t.Get("keyformat") != "passphrase":
		out.NewKey = fmt.Sprintf("if %s was given a key of its own: %s", k.onTarget(t.Name), then)
	default:
		return
	}
	k.note("%s", out.NewKey)
}

// isCopyOfRoot reports whether a target encryption root is the copy of the source's root, or of
// a dataset that inherits from it and tops a partial tree.
func (k *keys) isCopyOfRoot(d, t *zfs.Dataset, to, from string) bool {
	name, ok := relocate(t.Name, d.Name, to)
	return ok && (name == from || k.source[name] != nil && encryptionRoot(k.source[name]) == from)
}

// checkCopiedRoot reports whether a copy and its encryption root, the copy of the source's
// root, will have one key. Otherwise it adds a conflict.
func (k *keys) checkCopiedRoot(d, t *zfs.Dataset, out *Dataset, from, to string) bool {
	if b := k.target[to]; b == nil || zfs.SameKey(k.sourceRoot(d), b) || k.bringsRoot(out, from, to) {
		return true
	}
	k.refuseKeyChanged(d, t, out, "%s takes its key from %s, which is not that of %s: a raw increment of %s would leave it with a key that fits neither (openzfs#12614)",
		k.onTarget(t.Name), to, k.onSource(from), k.onSource(d.Name))
	return false
}

// bringsRoot reports whether the plan sends the source's root to the copy's encryption root, so
// that both get the same key. out then needs that dataset.
func (k *keys) bringsRoot(out *Dataset, from, to string) bool {
	above := k.streamTo(to)
	if above == nil || above.Source != from && encryptionRoot(k.source[above.Source]) != from {
		return false
	}
	out.Needs = append(out.Needs, above.Source)
	return true
}

func (k *keys) refuseKeyChanged(d, t *zfs.Dataset, out *Dataset, format string, args ...any) {
	if k.req.Restore {
		k.conflict(KeyChanged, d.Name, out.Target, restoreElsewhereHint(encryptionRoot(t)), format, args...)
		return
	}
	k.conflict(KeyChanged, d.Name, out.Target,
		fmt.Sprintf("there, make it a root of its own again; the increment then brings the source's key: %s\nor keep that copy and begin another: %s\n{{skip-check %s}} goes on all the same, where the key of %s is the source's",
			loadKeyPrefix(t)+command("zfs", "change-key", "-o", "keyformat=passphrase", "-o", "keylocation=prompt", t.Name),
			command("zfs", "rename", t.Name, t.Name+"-old"), KeyChanged, encryptionRoot(t)),
		format, args...)
}

// restoreElsewhereHint returns the hint for a restore over an original whose key must not be
// changed.
func restoreElsewhereHint(root string) string {
	return fmt.Sprintf("restore beside it: name another target, with the original as it is\n{{skip-check %s}} goes on all the same, where the key of %s is still the one that the copy was made with", KeyChanged, root)
}

// loadKeyPrefix returns the command that loads a key, or "" if it is loaded: zfs load-key would
// then fail.
func loadKeyPrefix(t *zfs.Dataset) string {
	if t.KeyLoaded() {
		return ""
	}
	return command("zfs", "load-key", encryptionRoot(t)) + " && "
}

// checkDependents refuses to change the key of a root if other target datasets that inherit
// from it could not be opened afterwards.
func (k *keys) checkDependents() {
	for _, t := range k.state.Target.Datasets {
		root := k.target[encryptionRoot(t)]
		if root == nil || root.Name == t.Name || originDataset(t) != "" {
			continue
		}
		above := k.streamTo(root.Name)
		if above == nil || above.Steps[0].BaseGUID == 0 || !above.Encrypted || k.req.AnyKey {
			continue
		}
		source := k.sourceRoot(k.source[above.Source])
		if zfs.SameKey(source, root) {
			k.addKeyDependent(t, root, above)
			continue
		}
		if k.becomeRootBefore(t, root, above) || k.streamTo(t.Name) != nil {
			continue
		}
		if slices.ContainsFunc(k.plan.Conflicts, func(c finding.Finding) bool { return c.Target == root.Name }) {
			continue
		}
		hint := fmt.Sprintf("send both at once ({{recursive}}, with a new snapshot of each); where it is no copy, give it a key of its own there: %s\n{{skip-check %s}} goes on all the same",
			command("zfs", "change-key", "-o", "keyformat=passphrase", "-o", "keylocation=prompt", t.Name), KeyChanged)
		if k.req.Restore {
			hint = restoreElsewhereHint(root.Name)
		}
		k.conflict(KeyChanged, above.Source, root.Name, hint,
			"%s takes its key from %s, which would be given that of %s: nothing would open the former any more (openzfs#12614)",
			k.onTarget(t.Name), root.Name, k.onSource(source.Name))
	}
}

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
			out.Parts = append(out.Parts, below.Name)
			k.becomesRoot[below.Name] = true
		}
	}
	slices.SortFunc(out.Parts, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	out.Parts, k.becomesRoot[t.Name] = append(out.Parts, t.Name), true
	out.mustBecomeRoot = out.Parts
	k.note("%s became an encryption root on the source, or takes its key from one that did: its copy becomes one, too", k.onSource(out.Source))
}

// becomeRootBefore plans that a copy becomes an encryption root before its root's key changes.
// It reports false if the salts do not prove that both have one key.
func (k *keys) becomeRootBefore(t, root *zfs.Dataset, above *Dataset) bool {
	if k.req.Restore || !zfs.KeyIsProved(t, root) {
		return false
	}
	above.Parts, k.becomesRoot[t.Name] = append(above.Parts, t.Name), true
	if k.streamTo(t.Name) == nil {
		above.mustBecomeRoot = append(above.mustBecomeRoot, t.Name)
		k.note("%s takes its key from %s, which changes, and no stream brings it that key: it becomes an encryption root of the key that it has", k.onTarget(t.Name), root.Name)
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

// checkSource refuses to decrypt a dataset whose key is not loaded.
func (k *keys) checkSource(d *zfs.Dataset, out *Dataset) bool {
	if !k.req.Decrypt || !d.Encrypted() || d.KeyLoaded() {
		return true
	}
	k.conflict(KeyNotLoaded, d.Name, out.Target,
		"load it there: "+command("zfs", "load-key", encryptionRoot(d))+"\nwithout {{decrypt}} it is sent raw, which needs no key",
		"%s cannot be sent decrypted: its key is not loaded", k.onSource(d.Name))
	return false
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

// checkParent refuses a plain stream below an ancestor whose key is not loaded.
func (k *keys) checkParent(d *zfs.Dataset, out *Dataset, at parentEncryption) bool {
	if out.Encrypted || at.inherits == nil || k.req.Set["encryption"] != "" {
		return true
	}
	return k.checkTarget(d, out, at.inherits)
}

// checkTarget refuses a plain stream that an encrypted dataset t with no loaded key would encrypt.
func (k *keys) checkTarget(d *zfs.Dataset, out *Dataset, t *zfs.Dataset) bool {
	if t.Get("keystatus") != "unavailable" {
		return true
	}
	k.conflict(KeyNotLoaded, d.Name, out.Target, "load it there: "+command("zfs", "load-key", encryptionRoot(t)),
		"%s would be encrypted on arrival as part of %s, whose key is not loaded", k.onTarget(out.Target), encryptionRoot(t))
	return false
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

// MustBecomeRoot reports whether nothing could open a dataset of Parts or KeyDependents if it
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
