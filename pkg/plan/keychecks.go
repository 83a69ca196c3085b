package plan

import (
	"fmt"
	"slices"

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
	if !k.raw(d) || !t.Encrypted() || t.Inconsistent() || k.req.AllowKeyChange {
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
		why = fmt.Sprintf(", unless %s and %s have the same key, which ZFS does not show", to, k.onSource(from))
	}
	k.refuseKeyChanged(d, t, out, "the encryption root of %s changed from %s to %s: after a raw incremental stream of %s, no key would open it%s (openzfs#12614)",
		k.onTarget(t.Name), was, to, k.onSource(d.Name), why)
	return false
}

// noteNewKey notes, for a copy that is an encryption root, that its key becomes or may become
// the source's.
func (k *keys) noteNewKey(d, t *zfs.Dataset, out *Dataset) {
	root := k.sourceRoot(d)
	at := t.Get("keylocation")
	elsewhere := at != "" && at != "prompt" && at != "none" && at != root.Get("keylocation")
	then := fmt.Sprintf("this stream brings the key of %s; from then on only that key opens it", k.onSource(root.Name))
	if elsewhere {
		then += fmt.Sprintf(" (its keylocation is still %s)", at)
	}
	switch {
	case !zfs.SameKey(root, t):
		out.NewKey = fmt.Sprintf("the key of %s differs from the key of %s: %s", k.onTarget(t.Name), k.onSource(root.Name), then)
	case elsewhere && t.Get("keyformat") != "passphrase":
		out.NewKey = fmt.Sprintf("if someone gave %s another key: %s", k.onTarget(t.Name), then)
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
	k.refuseKeyChanged(d, t, out, "%s inherits its key from %s, which is not the key of %s: after a raw incremental stream of %s, no key would open it (openzfs#12614)",
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
		fmt.Sprintf("make it an encryption root, so that the stream brings the source's key: %s\nor keep that copy and send a new one: %s\nif %[4]s has the source's key, add {{skip-check %[3]s}}",
			k.state.TargetAt.PromptLine(loadKeyPrefix(t)+command("zfs", "change-key", "-o", "keyformat=passphrase", "-o", "keylocation=prompt", t.Name)),
			k.state.TargetAt.Command("zfs", "rename", t.Name, t.Name+"-old"), KeyChanged, encryptionRoot(t)),
		format, args...)
}

// restoreElsewhereHint returns the hint for a restore over an original whose key must not be
// changed.
func restoreElsewhereHint(root string) string {
	return fmt.Sprintf("to keep the original, restore to another target\nif %[2]s still has the key with which the copy was made, add {{skip-check %[1]s}}", KeyChanged, root)
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
		if above == nil || above.Steps[0].BaseGUID == 0 || !above.Encrypted || k.req.AllowKeyChange {
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
		hint := fmt.Sprintf("send both together ({{recursive}}, with a new snapshot of each)\nif it is not a copy, give it its own key: %s\nto continue anyway, add {{skip-check %s}}",
			k.state.TargetAt.Prompt("zfs", "change-key", "-o", "keyformat=passphrase", "-o", "keylocation=prompt", t.Name), KeyChanged)
		if k.req.Restore {
			hint = restoreElsewhereHint(root.Name)
		}
		k.conflict(KeyChanged, above.Source, root.Name, hint,
			"%s inherits its key from %s, which would get the key of %s: after that, no key would open the former (openzfs#12614)",
			k.onTarget(t.Name), root.Name, k.onSource(source.Name))
	}
}

// checkSource refuses to decrypt a dataset whose key is not loaded.
func (k *keys) checkSource(d *zfs.Dataset, out *Dataset) bool {
	if !k.req.Decrypt || !d.Encrypted() || d.KeyLoaded() {
		return true
	}
	k.conflict(KeyNotLoaded, d.Name, out.Target,
		"load it: "+k.state.SourceAt.Prompt("zfs", "load-key", encryptionRoot(d))+"\nor omit {{decrypt}} to send it raw, which needs no key",
		"%s cannot be sent decrypted: its key is not loaded", k.onSource(d.Name))
	return false
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
	k.conflict(KeyNotLoaded, d.Name, out.Target, "load it: "+k.state.TargetAt.Prompt("zfs", "load-key", encryptionRoot(t)),
		"%s would inherit the encryption of %s, whose key is not loaded", k.onTarget(out.Target), encryptionRoot(t))
	return false
}
