package plan

import (
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// TargetName returns the target for a source dataset. If the typed name is a pool or ends in
// "/", the source's path below its pool is appended. Errors have class fault.Usage.
func TargetName(source, typed string) (string, error) {
	name := strings.TrimSuffix(typed, "/")
	if name == "" {
		return "", fault.Usagef("name a pool or dataset", "the target %q names no dataset", typed)
	}
	if strings.HasSuffix(typed, "/") || !strings.Contains(typed, "/") {
		if _, below, ok := strings.Cut(source, "/"); ok {
			name += "/" + below
		}
	}
	return zfs.ParseDataset(name)
}

// targetOf maps the source root or a descendant to its target.
func targetOf(source, root, targetRoot string) string {
	return targetRoot + strings.TrimPrefix(source, root)
}

// checkTarget refuses a target inside the source or below a volume.
func (p *planner) checkTarget() bool {
	source, target := p.req.Source, p.targetRoot
	if p.state.SameHost && source == target {
		p.conflict(SameDataset, source, target, "name another target", "source and target are both %s", p.onSource(source))
		return false
	}
	if p.state.SameHost && p.req.Recursive && strings.HasPrefix(target, source+"/") {
		p.conflict(SameDataset, source, target, "name a target outside of "+source+", or leave {{recursive}} out",
			"target %s lies inside of %s, which is sent with all that is below it", p.onTarget(target), p.onSource(source))
		return false
	}
	for _, a := range p.state.Target.Ancestors {
		if a.Type == zfs.Volume {
			p.conflict(TypeMismatch, source, target, "name another target", "%s cannot be: %s is a volume", p.onTarget(target), a.Name)
			return false
		}
	}
	return true
}

// parentEncryption describes the encryption above a new dataset.
type parentEncryption struct {
	// inherits is the existing ancestor whose encryption a plain receive inherits; nil if there
	// is none.
	inherits *zfs.Dataset
	// belowRawCopy reports whether the plan brings an encrypted ancestor.
	belowRawCopy bool
}

func (p *planner) parentEncryptionOf(target string) parentEncryption {
	for name := zfs.ParentOf(target); name != ""; name = zfs.ParentOf(name) {
		if out := p.byTarget[name]; out != nil && out.Encrypted {
			return parentEncryption{belowRawCopy: true}
		}
		if t := p.target[name]; t != nil && !t.Inconsistent() {
			if t.Encrypted() {
				return parentEncryption{inherits: t}
			}
			return parentEncryption{}
		}
	}
	return parentEncryption{}
}

// checkParentKey refuses a plain stream below an ancestor whose key is not loaded.
func (p *planner) checkParentKey(d *zfs.Dataset, out *Dataset, at parentEncryption) bool {
	if out.Encrypted || at.inherits == nil || p.req.Set["encryption"] != "" {
		return true
	}
	return p.checkTargetKey(d, out, at.inherits)
}

func (p *planner) checkTargetKey(d *zfs.Dataset, out *Dataset, t *zfs.Dataset) bool {
	if t.Get("keystatus") != "unavailable" {
		return true
	}
	p.conflict(KeyNotLoaded, d.Name, out.Target, "load it there: "+command("zfs", "load-key", encryptionRoot(t)),
		"%s would be encrypted on arrival as part of %s, whose key is not loaded", p.onTarget(out.Target), encryptionRoot(t))
	return false
}

// parentMissing reports whether ancestors of the target must be created.
func (p *planner) parentMissing(target string) bool {
	parent := zfs.ParentOf(target)
	return parent != "" && p.target[parent] == nil && p.byTarget[parent] == nil
}
