package plan

import (
	"cmp"
	"slices"

	"zxfer/pkg/zfs"
)

// ordered returns the datasets by name, each after its ancestors and after the dataset of its
// origin. Promoted clones can form a cycle; then the first by name comes before its origin.
// Ancestors may be missing if a job excludes them.
func ordered(datasets []*zfs.Dataset) []*zfs.Dataset {
	left := slices.SortedFunc(slices.Values(datasets), func(a, b *zfs.Dataset) int { return cmp.Compare(a.Name, b.Name) })
	pending := make(map[string]bool, len(left)) // not in out yet
	for _, d := range left {
		pending[d.Name] = true
	}
	out := make([]*zfs.Dataset, 0, len(left))
	for len(left) > 0 {
		rest := left[:0]
		for _, d := range left {
			if ancestorPending(pending, d.Name) || pending[originDataset(d)] {
				rest = append(rest, d)
				continue
			}
			out = append(out, d)
			delete(pending, d.Name)
		}
		if len(rest) == len(left) {
			// A cycle: take the first by name, which has no pending ancestor.
			out = append(out, rest[0])
			delete(pending, rest[0].Name)
			rest = rest[1:]
		}
		left = rest
	}
	return out
}

func ancestorPending(pending map[string]bool, name string) bool {
	for name = zfs.ParentOf(name); name != ""; name = zfs.ParentOf(name) {
		if pending[name] {
			return true
		}
	}
	return false
}

// addNeeds adds the datasets that must arrive before out: the nearest planned ancestor of a new
// dataset, and a clone's origin.
func addNeeds(v *view, a *arrivals, out *Dataset) {
	if len(out.Steps) == 0 {
		return
	}
	if !v.exists(out.Target) {
		for name := zfs.ParentOf(out.Target); name != ""; name = zfs.ParentOf(name) {
			if above := a.byTarget[name]; above != nil {
				// Without steps it exists, or a conflict prevents it.
				if len(above.Steps) > 0 || !v.exists(name) {
					out.Needs = append(out.Needs, above.Source)
				}
				break
			}
		}
	}
	first := &out.Steps[0]
	if origin := a.sent[first.BaseGUID]; first.Kind == Clone && origin.target == first.Receive.Origin && !slices.Contains(out.Needs, origin.source) {
		out.Needs = append(out.Needs, origin.source)
	}
}

// arrivals are the datasets planned so far, and the snapshots that they bring.
type arrivals struct {
	byTarget map[string]*Dataset
	sent     map[uint64]arrivingSnapshot // by GUID
}

// arrivingSnapshot is a snapshot that the plan brings to the target.
type arrivingSnapshot struct {
	source string // dataset
	target string // full name
}

// streamTo returns the plan of a target dataset if it has streams, otherwise nil.
func (a *arrivals) streamTo(target string) *Dataset {
	if out := a.byTarget[target]; out != nil && len(out.Steps) > 0 {
		return out
	}
	return nil
}

// record records the snapshots that the plan of d brings.
func (a *arrivals) record(d *zfs.Dataset, out *Dataset) {
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
			a.sent[v.GUID] = arrivingSnapshot{source: d.Name, target: v.In(out.Target)}
		}
	}
}
