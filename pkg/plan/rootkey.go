package plan

import (
	"cmp"
	"fmt"
	"slices"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// A raw increment brings the dataset's key as the source's encryption root wraps
// it. Where the copy is an encryption root itself, the source's key opens it
// afterwards, whatever did before. Where it is not, ZFS leaves it below the root
// that it has, and unless the key of that one is the source's, nothing opens the
// copy any more: not even zfs change-key, which panics (seen with 2.3.9).
//
// https://github.com/openzfs/zfs/issues/12614
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c (dsl_crypto_recv_raw_key_sync)

// checkRoot refuses a raw increment that would leave the copy with a key that
// nothing opens.
func (p *planner) checkRoot(d, t *zfs.Dataset, out *Dataset) bool {
	if !p.raw(d) || !t.Encrypted() || t.Inconsistent() || p.req.AnyKey {
		return true
	}
	from, to := encryptionRoot(d), encryptionRoot(t)
	if to == t.Name {
		p.ownKey(d, t, out)
		return true
	}
	if p.splits(d, t) {
		p.split(t, out)
		return true
	}
	if of := originDataset(t); of != "" {
		// A clone shares its key, and the root with it.
		if o := p.target[of]; o == nil || encryptionRoot(o) == to {
			return true
		}
	}
	was := t.Name // each stream of ours makes a root of its own
	if recorded, ok := recordedFlags(t); !ok || !recorded.Raw {
		// zfs receive of a package (zfs send -R -w) gives a copy the root that
		// is the copy of the source's root.
		if want, ok := relocate(d.Name, t.Name, from); ok && want != "" {
			was = want
		}
		if was == to {
			return p.rootFollows(d, t, out, from, to)
		}
	}
	root := p.target[to]
	if root != nil && zfs.KeyIsProved(p.sourceRoot(d), root) || root == nil && zfs.KeyIsProved(p.sourceRoot(d), t) || p.rootArrives(out, from, to) {
		return true // or it brings the key that the copy has by now
	}
	if p.original(d, t, to, from) && !p.req.Restore && zfs.KeyIsUnknown(p.sourceRoot(d), t) {
		out.keepsKey = from // its stream shows whether it does
		return true
	}
	why := ""
	if root == nil || !root.HasPassphrase() {
		why = fmt.Sprintf(", unless the key of %s is that of %s, which ZFS does not tell", to, p.onSource(from))
	}
	p.keyChanged(d, t, out, "the encryption root of %s was changed, from %s to %s: a raw increment of %s would leave it with a key that fits neither%s (openzfs#12614)",
		p.onTarget(t.Name), was, to, p.onSource(d.Name), why)
	return false
}

// original tells that an encryption root of the target is the copy of the source's, or
// of what takes its key from there, as the highest of a part of a tree does.
func (p *planner) original(d, t *zfs.Dataset, to, from string) bool {
	name, ok := relocate(t.Name, d.Name, to)
	return ok && (name == from || p.source[name] != nil && encryptionRoot(p.source[name]) == from)
}

// rootFollows judges a copy whose encryption root is the copy of the source's
// root: both must have one key once the plan is done.
func (p *planner) rootFollows(d, t *zfs.Dataset, out *Dataset, from, to string) bool {
	if b := p.target[to]; b == nil || zfs.SameKey(p.sourceRoot(d), b) || p.rootArrives(out, from, to) {
		return true
	}
	p.keyChanged(d, t, out, "%s takes its key from %s, which is not that of %s: a raw increment of %s would leave it with a key that fits neither (openzfs#12614)",
		p.onTarget(t.Name), to, p.onSource(from), p.onSource(d.Name))
	return false
}

// rootArrives tells whether the plan brings the source's root to the encryption
// root of a copy first, and with it the key that both have from then on.
func (p *planner) rootArrives(out *Dataset, from, to string) bool {
	above := p.arriving[to]
	if above == nil || len(above.Steps) == 0 || above.Source != from && encryptionRoot(p.source[above.Source]) != from {
		return false
	}
	out.Needs = append(out.Needs, above.Source)
	return true
}

// isSibling is the way out of a restore over the original, whose keys are none to change
// for it.
func isSibling(root string) string {
	return fmt.Sprintf("restore beside it: name another target, with the original as it is\n{{skip-check %s}} goes on all the same, where the key of %s is still the one that the copy was made with", KeyChanged, root)
}

func (p *planner) keyChanged(d, t *zfs.Dataset, out *Dataset, format string, args ...any) {
	if p.req.Restore {
		p.conflict(KeyChanged, d.Name, out.Target, isSibling(encryptionRoot(t)), format, args...)
		return
	}
	p.conflict(KeyChanged, d.Name, out.Target,
		fmt.Sprintf("there, make it a root of its own again; the increment then brings the source's key: %s\nor keep that copy and begin another: %s\n{{skip-check %s}} goes on all the same, where the key of %s is the source's",
			opened(t)+command("zfs", "change-key", "-o", "keyformat=passphrase", "-o", "keylocation=prompt", t.Name),
			command("zfs", "rename", t.Name, t.Name+"-old"), KeyChanged, encryptionRoot(t)),
		format, args...)
}

// opened loads the key of a dataset, where it is not: zfs load-key fails where it is.
func opened(t *zfs.Dataset) string {
	if t.KeyLoaded() {
		return ""
	}
	return command("zfs", "load-key", encryptionRoot(t)) + " && "
}

// sourceRoot is a dataset's encryption root, or where that is not listed the
// dataset: what it tells of its key was the root's when that was changed.
func (p *planner) sourceRoot(d *zfs.Dataset) *zfs.Dataset {
	return cmp.Or(p.source[encryptionRoot(d)], d)
}

// ownKey says, of a copy that is an encryption root, that its key becomes the
// source's, where it is or may be another.
func (p *planner) ownKey(d, t *zfs.Dataset, out *Dataset) {
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

// checkInheritors refuses to change the key of a root whose other datasets on the
// target would then not be opened by it any more.
func (p *planner) checkInheritors() {
	for _, t := range p.state.Target.Datasets {
		root := p.target[encryptionRoot(t)]
		if root == nil || root.Name == t.Name || originDataset(t) != "" {
			continue
		}
		above := p.arriving[root.Name]
		if above == nil || len(above.Steps) == 0 || above.Steps[0].BaseGUID == 0 || !above.Encrypted || p.req.AnyKey {
			continue
		}
		source := p.sourceRoot(p.source[above.Source])
		if zfs.SameKey(source, root) {
			p.inherits(t, root, above)
			continue
		}
		if p.part(t, root, above) {
			continue
		}
		if out := p.arriving[t.Name]; out != nil && len(out.Steps) > 0 {
			continue
		}
		if slices.ContainsFunc(p.plan.Conflicts, func(c finding.Finding) bool { return c.Target == root.Name }) {
			continue
		}
		hint := fmt.Sprintf("send both at once ({{recursive}}, with a new snapshot of each); where it is no copy, give it a key of its own there: %s\n{{skip-check %s}} goes on all the same",
			command("zfs", "change-key", "-o", "keyformat=passphrase", "-o", "keylocation=prompt", t.Name), KeyChanged)
		if p.req.Restore {
			hint = isSibling(root.Name)
		}
		p.conflict(KeyChanged, above.Source, root.Name, hint,
			"%s takes its key from %s, which would be given that of %s: nothing would open the former any more (openzfs#12614)",
			p.onTarget(t.Name), root.Name, p.onSource(source.Name))
	}
}
