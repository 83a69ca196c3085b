package plan

import (
	"slices"
	"sort"

	"zxfer/pkg/zfs"
)

// ordered returns the source's datasets, each after its parent and after the
// dataset that its clone's origin lies in, otherwise by name.
func (p *planner) ordered() []*zfs.Dataset {
	all := append([]*zfs.Dataset(nil), p.state.Source.Datasets...)
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	var out []*zfs.Dataset
	seen := map[string]bool{}
	var visit func(d *zfs.Dataset)
	visit = func(d *zfs.Dataset) {
		if d == nil || seen[d.Name] {
			return // also ends a cycle: a promoted clone below its own origin
		}
		seen[d.Name] = true
		visit(p.source[zfs.ParentOf(d.Name)])
		if origin, _, err := zfs.ParseSnapshot(d.Get("origin")); err == nil {
			visit(p.source[origin])
		}
		out = append(out, d)
	}
	for _, d := range all {
		visit(d)
	}
	return out
}

// origin returns a clone's origin on the source and its counterpart on the
// target, if that is there or will be by then.
func (p *planner) origin(d *zfs.Dataset) (source, target string, ok bool) {
	source = d.Get("origin")
	if source == "" {
		return "", "", false
	}
	guid, known := p.sourceSnap[source]
	if known {
		if target, ok = p.targetGUID[guid]; ok {
			return source, target, true
		}
		if target, ok = p.sent[guid]; ok {
			return source, target, true
		}
	}
	p.note("%s is a clone of %s, which the target does not have: it is sent in full and shares no blocks there", d.Name, source)
	return "", "", false
}

// needs names what must arrive before the dataset.
func (p *planner) needs(d *zfs.Dataset, out *Dataset) {
	if len(out.Steps) == 0 && out.Discard == "" {
		return
	}
	want := []string{zfs.ParentOf(d.Name)}
	if len(out.Steps) > 0 && out.Steps[0].Kind == Clone {
		if origin, _, err := zfs.ParseSnapshot(d.Get("origin")); err == nil {
			want = append(want, origin)
		}
	}
	for _, n := range want {
		planned := slices.ContainsFunc(p.plan.Datasets, func(o *Dataset) bool { return o.Source == n })
		if planned && n != d.Name && !slices.Contains(out.Needs, n) {
			out.Needs = append(out.Needs, n)
		}
	}
}

// remember notes which snapshots the target will have once out is done.
func (p *planner) remember(d *zfs.Dataset, out *Dataset) {
	for _, st := range out.Steps {
		for _, v := range d.Snapshots() {
			if v.GUID == st.ToGUID || slices.Contains(st.Send.Through, v.Name) {
				p.sent[v.GUID] = out.Target + "@" + v.Name
			}
		}
	}
}

// NeedOrigins returns the origins of clones that lie outside the listings:
// their names on the source, and where TargetName would have put them.
func NeedOrigins(req Request, state State) (source, target []string) {
	listed := map[string]bool{}
	for _, d := range state.Source.Datasets {
		listed[d.Name] = true
	}
	for _, d := range state.Source.Datasets {
		origin, name, err := zfs.ParseSnapshot(d.Get("origin"))
		if err != nil || listed[origin] {
			continue
		}
		source = append(source, d.Get("origin"))
		typed := req.Target
		if there, err := TargetName(origin, typed); err == nil && there != typed {
			target = append(target, there+"@"+name)
		} else if parent := zfs.ParentOf(state.Target.Root); parent != "" {
			// An exact target: the origin may lie beside it under its own name.
			target = append(target, parent+origin[lastSlash(origin):]+"@"+name)
		}
	}
	return source, target
}

func lastSlash(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '/' {
			return i
		}
	}
	return 0
}
