package replicate

import (
	"slices"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/freeze"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// RunState is the input of all decisions: the job, the state of earlier runs, and the listings of
// this run so far.
type RunState struct {
	Job   *Job
	Scope *Scope
	State *State
	// Started names the run's snapshots. Now is the time for retention.
	Started, Now time.Time
	// Root is the source's root dataset. All are the datasets found there, Source the selected
	// ones except Unchanged. For Unchanged datasets, by name, an earlier run found nothing to do.
	Root      string
	All       []*zfs.Dataset
	Source    *zfs.Listing
	Unchanged map[string]bool
	// Excluded holds, by target name, the source datasets that the target does not take.
	Excluded map[string]map[string]bool
	// Targets are the job's targets, in its order. The slice is empty until the run has tried to
	// send.
	Targets []*TargetState
	// Created holds the creation times of adopted snapshots, by side, dataset and name.
	// QueryErrors holds the error of each side that could not be queried.
	Created     map[string]map[string]map[string]time.Time
	QueryErrors map[string]error
	// DueOrphans holds the due orphans of each target, with their descendants.
	DueOrphans map[string]*zfs.Listing
	// NoLimit disables the limits on how much one run destroys.
	NoLimit bool
}

// Choose sets Source to the datasets in All that the job takes, and fills Excluded.
func (v *RunState) Choose() {
	v.Source.Datasets = slices.DeleteFunc(slices.Clone(v.All), func(d *zfs.Dataset) bool { return !v.Job.Takes(v.Root, d) })
	v.Excluded = map[string]map[string]bool{}
	for i := range v.Job.Targets {
		t := &v.Job.Targets[i]
		v.Excluded[t.Name] = map[string]bool{}
		for _, d := range v.Source.Datasets {
			if !t.Takes(v.Root, d) {
				v.Excluded[t.Name][d.Name] = true
			}
		}
	}
}

// To returns the datasets of Source that a target takes.
func (v *RunState) To(target string) []*zfs.Dataset {
	without := v.Excluded[target]
	if len(without) == 0 {
		return v.Source.Datasets
	}
	return slices.DeleteFunc(slices.Clone(v.Source.Datasets), func(d *zfs.Dataset) bool { return without[d.Name] })
}

// UnchangedAt returns the names in Unchanged that a target takes.
func (v *RunState) UnchangedAt(target string) (names []string) {
	for name := range v.Unchanged {
		if !v.Excluded[target][name] {
			names = append(names, name)
		}
	}
	return names
}

// TargetState is a target after the run tried to send to it.
type TargetState struct {
	*Target
	// Failed means that nothing could be sent. Listing may be nil then.
	Failed  bool
	Listing *zfs.Listing
	Partial map[uint64]bool // GUIDs that interrupted receives still expect
	Cut     map[string]bool // source datasets with an interrupted stream in this run
	Arrived []SentDataset

	byName   map[string]*zfs.Dataset // of Listing
	bySource map[string]*SentDataset
}

// Dataset returns a dataset of the target, or nil if it does not exist or was not listed.
func (t *TargetState) Dataset(name string) *zfs.Dataset {
	if t.Listing == nil {
		return nil
	}
	if t.byName == nil {
		t.byName = t.Listing.ByName()
	}
	return t.byName[name]
}

// arrival returns the transfer result for a dataset of the source, or nil.
func (t *TargetState) arrival(source string) *SentDataset {
	if t.bySource == nil {
		t.bySource = make(map[string]*SentDataset, len(t.Arrived))
		for i := range t.Arrived {
			t.bySource[t.Arrived[i].Source] = &t.Arrived[i]
		}
	}
	return t.bySource[source]
}

// SentDataset is a dataset whose copy is up to date.
type SentDataset struct {
	Source, Target string      // names of the dataset and its copy
	Newest         zfs.Version // most recent sent snapshot, as on the source
	There          string      // its name on the target
	Sent           bool        // in this run
}

// CopyOf returns the name of the copy of a source dataset at or below root, or "" if the target
// cannot have one.
func (t *Target) CopyOf(root, source string) string {
	e, err := endpoint.Parse(t.To)
	if err != nil {
		return ""
	}
	name, err := plan.TargetName(root, e.Name)
	if err != nil {
		return ""
	}
	return name + strings.TrimPrefix(source, root)
}

// Decision lists the actions of a run.
type Decision struct {
	// Snapshots are full names of snapshots to take.
	Snapshots []string
	// Frozen are applications to freeze for Snapshots.
	Frozen []freeze.Wanted
	// Unmatched are applications that cannot be frozen, because a pattern matches no dataset.
	Unmatched []UnmatchedFreeze
	// Copies lists the datasets to list on each target, by target name. If a target has no entry,
	// list it completely.
	Copies map[string][]string
	// HoldChanges are holds to move and bookmarks to create, per target.
	HoldChanges []*HoldChange
	// Prunings lists what to destroy on each side.
	Prunings []*Pruning
	// Bookmarks are stale bookmarks of the job.
	Bookmarks []string
	// Ask lists, by side, adopted snapshots whose creation time is needed. Until RunState.Created
	// has it, the side has no Pruning.
	Ask map[string][]string
}

// Decide returns the actions that follow from v. It does not modify v. The caller repeats it
// whenever v has more listings. It prunes nothing before the run has tried to send to all targets.
func Decide(v *RunState) *Decision {
	d := &Decision{Snapshots: v.snapshots(), Copies: map[string][]string{}, Ask: map[string][]string{}}
	d.Frozen, d.Unmatched = v.freezesFor(d.Snapshots)
	for i := range v.Job.Targets {
		if copies := v.copies(&v.Job.Targets[i]); copies != nil {
			d.Copies[v.Job.Targets[i].Name] = copies
		}
	}
	if len(v.Targets) < len(v.Job.Targets) {
		return d
	}
	moved := map[string]*HoldChange{}
	for _, t := range v.Targets {
		if h := v.holdChange(t); h != nil {
			d.HoldChanges = append(d.HoldChanges, h)
			moved[t.Name] = h
		}
	}
	b := &incrementalSources{RunState: v, moved: moved}
	v.prune(d, b)
	d.Bookmarks = b.staleBookmarks()
	return d
}

// snapshots returns the full names of snapshots to take.
func (v *RunState) snapshots() []string {
	naming := v.Scope.Naming()
	if naming == nil {
		return nil
	}
	changed := map[string]bool{}
	for _, d := range v.Source.Datasets {
		latest, any := d.Latest()
		_, own := v.Scope.Own(latest.Name)
		changed[d.Name] = !v.Job.Snapshots.SkipUnchanged || !any || !own || d.Get("written") != "0"
	}
	v.addFreezePartners(changed)
	name := naming.At(v.Started)
	var out []string
	for _, d := range v.Source.Datasets {
		taken := slices.ContainsFunc(d.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Snapshot && v.Name == name })
		if d.Inconsistent() || !changed[d.Name] || taken {
			continue
		}
		out = append(out, d.Name+"@"+name)
	}
	return out
}

// copies returns the copies of all datasets that the run may send to a target. If one is new, it
// returns nil: then the complete target must be listed, because the dataset may have a copy under
// another name.
func (v *RunState) copies(t *Target) []string {
	var out []string
	for _, d := range v.To(t.Name) {
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
