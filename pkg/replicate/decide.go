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

// RunState is all that a run decides by: the job, what earlier runs knew, and what
// this one has seen so far.
type RunState struct {
	Job   *Job
	Scope *Scope
	State *State
	// Started names the run's snapshots; Now is the clock that retention goes by.
	Started, Now time.Time
	// Root is the source's dataset; All is what was found there. Source are those
	// that the job selects, but for Idle, by name: of these an earlier run found that
	// there is nothing to do.
	Root      string
	All       []*zfs.Dataset
	Source    *zfs.Listing
	Unchanged map[string]bool
	// Excluded are those of them that a target does not take, by the target's name.
	Excluded map[string]map[string]bool
	// Targets are what was seen of the job's, in its order; none before it was tried
	// to send to them.
	Targets []*TargetState
	// Created is when adopted snapshots were taken, by side, dataset and name, of
	// the sides that were asked. Unasked is why a side could not be.
	Created map[string]map[string]map[string]time.Time
	Unasked map[string]error
	// Leftovers are the copies of datasets that are gone from the source and due to go,
	// with what is below them, by target.
	Leftovers map[string]*zfs.Listing
	// NoLimit tells that there is no limit to what one run may remove.
	NoLimit bool
}

// Choose leaves to a view those of what was found at its source that the job takes,
// and notes those of them that a target does not take.
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

// To are the datasets of Source that a target takes.
func (v *RunState) To(target string) []*zfs.Dataset {
	without := v.Excluded[target]
	if len(without) == 0 {
		return v.Source.Datasets
	}
	return slices.DeleteFunc(slices.Clone(v.Source.Datasets), func(d *zfs.Dataset) bool { return without[d.Name] })
}

// UnchangedAt are those of Idle that a target takes.
func (v *RunState) UnchangedAt(target string) (names []string) {
	for name := range v.Unchanged {
		if !v.Excluded[target][name] {
			names = append(names, name)
		}
	}
	return names
}

// TargetState is a target after it was tried to send to it.
type TargetState struct {
	*Target
	// Failed tells that nothing could be sent at all. Listing may be nil then.
	Failed  bool
	Listing *zfs.Listing
	Partial map[uint64]bool // GUIDs that interrupted receives are still to bring
	Cut     map[string]bool // datasets of the source whose streams were cut just now
	Arrived []SentDataset

	byName   map[string]*zfs.Dataset // of Listing
	bySource map[string]*SentDataset
}

// SentDataset is a dataset that a target has as the source has it.
type SentDataset struct {
	Source, Target string      // datasets
	Newest         zfs.Version // of the source
	There          string      // the same snapshot as the target names it
	Sent           bool        // just now
}

// Decision is what a run is to do.
type Decision struct {
	// Snapshots are to be taken, by full name.
	Snapshots []string
	// Frozen are the applications that stand still meanwhile.
	Frozen []freeze.Wanted
	// Unmatched are those that cannot, as not all that they name is there.
	Unmatched []UnmatchedFreeze
	// Copies are the datasets to look at on each target for what is to be sent, by
	// the target's name; all of a target that is not in it.
	Copies map[string][]string
	// HoldChanges are what is to be held, and bookmarked, for each target.
	HoldChanges []*HoldChange
	// Prunings are what retention removes on each side.
	Prunings []*Pruning
	// Bookmarks are those of the job that no increment begins with any more.
	Bookmarks []string
	// Ask are the adopted snapshots whose creation decides about Prunings, by side.
	// Until that is known there is no Pruning of the side.
	Ask map[string][]string
}

// Decide returns what is to be done by all that was seen. It changes nothing of
// the view, and is asked anew when more was seen: retention decides nothing before
// it was tried to send to all targets.
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

// snapshots are those that the run is to take.
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

// copies are those of all that the run may send to a target, where it has them
// all already; else nil: the target is then looked at as a whole, as also what it
// has under other names decides what a dataset that is new to it is.
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
	if len(out) == 0 { // nothing will be sent
		out = append(out, t.CopyOf(v.Root, v.Root))
	}
	return out
}

// CopyOf is the target's dataset of one at or below the job's source, root; ""
// where the target cannot have it.
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
