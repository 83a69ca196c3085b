package plan

import (
	"cmp"
	"fmt"
	"slices"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// A raw increment brings the key as the source's encryption root wraps it. If the copy is an
// encryption root, the source's key opens it afterwards. Otherwise ZFS keeps the copy's present
// root. Unless that root has the source's key, nothing opens the copy any more: even zfs
// change-key panics (seen with 2.3.9).
//
// https://github.com/openzfs/zfs/issues/12614
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c (dsl_crypto_recv_raw_key_sync)

// checkRoot refuses a raw increment that would leave the copy with a key that nothing opens.
func (p *planner) checkRoot(d, t *zfs.Dataset, out *Dataset) bool {
	if !p.raw(d) || !t.Encrypted() || t.Inconsistent() || p.req.AnyKey {
		return true
	}
	from, to := encryptionRoot(d), encryptionRoot(t)
	if to == t.Name {
		p.noteNewKey(d, t, out)
		return true
	}
	if p.isSplit(d, t) {
		p.planSplit(t, out)
		return true
	}
	if of := originDataset(t); of != "" {
		// A clone shares its origin's key and root.
		if o := p.target[of]; o == nil || encryptionRoot(o) == to {
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
			return p.checkCopiedRoot(d, t, out, from, to)
		}
	}
	root := p.target[to]
	if root != nil && zfs.KeyIsProved(p.sourceRoot(d), root) || root == nil && zfs.KeyIsProved(p.sourceRoot(d), t) || p.bringsRoot(out, from, to) {
		return true // or the copy has this key already
	}
	if p.isCopyOfRoot(d, t, to, from) && !p.req.Restore && zfs.KeyIsUnknown(p.sourceRoot(d), t) {
		out.requiredKeyRoot = from // the stream shows whether it has the same key
		return true
	}
	why := ""
	if root == nil || !root.HasPassphrase() {
		why = fmt.Sprintf(", unless the key of %s is that of %s, which ZFS does not tell", to, p.onSource(from))
	}
	p.refuseKeyChanged(d, t, out, "the encryption root of %s was changed, from %s to %s: a raw increment of %s would leave it with a key that fits neither%s (openzfs#12614)",
		p.onTarget(t.Name), was, to, p.onSource(d.Name), why)
	return false
}

// noteNewKey notes, for a copy that is an encryption root, that its key becomes or may become
// the source's.
func (p *planner) noteNewKey(d, t *zfs.Dataset, out *Dataset) {
	root := p.sourceRoot(d)
	at := t.Get("keylocation")
	elsewhere := at != "" && at != "prompt" && at != "none" && at != root.Get("keylocation")
	then := fmt.Sprintf("this increment brings the key of %s, which alone opens it from then on", p.onSource(root.Name))
	if elsewhere {
		then += fmt.Sprintf(" (its keylocation stays %s)", at)
	}
	switch {
	case !zfs.SameKey(root, t):
		out.NewKey = fmt.Sprintf("the key of %s is not that of %s by now: %s", p.onTarget(t.Name), p.onSource(root.Name), then)
	case elsewhere && t.Get("keyformat") != "passphrase":
		out.NewKey = fmt.Sprintf("if %s was given a key of its own: %s", p.onTarget(t.Name), then)
	default:
		return
	}
	p.note("%s", out.NewKey)
}

// isCopyOfRoot reports whether a target encryption root is the copy of the source's root, or of
// a dataset that inherits from it and tops a partial tree.
func (p *planner) isCopyOfRoot(d, t *zfs.Dataset, to, from string) bool {
	name, ok := relocate(t.Name, d.Name, to)
	return ok && (name == from || p.source[name] != nil && encryptionRoot(p.source[name]) == from)
}

// checkCopiedRoot reports whether a copy and its encryption root, the copy of the source's
// root, will have one key. Otherwise it adds a conflict.
func (p *planner) checkCopiedRoot(d, t *zfs.Dataset, out *Dataset, from, to string) bool {
	if b := p.target[to]; b == nil || zfs.SameKey(p.sourceRoot(d), b) || p.bringsRoot(out, from, to) {
		return true
	}
	p.refuseKeyChanged(d, t, out, "%s takes its key from %s, which is not that of %s: a raw increment of %s would leave it with a key that fits neither (openzfs#12614)",
		p.onTarget(t.Name), to, p.onSource(from), p.onSource(d.Name))
	return false
}

// bringsRoot reports whether the plan sends the source's root to the copy's encryption root, so
// that both get the same key. out then needs that dataset.
func (p *planner) bringsRoot(out *Dataset, from, to string) bool {
	above := p.byTarget[to]
	if above == nil || len(above.Steps) == 0 || above.Source != from && encryptionRoot(p.source[above.Source]) != from {
		return false
	}
	out.Needs = append(out.Needs, above.Source)
	return true
}

func (p *planner) refuseKeyChanged(d, t *zfs.Dataset, out *Dataset, format string, args ...any) {
	if p.req.Restore {
		p.conflict(KeyChanged, d.Name, out.Target, restoreElsewhereHint(encryptionRoot(t)), format, args...)
		return
	}
	p.conflict(KeyChanged, d.Name, out.Target,
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

// sourceRoot returns a dataset's encryption root. If the root is not listed, it returns the
// dataset, which shows the root's key properties as of the last change.
func (p *planner) sourceRoot(d *zfs.Dataset) *zfs.Dataset {
	return cmp.Or(p.source[encryptionRoot(d)], d)
}

func encryptionRoot(d *zfs.Dataset) string { return cmp.Or(d.Get("encryptionroot"), d.Name) }

// checkKeyDependents refuses to change the key of a root if other target datasets that inherit
// from it could not be opened afterwards.
func (p *planner) checkKeyDependents() {
	for _, t := range p.state.Target.Datasets {
		root := p.target[encryptionRoot(t)]
		if root == nil || root.Name == t.Name || originDataset(t) != "" {
			continue
		}
		above := p.byTarget[root.Name]
		if above == nil || len(above.Steps) == 0 || above.Steps[0].BaseGUID == 0 || !above.Encrypted || p.req.AnyKey {
			continue
		}
		source := p.sourceRoot(p.source[above.Source])
		if zfs.SameKey(source, root) {
			p.addKeyDependent(t, root, above)
			continue
		}
		if p.becomeRootBefore(t, root, above) {
			continue
		}
		if out := p.byTarget[t.Name]; out != nil && len(out.Steps) > 0 {
			continue
		}
		if slices.ContainsFunc(p.plan.Conflicts, func(c finding.Finding) bool { return c.Target == root.Name }) {
			continue
		}
		hint := fmt.Sprintf("send both at once ({{recursive}}, with a new snapshot of each); where it is no copy, give it a key of its own there: %s\n{{skip-check %s}} goes on all the same",
			command("zfs", "change-key", "-o", "keyformat=passphrase", "-o", "keylocation=prompt", t.Name), KeyChanged)
		if p.req.Restore {
			hint = restoreElsewhereHint(root.Name)
		}
		p.conflict(KeyChanged, above.Source, root.Name, hint,
			"%s takes its key from %s, which would be given that of %s: nothing would open the former any more (openzfs#12614)",
			p.onTarget(t.Name), root.Name, p.onSource(source.Name))
	}
}
