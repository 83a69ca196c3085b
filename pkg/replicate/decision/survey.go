package decision

import (
	"maps"
	"slices"
	"time"

	"zxfer/pkg/freeze"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// Survey is the knowledge of a run before it sends: the job, the state of earlier runs, and the
// listing of the source.
type Survey struct {
	SourceAt remedy.Host // the source for commands of hints
	Job      *replicate.Job
	Scope    *replicate.Scope
	State    *replicate.State
	// Started names the run's snapshots.
	Started time.Time
	// Root is the source's root dataset. All are the datasets found there, Source the selected
	// ones except Unchanged. For Unchanged datasets, by name, an earlier run found nothing to do.
	Root      string
	All       []*zfs.Dataset
	Source    *zfs.Listing
	Unchanged map[string]bool
	// Excluded holds, by target name, the source datasets that the target does not take.
	Excluded map[string]map[string]bool
	// Promoted reports that a fail over made the source the source of all copies. No upstream job
	// confirms the snapshots of a relay then.
	Promoted bool
	// Unconfirmed counts, by dataset of a relay, the snapshots that Confirm removed from Source. Waiting
	// are the datasets that it removed.
	Unconfirmed map[string]int
	Waiting     map[string]bool
	// Renames holds what becomes of outdated names of copies, by target name. Only targets with
	// on_rename = "follow" have an entry.
	Renames map[string]*Renames
}

// Choose sets Source to the datasets in All that the job takes, and fills Excluded.
func (v *Survey) Choose() {
	v.Source.Datasets = slices.DeleteFunc(slices.Clone(v.All), func(d *zfs.Dataset) bool { return !v.Job.Selects(v.Root, d) })
	v.Excluded = map[string]map[string]bool{}
	for i := range v.Job.Targets {
		t := &v.Job.Targets[i]
		v.Excluded[t.Name] = map[string]bool{}
		for _, d := range v.Source.Datasets {
			if !t.Selects(v.Root, d) {
				v.Excluded[t.Name][d.Name] = true
			}
		}
	}
}

// DatasetsFor returns the datasets of Source that a target takes.
func (v *Survey) DatasetsFor(target string) []*zfs.Dataset {
	without := v.Excluded[target]
	if len(without) == 0 {
		return v.Source.Datasets
	}
	return slices.DeleteFunc(slices.Clone(v.Source.Datasets), func(d *zfs.Dataset) bool { return without[d.Name] })
}

// UnchangedAt returns the names in Unchanged that a target takes.
func (v *Survey) UnchangedAt(target string) (names []string) {
	for name := range v.Unchanged {
		if !v.Excluded[target][name] {
			names = append(names, name)
		}
	}
	return names
}

// CopiesToList returns the copies of all datasets that the run may send to a target. If one is
// new, it returns nil: then the complete target must be listed, because the dataset may have a
// copy under another name.
func (v *Survey) CopiesToList(t *replicate.Target) []string {
	var out []string
	for _, d := range v.DatasetsFor(t.Name) {
		if v.Scope.Count(d) == 0 {
			continue
		}
		if known := v.State.Datasets[d.Name]; known == nil || known.Targets[t.Name] == nil || known.Targets[t.Name].BaseGUID == 0 {
			return nil
		}
		out = append(out, t.CopyOf(v.Root, d.Name))
	}
	if len(out) == 0 { // nothing to send
		out = append(out, t.CopyOf(v.Root, v.Root))
	}
	return out
}

// DueSnapshots are the snapshots that a run takes.
type DueSnapshots struct {
	Names  []string             // full names
	Frozen []freeze.Application // applications to freeze for them
	// Unmatched are applications that cannot be frozen, because a pattern matches no dataset.
	Unmatched []UnmatchedFreeze
}

// DueSnapshots returns the snapshots to take.
func (v *Survey) DueSnapshots() *DueSnapshots {
	due, freezes := &DueSnapshots{}, freezeSet{v.Job.Freeze, v.Root}
	all, changed := slices.Collect(maps.Keys(v.Unchanged)), map[string]bool{}
	for _, d := range v.Source.Datasets {
		latest, any := d.Latest()
		_, own := v.Scope.Own(latest.Name)
		all, changed[d.Name] = append(all, d.Name), !v.Job.Snapshots.SkipUnchanged || !any || !own || d.Get("written") != "0"
	}
	if naming := v.Scope.Naming(); naming != nil {
		freezes.addPartners(changed)
		name := naming.At(v.Started)
		for _, d := range v.Source.Datasets {
			taken := slices.ContainsFunc(d.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Snapshot && v.Name == name })
			if !d.Inconsistent() && changed[d.Name] && !taken {
				due.Names = append(due.Names, d.Name+"@"+name)
			}
		}
	}
	due.Frozen, due.Unmatched = freezes.of(due.Names, all)
	return due
}
