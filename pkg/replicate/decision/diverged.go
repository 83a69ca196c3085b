package decision

import (
	"maps"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// maxDiverged limits the diverged copies of a dataset. If it diverges more often, renaming does not
// solve the cause (for example two sources of one copy) and would fill the pool.
const maxDiverged = 3

// AllowRename makes a request rename diverged copies, if the target is configured for that.
func (v *Survey) AllowRename(t *replicate.Target, r *plan.Request) {
	v.addRenamed(t, r)
	if t.OnDivergence != "rotate" {
		return
	}
	r.Rotate, r.Copies, r.RenameLimited = zfs.DivergedSuffix(v.Started), map[string]bool{}, map[string]bool{}
	for source, known := range v.State.Datasets {
		if a := known.Targets[t.Name]; a != nil && (a.BaseGUID != 0 || len(a.Held) > 0) {
			r.Copies[t.CopyOf(v.Root, source)] = true
		}
	}
	for _, g := range v.State.OrphansAt(t.Name) { // the source may have a new dataset with that name
		r.Copies[g.Dataset] = true
	}
	r.Owned = maps.Clone(r.Copies)
	sent := v.UnchangedAt(t.Name)
	for _, d := range v.DatasetsFor(t.Name) {
		sent = append(sent, d.Name)
	}
	for _, source := range sent { // also the parents, which no run sent
		for name := t.CopyOf(v.Root, source); name != "" && !r.Owned[name]; name = zfs.ParentOf(name) {
			r.Owned[name] = true
		}
	}
	times := map[string]int{}
	for _, a := range v.State.Diverged {
		if a.Target == t.Name {
			times[a.Dataset]++
			r.RenameLimited[a.Dataset] = times[a.Dataset] >= maxDiverged
		}
	}
}

// addRenamed adds the copies that were renamed and not yet replaced to a request.
func (v *Survey) addRenamed(t *replicate.Target, r *plan.Request) {
	r.RenamedBefore = map[string]bool{}
	for _, d := range v.DatasetsFor(t.Name) {
		copied, arrived := t.CopyOf(v.Root, d.Name), time.Time{}
		if known := v.State.Datasets[d.Name]; known != nil && known.Targets[t.Name] != nil {
			arrived = known.Targets[t.Name].Success
		}
		for _, a := range v.State.Diverged {
			along := strings.HasPrefix(copied, a.Dataset+"/") && !arrived.IsZero() // newer datasets were not renamed
			if a.Target == t.Name && (along || copied == a.Dataset) && arrived.Before(a.Since) {
				r.RenamedBefore[copied] = true
			}
		}
	}
}

// AddExcluded adds the source datasets that the target does not get to a request.
func (v *Survey) AddExcluded(t *replicate.Target, r *plan.Request) {
	r.ExcludedDatasets, r.UpToDate = map[string]*zfs.Dataset{}, map[string]bool{}
	for _, d := range v.All {
		r.ExcludedDatasets[d.Name] = d
	}
	for _, d := range v.DatasetsFor(t.Name) {
		delete(r.ExcludedDatasets, d.Name)
	}
	for _, name := range v.UnchangedAt(t.Name) {
		delete(r.ExcludedDatasets, name)
		r.UpToDate[name] = true
	}
}

// RenamedWithParent reports whether this run renamed the copy of a dataset together with a parent.
func (v *Survey) RenamedWithParent(t *replicate.Target, source string) bool {
	return slices.ContainsFunc(v.State.Diverged, func(a replicate.DivergedCopy) bool {
		return a.Target == t.Name && a.Since.Equal(v.Started) && strings.HasPrefix(t.CopyOf(v.Root, source), a.Dataset+"/")
	})
}
