package replicate

import (
	"fmt"

	"zxfer/pkg/zfs"
)

// A dataset is settled after a run that had nothing to send, to hold or to
// remove for it. As long as its snapshots and those of its copies are what
// they were, so is that, and the run leaves it out: no snapshot of it is
// listed. zfs.ChangedProperty tells that, at the price of the dataset alone;
// the listing of its snapshots and bookmarks costs as much again for each of
// them.
//
// Only that nothing is to be done rests on what was remembered. Whatever is
// done is decided by a listing of this run, so that what leaves
// zfs.ChangedProperty alone (bookmarks, holds) cannot mislead it: a dataset
// with nothing to send or to remove needs neither.

// changeTicks is how many seconds must lie between the last change of a
// dataset's snapshots and the beginning of a listing that is remembered: the
// property counts whole seconds, and another change within the same second
// would not show.
const changeTicks = 2

// UnchangedCache is what must be as it was for there to be nothing to do for a dataset.
type UnchangedCache struct {
	Source  string            `json:"source"`  // stands for the dataset
	Own     bool              `json:"own"`     // its newest snapshot is one of the job's own
	Targets map[string]string `json:"targets"` // stand for its copies, by the target's name in the job file
}

// fingerprint stands for all about a dataset that decides whether there is anything
// to do. A promotion moves snapshots without a trace in the clone's
// zfs.ChangedProperty, but changes the origin.
func fingerprint(d *zfs.Dataset, base uint64) string {
	return fmt.Sprintf("%s %s %q %q %d", d.Get("guid"), d.Get(zfs.ChangedProperty), d.Get("origin"), d.Get("encryptionroot"), base)
}

// CopyProperties are what tells whether a copy moved.
func CopyProperties() []string {
	return []string{"guid", zfs.ChangedProperty, "origin", "encryptionroot", "receive_resume_token"}
}

// CopyMoved tells that a copy is not as it was.
func (s *UnchangedCache) CopyMoved(target string, there *zfs.Dataset, a *CopyState) bool {
	return there.ResumeToken() != "" || s.Targets[target] != fingerprint(there, a.BaseGUID)
}

// Unmoved are the datasets of the source that are as they were, and need no
// snapshot; of their copies nothing is said.
func Unmoved(v *RunState, before map[string]*UnchangedCache) []string {
	var out []string
	for _, d := range v.Source.Datasets {
		if s, known := before[d.Name], v.State.Datasets[d.Name]; s != nil && known != nil && v.unmoved(d, s, known) {
			out = append(out, d.Name)
		}
	}
	return out
}

func (v *RunState) unmoved(d *zfs.Dataset, s *UnchangedCache, known *DatasetState) bool {
	if v.freezes(d.Name) || d.SnapshotsChanged() == 0 || d.Inconsistent() || s.Source != fingerprint(d, 0) {
		return false
	}
	for i := range v.Job.Targets {
		name := v.Job.Targets[i].Name
		if v.Excluded[name][d.Name] {
			continue
		}
		if a := known.Targets[name]; a == nil || a.Error != "" || s.Targets[name] == "" {
			return false
		}
	}
	return v.Scope.Naming() == nil || s.Own && d.Get("written") == "0"
}

// Settle are the datasets for which there was nothing to do, by name, after all
// that was decided is done. What was left out is as it was before.
func Settle(v *RunState, prunings []*Pruning, before map[string]*UnchangedCache) map[string]*UnchangedCache {
	open := map[string]bool{} // to retention
	for _, p := range prunings {
		for source, l := range p.Looked {
			open[source] = open[source] || l.Print == ""
		}
	}
	out := map[string]*UnchangedCache{}
	for name := range v.Unchanged {
		out[name] = before[name]
	}
	for _, d := range v.Source.Datasets {
		if open[d.Name] || d.Inconsistent() || !shows(d, v.Source.Began) {
			continue
		}
		s := &UnchangedCache{Source: fingerprint(d, 0), Targets: map[string]string{}}
		if latest, any := d.Latest(); any {
			_, s.Own = v.Scope.Own(latest.Name)
		}
		if v.settleCopies(d, s) {
			out[d.Name] = s
		}
	}
	return out
}

// settleCopies fills in a dataset's copies; false where something was sent to any,
// or is still to be done, or may have happened unseen.
func (v *RunState) settleCopies(d *zfs.Dataset, s *UnchangedCache) bool {
	for _, t := range v.Targets {
		if v.Excluded[t.Name][d.Name] {
			continue
		}
		there, at, known := t.Dataset(t.CopyOf(v.Root, d.Name)), t.arrival(d.Name), v.State.Datasets[d.Name]
		if t.Failed || there == nil || at == nil || at.Sent || known == nil {
			return false
		}
		a := known.Targets[t.Name]
		if a == nil || a.BaseGUID != at.Newest.GUID || a.Moving || there.ResumeToken() != "" || !shows(there, t.Listing.Began) {
			return false
		}
		s.Targets[t.Name] = fingerprint(there, a.BaseGUID)
	}
	return true
}

// shows tells that any change of a dataset's snapshots behind a listing that
// began then shows in zfs.ChangedProperty.
func shows(d *zfs.Dataset, began int64) bool {
	changed := d.SnapshotsChanged()
	return changed != 0 && changed+changeTicks <= began
}
