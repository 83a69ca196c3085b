package replicate

import (
	"maps"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// State is the state of a job after its last run.
type State struct {
	// Datasets are datasets of the source, by name.
	Datasets map[string]*DatasetState `json:"datasets"`
	// Place is the target whose copy is the source of this state, "" = the source of the job file. The role on the
	// datasets decides; a run that finds another role turns the state. PlaceSince is when the roles changed.
	Place      string    `json:"source_place,omitempty"`
	PlaceSince time.Time `json:"source_place_since,omitzero"`
	// Switch is the ID of the switch whose last change follows, "" = none.
	Switch string `json:"switch,omitempty"`
	// Diverged are existing diverged copies.
	Diverged []DivergedCopy `json:"set_aside,omitempty"`
	// Root is the GUID of the source's root at the last call of NoteOrphans.
	Root uint64 `json:"root_guid,string,omitempty"`
	// Orphans are copies of datasets that no longer exist on the source.
	Orphans []*Orphan `json:"gone,omitempty"`
	// Disks are the disks of targets, by target name.
	Disks map[string]*DiskState `json:"disks,omitempty"`
}

// DatasetState is the state of one dataset of the source.
type DatasetState struct {
	GUID           uint64 `json:"guid,string"`
	EncryptionRoot string `json:"encryption_root,omitempty"`
	// Pruned holds, by side, the fingerprint of the last pruning that had nothing to destroy.
	// While it is the same, pruning skips the side.
	Pruned map[string]string `json:"pruned,omitempty"`
	// Consistent reports, by snapshot name, whether all applications of the dataset were frozen
	// for it. It has the most recent snapshot and the bases of the targets.
	Consistent map[string]bool `json:"consistent,omitempty"`
	// Histories holds the retention history, by side.
	Histories map[string]*retention.History `json:"past,omitempty"`
	// Targets holds the state of the copies, by target name.
	Targets map[string]*CopyState `json:"targets"`
	// Received is set if the job is a relay.
	Received *Received `json:"received,omitempty"`
	// Local is set if the job has no target.
	Local *LocalState `json:"alone,omitempty"`
}

// Identify records the identity of the dataset.
func (k *DatasetState) Identify(d *zfs.Dataset) {
	k.GUID, k.EncryptionRoot = d.GUID, d.Get("encryptionroot")
}

// RecordFreeze records whether one application was frozen for a snapshot.
func (k *DatasetState) RecordFreeze(snapshot string, proved bool) {
	if k.Consistent == nil {
		k.Consistent = map[string]bool{}
	}
	before, known := k.Consistent[snapshot]
	k.Consistent[snapshot] = proved && (before || !known)
}

// LocalState is the state of a dataset of a job without a target.
type LocalState struct {
	Snapshot string `json:"snapshot,omitempty"` // most recent one in the scope
	// Attempt succeeds if the run took a snapshot, or skipped it because nothing changed. If the
	// job takes none, it succeeds if pruning did.
	Attempt
}

// Attempt records the results of runs for a dataset.
type Attempt struct {
	Success time.Time `json:"success,omitzero"` // start of the last successful run
	Tried   time.Time `json:"tried"`            // start of the last run
	// Failing is the start of the first failed run since Success, or zero. Status uses it if no
	// run ever succeeded, or Success is wrong because of the clock.
	Failing time.Time `json:"failing_since,omitzero"`
	// Held is the start of the first run since Tried that a pause, a closed bandwidth window or an
	// unconfirmed source kept from sending, or zero. Status uses it for copies that never arrived.
	Held    time.Time `json:"held_since,omitzero"`
	Outcome string    `json:"outcome,omitempty"` // of the last run, like Error, which is "" after a success
	Error   string    `json:"error,omitempty"`
	Hint    string    `json:"hint,omitempty"`
}

// Record records the result of the run that started at began.
func (a *Attempt) Record(began time.Time, err error) {
	if a.Failing.IsZero() && a.Tried.After(a.Success) { // state of an older version
		a.Failing = a.Tried
	}
	a.Tried, a.Held, a.Outcome, a.Error, a.Hint = began, time.Time{}, "", "", ""
	if err == nil {
		a.Success, a.Failing = began, time.Time{}
		return
	}
	if a.Failing.IsZero() || a.Failing.After(began) { // or the clock was wrong
		a.Failing = began
	}
	a.Outcome, a.Error, a.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
}

// Hold records that a run could not send for a reason of Held. began is the run's start.
func (a *Attempt) Hold(began time.Time) {
	if a.Held.IsZero() || a.Held.After(began) {
		a.Held = began
	}
}

// CopyState is the state of a dataset at one target.
type CopyState struct {
	Target         string `json:"target"`                    // name of the copy
	EncryptionRoot string `json:"encryption_root,omitempty"` // of the copy
	Base           string `json:"base,omitempty"`            // most recent common snapshot, as on the source
	BaseOnTarget   string `json:"there,omitempty"`           // its name on the target
	BaseGUID       uint64 `json:"base_guid,string,omitempty"`
	// Renamed means that Target is outdated: the source dataset was renamed since (see package decide).
	Renamed bool `json:"renamed,omitempty"`
	// OriginalGUID is the GUID of the original of a mirror's copy; 0 = not yet seen.
	OriginalGUID uint64 `json:"of,string,omitempty"`
	Held         []Held `json:"held,omitempty"`   // may have the job's hold: the base and, after a crash, others
	Moving       bool   `json:"moving,omitempty"` // the holds may differ from the base
	// Sending is the createtxg, on the source, of the newest snapshot in active or interrupted
	// streams; 0 = none.
	Sending uint64  `json:"sending,omitempty"`
	Bytes   uint64  `json:"bytes"` // of the last run, like Seconds
	Seconds float64 `json:"seconds"`
	// Lacks reports properties of zfs.Dataset.Access that the last run could not set on the copy, "" if
	// there are none. LacksHint is what to do.
	Lacks     string `json:"lacks,omitempty"`
	LacksHint string `json:"lacks_hint,omitempty"`
	Attempt
}

// Held is a snapshot with a hold of the job, by its full name on each side; "" = no hold there.
type Held struct {
	Source string `json:"source"`
	Target string `json:"there"`
}

// Copy returns the state of a copy, and creates it if it is missing.
func (s *State) Copy(source, target string) *CopyState {
	d := s.Dataset(source)
	if d.Targets[target] == nil {
		d.Targets[target] = &CopyState{}
	}
	return d.Targets[target]
}

// Local returns the state of a dataset without a target, and creates it if it is missing.
func (s *State) Local(source string) *LocalState {
	d := s.Dataset(source)
	if d.Local == nil {
		d.Local = &LocalState{}
	}
	return d.Local
}

// Dataset returns the state of a dataset, and creates it if it is missing.
func (s *State) Dataset(source string) *DatasetState {
	d := s.Datasets[source]
	if d == nil {
		d = &DatasetState{Targets: map[string]*CopyState{}}
		s.Datasets[source] = d
	}
	if d.Targets == nil {
		d.Targets = map[string]*CopyState{}
	}
	return d
}

// FollowRenames copies the state of renamed datasets to their new names. Bases and holds are the same.
// With reuse, a renamed dataset may have the former name of another one, whose state it replaces. Then
// a dataset that was created under the former name of a renamed one starts without state.
func (s *State) FollowRenames(datasets []*zfs.Dataset, reuse bool) {
	names, count, moved := map[uint64]string{}, map[uint64]int{}, map[string]*DatasetState{}
	for name, known := range s.Datasets {
		names[known.GUID] = name
	}
	for _, d := range datasets {
		count[d.GUID]++
	}
	for _, d := range datasets {
		known, before := s.Datasets[d.Name], names[d.GUID]
		has := known != nil && known.GUID != 0
		switch {
		case has && (known.GUID == d.GUID || !reuse) || d.GUID == 0:
		case before != "" && before != d.Name && count[d.GUID] == 1:
			moved[d.Name] = s.Datasets[before].renamed(before, d)
		case has && count[known.GUID] > 0:
			moved[d.Name] = &DatasetState{Targets: map[string]*CopyState{}}
		}
	}
	maps.Copy(s.Datasets, moved)
}

// renamed returns the state of a dataset that had another name before.
func (k *DatasetState) renamed(before string, d *zfs.Dataset) *DatasetState {
	now := &DatasetState{GUID: d.GUID, Histories: k.Histories, Received: k.Received, Targets: map[string]*CopyState{}}
	for target, was := range k.Targets {
		a := *was
		a.EncryptionRoot = "" // contains a dataset name
		a.Renamed = a.BaseGUID != 0 && a.Target != ""
		a.Held = nil
		for _, h := range was.Held {
			if snapshot, ok := strings.CutPrefix(h.Source, before+"@"); ok {
				h.Source = d.Name + "@" + snapshot
			}
			a.Held = append(a.Held, h)
		}
		now.Targets[target] = &a
	}
	return now
}

// RenameCopies applies a function to all names on a target.
func (s *State) RenameCopies(target string, to func(string) string) {
	for _, known := range s.Datasets {
		if a := known.Targets[target]; a != nil {
			a.Target = to(a.Target)
			for i := range a.Held {
				a.Held[i].Target = to(a.Held[i].Target)
			}
		}
	}
	for _, g := range s.OrphansAt(target) {
		g.Dataset = to(g.Dataset)
		for i := range g.Held {
			g.Held[i] = to(g.Held[i])
		}
	}
	for i := range s.Diverged {
		if d := &s.Diverged[i]; d.Target == target {
			d.Dataset, d.As = to(d.Dataset), to(d.As)
		}
	}
}

// MayHold records snapshots of the source that may have the job's hold for a target.
func (s *State) MayHold(target string, snapshots []string) {
	for _, full := range snapshots {
		dataset, _, _ := zfs.ParseVersion(full)
		a := s.Copy(dataset, target)
		if !slices.ContainsFunc(a.Held, func(h Held) bool { return h.Source == full }) {
			a.Held = append(a.Held, Held{Source: full})
		}
	}
}

// MayHoldCopies records snapshots of copies that may have the job's hold for a target. sourceOf returns the
// source dataset of a copy.
func (s *State) MayHoldCopies(target string, snapshots []string, sourceOf func(copied string) string) {
	for _, full := range snapshots {
		copied, _, _ := zfs.ParseVersion(full)
		a := s.Copy(sourceOf(copied), target)
		if !slices.ContainsFunc(a.Held, func(h Held) bool { return h.Target == full }) {
			a.Held = append(a.Held, Held{Target: full})
		}
	}
}

// Unheld drops snapshots that certainly have no hold, because MayHold recorded them too early.
func (s *State) Unheld(target string, snapshots []string) {
	for _, full := range snapshots {
		dataset, _, _ := zfs.ParseVersion(full)
		a := s.Copy(dataset, target)
		a.Held = slices.DeleteFunc(a.Held, func(h Held) bool { return h == Held{Source: full} })
	}
}

// Received records what the upstream job of a relay has confirmed for a dataset.
type Received struct {
	State decide.ReceivedState `json:"state"` // in the last run
	// Since is the start of the last run in state decide.ReceivedNew, by this host's clock. The dates
	// of snapshots come from another host.
	Since time.Time `json:"since"`
	// Latest is the createtxg of the most recent confirmed snapshot.
	Latest uint64 `json:"createtxg"`
	// Unconfirmed counts the later snapshots.
	Unconfirmed int `json:"unconfirmed,omitempty"`
	// Promoted means that a fail over made the dataset the source. Latest is its most recent snapshot
	// then.
	Promoted bool `json:"promoted,omitempty"`
}

// DivergedCopy is an existing copy that a run renamed because it had diverged.
type DivergedCopy struct {
	Target  string    `json:"target"`  // name of the target
	Dataset string    `json:"dataset"` // its former name
	As      string    `json:"as"`
	GUID    uint64    `json:"guid,string"`
	Since   time.Time `json:"since"`
}

// AddDiverged records a diverged copy, before the run renames it with its descendants. Their holds
// move with them and are stale.
func (s *State) AddDiverged(a DivergedCopy) {
	same := func(b DivergedCopy) bool { return a.Target == b.Target && a.As == b.As }
	if !slices.ContainsFunc(s.Diverged, same) {
		s.Diverged = append(s.Diverged, a)
	}
	for _, known := range s.Datasets {
		at := known.Targets[a.Target]
		if at == nil {
			continue
		}
		for _, h := range slices.Clone(at.Held) {
			if below, ok := strings.CutPrefix(h.Target, a.Dataset); ok && (below[0] == '@' || below[0] == '/') {
				at.Held, at.Moving = append(at.Held, Held{Target: a.As + below}), true
			}
		}
	}
}

// DivergedAt returns the names of the diverged copies on a target.
func (s *State) DivergedAt(target string) (names []string) {
	for _, a := range s.Diverged {
		if a.Target == target {
			names = append(names, a.As)
		}
	}
	return names
}

// UpdateDiverged drops diverged copies of a target that no longer exist or were recreated.
func (s *State) UpdateDiverged(target string, guidOf func(name string) (guid uint64)) {
	s.Diverged = slices.DeleteFunc(s.Diverged, func(a DivergedCopy) bool { return a.Target == target && guidOf(a.As) != a.GUID })
}

// Orphan is a copy whose original no longer exists on the source.
type Orphan struct {
	Target  string `json:"target"`                // name of the target
	Dataset string `json:"dataset"`               // the copy
	Source  string `json:"source"`                // its original
	GUID    uint64 `json:"guid,string,omitempty"` // of the copy; 0 = not yet listed
	// Since is the start of the first run that missed the original, Seen of the last one.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
	// Waited is the elapsed grace period. One interval between runs counts for at most a quarter
	// of the period, so that a wrong clock destroys nothing.
	Waited time.Duration `json:"waited"`
	// SourceReplaced means that the source's root was recreated, for example after a loss. Then
	// the copy is kept permanently.
	SourceReplaced bool `json:"anew,omitempty"`
	// Held are snapshots of the copy that may have the job's hold.
	Held []string `json:"held,omitempty"`
}

// Due returns the earliest time to destroy the copy, or zero for never.
func (g *Orphan) Due(t *Target) time.Time {
	if !t.MirrorsDatasets() || g.SourceReplaced {
		return time.Time{}
	}
	return g.Seen.Add(max(0, time.Duration(t.Mirror.Gone)-g.Waited))
}

// Wait adds the time since the last run to Waited. grace is the complete grace period.
func (g *Orphan) Wait(now time.Time, grace time.Duration) {
	if passed := now.Sub(g.Seen); passed > 0 {
		g.Waited += min(passed, grace/4)
	}
	g.Seen = now
}

// OrphansAt returns the orphans of a target.
func (s *State) OrphansAt(target string) (all []*Orphan) {
	for _, g := range s.Orphans {
		if g.Target == target {
			all = append(all, g)
		}
	}
	return all
}

// DropOrphan drops an orphan that was destroyed.
func (s *State) DropOrphan(target, dataset string) {
	s.Orphans = slices.DeleteFunc(s.Orphans, func(g *Orphan) bool { return g.Target == target && g.Dataset == dataset })
}
