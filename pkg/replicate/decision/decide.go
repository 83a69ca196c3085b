package decision

import (
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// RunState is the knowledge of a run after it tried to send to all targets.
type RunState struct {
	Survey *Survey
	// Now is the time for retention.
	Now time.Time
	// Targets are the job's targets, in its order.
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

// TargetState is a target after the run tried to send to it.
type TargetState struct {
	*replicate.Target
	// Failed means that nothing could be sent. Listing may be nil then. Absent means in addition
	// that the target is on a disk that is not there.
	Failed  bool
	Absent  bool
	Listing *zfs.Listing
	Partial map[uint64]bool // GUIDs that interrupted receives still expect
	Cut     map[string]bool // source datasets with an interrupted stream in this run
	Arrived []SentDataset
}

// SentDataset is a dataset whose copy is up to date.
type SentDataset struct {
	Source, Target string      // names of the dataset and its copy
	Newest         zfs.Version // most recent sent snapshot, as on the source
	NewestOnTarget string      // its name on the target
	Sent           bool        // in this run
}

// Decision lists the actions of a run after its transfers.
type Decision struct {
	// HoldChanges are holds to move and bookmarks to create, per target.
	HoldChanges []*HoldChange
	// Prunings lists what to destroy on each side.
	Prunings []*Pruning
	// Bookmarks are stale bookmarks of the job.
	Bookmarks []string
	// NeedCreated lists, by side, adopted snapshots whose creation time is needed. Until RunState.Created
	// has it, the side has no Pruning.
	NeedCreated map[string][]string
}

// Decide returns the actions that follow from v. It does not modify v. Each stage returns the
// input of the next ones: pairs of datasets and copies, changes of holds, needed versions, sides to
// prune. If a target is missing, Decide returns no action.
func Decide(v *RunState) *Decision {
	d := &Decision{NeedCreated: map[string][]string{}}
	if len(v.Targets) < len(v.Survey.Job.Targets) {
		return d
	}
	var pairs []*pair
	for _, t := range v.Targets {
		copies := v.pairs(t)
		if h := moveHolds(v.Survey.Job, t, copies, v.Now); h != nil {
			d.HoldChanges = append(d.HoldChanges, h)
		}
		pairs = append(pairs, copies...)
	}
	needed := neededBy(v.Survey.Job, pairs, d.HoldChanges, v.Now)
	d.Bookmarks = needed.staleBookmarks(v.Survey.Job.Name, v.Survey.Source.Datasets)
	for _, s := range v.sides(pairs, needed) {
		if p, ask := s.prune(); len(ask) > 0 {
			d.NeedCreated[s.name] = ask
		} else {
			d.Prunings = append(d.Prunings, p)
		}
	}
	return d
}

// pair is a source dataset and its copy on one target.
type pair struct {
	target *TargetState
	source *zfs.Dataset
	copied *zfs.Dataset         // nil if it does not exist or was not listed
	sent   *SentDataset         // nil if the copy is not up to date
	known  *replicate.CopyState // of earlier runs; never nil
}

// pairs returns the source datasets that a target takes, with their copies.
func (v *RunState) pairs(t *TargetState) (all []*pair) {
	var copies map[string]*zfs.Dataset
	if t.Listing != nil {
		copies = t.Listing.ByName()
	}
	sent := map[string]*SentDataset{}
	for i := range t.Arrived {
		sent[t.Arrived[i].Source] = &t.Arrived[i]
	}
	for _, d := range v.Survey.DatasetsFor(t.Name) {
		p := &pair{target: t, source: d, copied: copies[t.CopyOf(v.Survey.Root, d.Name)], sent: sent[d.Name], known: &replicate.CopyState{}}
		if known := v.Survey.State.Datasets[d.Name]; known != nil && known.Targets[t.Name] != nil {
			p.known = known.Targets[t.Name]
		}
		all = append(all, p)
	}
	return all
}
