package preflight

import (
	"cmp"
	"fmt"
	"slices"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// demand is the data that a plan adds at and below one existing target dataset.
type demand struct {
	bytes uint64 // estimated size of the streams
	// rough reports whether the size is only an upper bound: uncompressed blocks may be
	// compressed on arrival, or a rollback frees space first.
	rough bool
}

// space compares the estimates with the available space. The pool and the quotas of all
// ancestors limit the space of a dataset, and it is shared with all descendants.
func space(in *Input) []finding.Finding {
	existing := in.TargetListing.ByName()
	demands := map[string]*demand{}
	for _, d := range in.Plan.Datasets {
		addDemand(demands, existing, d)
	}
	var out []finding.Finding
	for name, want := range demands {
		available, ok := number(existing[name].Get("available"))
		if !ok || want.bytes <= available || ancestorTooSmall(demands, existing, name) {
			continue
		}
		f := finding.Finding{
			Host: in.Target.Name, Severity: finding.Fail, Target: name,
			Summary:  fmt.Sprintf("%s has %s available, and about %s will arrive", name, size.Text(available), size.Text(want.bytes)),
			Evidence: fmt.Sprintf("zfs get available %s: %d; zfs send -nvP: %d", name, available, want.bytes),
			Remedy:   "make room; what uses the space, and which quotas apply: " + command("zfs", "list", "-o", "space,quota,refquota", "-r", zfs.PoolOf(name)),
		}
		if want.rough {
			f.Severity = finding.Warn
			f.Summary += ", if it takes as much room there as on the way"
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b finding.Finding) int { return cmp.Compare(a.Summary, b.Summary) })
	return out
}

// addDemand adds a dataset's streams to every existing dataset at or above its target.
func addDemand(demands map[string]*demand, existing map[string]*zfs.Dataset, d *plan.Dataset) {
	var need demand
	for _, st := range d.Steps {
		need.bytes += st.Bytes
		need.rough = need.rough || !st.Send.Flags.Raw && !st.Send.Flags.Compressed
	}
	need.rough = need.rough || len(d.Loses) > 0 || d.Discard != ""
	if need.bytes == 0 {
		return
	}
	for name := d.Target; name != ""; name = zfs.ParentOf(name) {
		if existing[name] == nil {
			continue
		}
		total := demands[name]
		if total == nil {
			total = &demand{}
			demands[name] = total
		}
		total.bytes += need.bytes
		total.rough = total.rough || need.rough
	}
}

// ancestorTooSmall reports whether an ancestor lacks space too. Its finding is then enough.
func ancestorTooSmall(demands map[string]*demand, existing map[string]*zfs.Dataset, name string) bool {
	for name = zfs.ParentOf(name); name != ""; name = zfs.ParentOf(name) {
		want := demands[name]
		if want == nil {
			continue
		}
		if available, ok := number(existing[name].Get("available")); ok && want.bytes > available {
			return true
		}
	}
	return false
}
