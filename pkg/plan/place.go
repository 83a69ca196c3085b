package plan

import (
	"slices"

	"zxfer/pkg/zfs"
)

// place is what a dataset that the target lacks will find there.
type place struct {
	// inherits is the existing dataset above whose encryption a plain
	// receive takes over; nil where there is none.
	inherits *zfs.Dataset
	// belowReplica tells that an encrypted replica of this plan is above.
	belowReplica bool
}

func (p *planner) placeOf(target string) place {
	for name := zfs.ParentOf(target); name != ""; name = zfs.ParentOf(name) {
		if out := p.arriving[name]; out != nil && out.Encrypted {
			return place{belowReplica: true}
		}
		if t := p.target[name]; t != nil && !t.Inconsistent() {
			if t.Encrypted() {
				return place{inherits: t}
			}
			return place{}
		}
	}
	return place{}
}

// checkPlaceKey refuses a plain stream into a place whose key is not loaded.
func (p *planner) checkPlaceKey(d *zfs.Dataset, out *Dataset, at place) bool {
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

// parentMissing tells whether an ancestor of the target has to be created.
func (p *planner) parentMissing(target string) bool {
	parent := zfs.ParentOf(target)
	return parent != "" && p.target[parent] == nil && p.arriving[parent] == nil
}

// needs names what must arrive before a dataset: what is next above it, where
// the dataset is new itself, and a clone's origin.
func (p *planner) needs(out *Dataset) {
	if len(out.Steps) == 0 {
		return
	}
	if t := p.target[out.Target]; t == nil || t.Inconsistent() {
		for name := zfs.ParentOf(out.Target); name != ""; name = zfs.ParentOf(name) {
			if above := p.arriving[name]; above != nil {
				// Without steps it is there, or a conflict keeps it away.
				if len(above.Steps) > 0 || !p.exists(name) {
					out.Needs = append(out.Needs, above.Source)
				}
				break
			}
		}
	}
	first := &out.Steps[0]
	if origin := p.sent[first.BaseGUID]; first.Kind == Clone && origin.target == first.Receive.Origin && !slices.Contains(out.Needs, origin.source) {
		out.Needs = append(out.Needs, origin.source)
	}
}

// remember notes which snapshots the target will have once out is done.
func (p *planner) remember(d *zfs.Dataset, out *Dataset) {
	if len(out.Steps) == 0 {
		return
	}
	arrives := make(map[uint64]bool, len(out.Steps))
	through := map[string]bool{}
	for _, st := range out.Steps {
		arrives[st.ToGUID] = true
		for _, name := range st.Send.Through {
			through[name] = true
		}
	}
	for _, v := range d.Versions {
		if v.Kind == zfs.Snapshot && (arrives[v.GUID] || through[v.Name]) {
			p.sent[v.GUID] = arrival{source: d.Name, target: v.In(out.Target)}
		}
	}
}
