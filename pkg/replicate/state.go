package replicate

import (
	"maps"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/zfs"
)

// State is what is known of a job's datasets after its last run.
type State struct {
	// Datasets are those of the source, by name.
	Datasets map[string]*DatasetState `json:"datasets"`
	// Aside are the copies that were set aside and are still there.
	Aside []DivergedCopy `json:"set_aside,omitempty"`
	// Root is the GUID of the source's root when its datasets were last missed.
	Root uint64 `json:"root_guid,string,omitempty"`
	// Orphans are the copies of datasets that the source no longer has.
	Orphans []*Orphan `json:"gone,omitempty"`
}

// DatasetState is what is known of one dataset of the source.
type DatasetState struct {
	GUID           uint64 `json:"guid,string"`
	EncryptionRoot string `json:"encryption_root,omitempty"`
	// Pruned tells, by side, what retention found nothing more to remove of:
	// while that is the same there is no need to ask again.
	Pruned map[string]string `json:"pruned,omitempty"`
	// Consistent tells of snapshots whether all of the dataset's applications were proved
	// to stand still for them, by name: of the newest, and of those that a target has.
	Consistent map[string]bool `json:"consistent,omitempty"`
	// Past is what retention learnt of its snapshots, by side.
	Past map[string]*History `json:"past,omitempty"`
	// Targets is where it is, by the target's name in the job file.
	Targets map[string]*CopyState `json:"targets"`
	// Alone is how it stands where its job has no target, else nil.
	Alone *LocalState `json:"alone,omitempty"`
}

// Identify notes which dataset it is.
func (k *DatasetState) Identify(d *zfs.Dataset) {
	k.GUID, k.EncryptionRoot = d.GUID, d.Get("encryptionroot")
}

// Froze notes whether one of the applications of a dataset stood still for a snapshot.
func (k *DatasetState) Froze(snapshot string, proved bool) {
	if k.Consistent == nil {
		k.Consistent = map[string]bool{}
	}
	before, known := k.Consistent[snapshot]
	k.Consistent[snapshot] = proved && (before || !known)
}

// LocalState is a dataset of a job without a target.
type LocalState struct {
	Snapshot string `json:"snapshot,omitempty"` // the newest that concerns the job
	// Attempt succeeds where a snapshot of it was taken, or nothing new was found in it
	// to take one of; of a job that takes none, where its retention was applied.
	Attempt
}

// Attempt is what came of the runs for a dataset.
type Attempt struct {
	Success time.Time `json:"success,omitzero"` // begin of the last run that succeeded
	Tried   time.Time `json:"tried"`            // begin of the last run
	// Failing is the begin of the first run since Success, none where that succeeded: how
	// long what never arrived, or did so when the clock was wrong, is waited for.
	Failing time.Time `json:"failing_since,omitzero"`
	Outcome string    `json:"outcome,omitempty"` // of the last run, as Error is "" where it succeeded
	Error   string    `json:"error,omitempty"`
	Hint    string    `json:"hint,omitempty"`
}

// Ended notes what came of the run that began at a time.
func (a *Attempt) Ended(began time.Time, err error) {
	if a.Failing.IsZero() && a.Tried.After(a.Success) { // as an older version wrote it
		a.Failing = a.Tried
	}
	a.Tried, a.Outcome, a.Error, a.Hint = began, "", "", ""
	if err == nil {
		a.Success, a.Failing = began, time.Time{}
		return
	}
	if a.Failing.IsZero() || a.Failing.After(began) { // or the clock was wrong then
		a.Failing = began
	}
	a.Outcome, a.Error, a.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
}

// CopyState is a dataset at one target.
type CopyState struct {
	Target         string `json:"target"`                    // the dataset there
	EncryptionRoot string `json:"encryption_root,omitempty"` // there
	Base           string `json:"base,omitempty"`            // newest common snapshot, as the source names it
	There          string `json:"there,omitempty"`           // as the target does
	BaseGUID       uint64 `json:"base_guid,string,omitempty"`
	// Of is the GUID of the source's dataset that a mirror takes for the original of the
	// copy's snapshots; 0 = none was seen.
	Of     uint64 `json:"of,string,omitempty"`
	Held   []Held `json:"held,omitempty"`   // what may carry the target's hold: the base and, after a crash, others
	Moving bool   `json:"moving,omitempty"` // the holds are not known to be on the base, and on it alone
	// Sending is the createtxg on the source of the newest snapshot of streams
	// that are under way, or did not all arrive; 0 = none.
	Sending uint64  `json:"sending,omitempty"`
	Bytes   uint64  `json:"bytes"` // that the last run moved
	Seconds float64 `json:"seconds"`
	Attempt
}

// Held is a snapshot that the job holds for a target, on both sides, by full
// names; "" where it does not.
type Held struct {
	Source string `json:"source"`
	There  string `json:"there"`
}

// Arrival returns the state of a dataset at a target; it is made where there
// is none.
func (s *State) Arrival(source, target string) *CopyState {
	d := s.Dataset(source)
	if d.Targets[target] == nil {
		d.Targets[target] = &CopyState{}
	}
	return d.Targets[target]
}

// Alone returns the state of a dataset without a target; it is made where
// there is none.
func (s *State) Alone(source string) *LocalState {
	d := s.Dataset(source)
	if d.Alone == nil {
		d.Alone = &LocalState{}
	}
	return d.Alone
}

// Dataset returns the state of a dataset; it is made where there is none.
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

// Follow takes what is known of datasets over to their new names: what their
// targets have as base, and what is held for them, is the same.
func (s *State) Follow(datasets []*zfs.Dataset) {
	var byGUID map[uint64]string
	for _, d := range datasets {
		if known := s.Datasets[d.Name]; known != nil && known.GUID != 0 {
			continue
		}
		if byGUID == nil {
			byGUID = map[uint64]string{}
			for name, known := range s.Datasets {
				byGUID[known.GUID] = name
			}
		}
		before := byGUID[d.GUID]
		if before == "" || before == d.Name || d.GUID == 0 {
			continue
		}
		now := s.Dataset(d.Name)
		now.GUID, now.Past = d.GUID, s.Datasets[before].Past
		for target, was := range s.Datasets[before].Targets {
			a := *was
			a.EncryptionRoot = "" // is named after a dataset, too
			a.Held = nil
			for _, h := range was.Held {
				if snapshot, ok := strings.CutPrefix(h.Source, before+"@"); ok {
					h.Source = d.Name + "@" + snapshot
				}
				a.Held = append(a.Held, h)
			}
			now.Targets[target] = &a
		}
	}
}

// EndLocal notes how a run without targets ended. missed is why snapshots of datasets
// could not be taken; failed is why retention was not applied.
func (v *RunState) EndLocal(missed map[string]error, failed error) {
	for name := range v.Unchanged {
		v.State.Alone(name).Ended(v.Started, nil)
	}
	for _, d := range v.Source.Datasets {
		v.State.Dataset(d.Name).Identify(d)
		a := v.State.Alone(d.Name)
		a.Snapshot = ""
		for _, s := range d.Snapshots() {
			if v.Scope.Has(s.Name) {
				a.Snapshot = s.Name
			}
		}
		err := missed[d.Name]
		switch {
		case err != nil:
		case v.Scope.Naming() == nil: // all there is to do is retention
			err = failed
		case d.Inconsistent():
			err = fault.Refusef("resume the receive, or abort it: "+zfs.CommandLine([]string{"zfs", "receive", "-A", d.Name}),
				"a receive into it is under way, or was interrupted: no snapshot can be taken of it")
		}
		a.Ended(v.Started, err)
	}
}

// Forget drops what the job does not concern any more, so that status calls
// nothing late that nobody wants. What is held of it is stale: holds --gc.
func (v *RunState) Forget() {
	concerned := map[string]bool{}
	maps.Copy(concerned, v.Unchanged)
	for _, d := range v.Source.Datasets {
		concerned[d.Name] = true
	}
	for _, d := range v.Source.Datasets {
		if known := v.State.Datasets[d.Name]; known != nil {
			newest := "" // of the job's own
			for _, s := range d.Snapshots() {
				if _, own := v.Scope.Own(s.Name); own {
					newest = s.Name
				}
			}
			maps.DeleteFunc(known.Consistent, func(snapshot string, _ bool) bool {
				for _, a := range known.Targets {
					if a.Base == snapshot {
						return false
					}
				}
				return snapshot != newest
			})
		}
	}
	maps.DeleteFunc(v.State.Datasets, func(name string, _ *DatasetState) bool { return !concerned[name] })
	v.State.Orphans = slices.DeleteFunc(v.State.Orphans, func(g *Orphan) bool {
		return !slices.ContainsFunc(v.Job.Targets, func(t Target) bool { return t.Name == g.Target })
	})
	for source, d := range v.State.Datasets {
		maps.DeleteFunc(d.Targets, func(name string, _ *CopyState) bool {
			return v.Excluded[name][source] || !slices.ContainsFunc(v.Job.Targets, func(t Target) bool { return t.Name == name })
		})
		if len(v.Job.Targets) > 0 {
			d.Alone = nil
		}
	}
}
