package statedir

import (
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
)

// Run is a line of the log of runs.
type Run struct {
	Job       string       `json:"job"`
	Source    string       `json:"source"`
	Started   time.Time    `json:"started"`
	Ended     time.Time    `json:"ended"`
	Outcome   string       `json:"outcome"`
	Error     string       `json:"error,omitempty"` // of the whole run
	Hint      string       `json:"hint,omitempty"`
	Datasets  int          `json:"datasets"`  // on the source
	Snapshots int          `json:"snapshots"` // taken
	Pruned    int          `json:"pruned"`    // snapshots and bookmarks destroyed on the source
	Targets   []*TargetRun `json:"targets"`
	Notes     []string     `json:"notes,omitempty"`
	Paused    string       `json:"paused,omitempty"`  // the pause because of which the run sent nothing
	Skipped   bool         `json:"skipped,omitempty"` // the run did nothing because of the pause
	Stopped   bool         `json:"stopped,omitempty"` // a signal ended it; the next run resumes
	// Frozen are the applications to freeze for the snapshots.
	Frozen []Frozen `json:"frozen,omitempty"`
	// Damaged are the job's pools with data errors.
	Damaged []*Damage `json:"damaged,omitempty"`
}

// Frozen is the result of freezing an application.
type Frozen struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Datasets int    `json:"datasets"`
	freeze.Outcome
}

// Damage lists the data errors of a pool.
type Damage struct {
	Target string `json:"target,omitempty"` // name of the target, "" = the source
	Pool   string `json:"pool"`
	Errors uint64 `json:"errors"` // approximately the number that zpool status shows
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	// Repair states whether copies of the job can repair the errors: "yes", "partly", "no" or
	// "unknown"; "" = the job has no target. Why says why not all.
	Repair string   `json:"repair,omitempty"`
	Copies []string `json:"copies,omitempty"` // to repair from
	Why    string   `json:"why,omitempty"`
}

// Pool is the last query for the data errors of a job's pool.
type Pool struct {
	Name    string    `json:"name"`
	Asked   time.Time `json:"asked,omitzero"`    // start of the last run that asked
	Checked time.Time `json:"checked,omitzero"`  // start of the last run that got an answer
	Unknown string    `json:"unknown,omitempty"` // why the last query failed; "" = it succeeded
}

// TargetRun is the result of a run for one target.
type TargetRun struct {
	Target    string            `json:"target"` // name of the target
	To        string            `json:"to"`
	Outcome   string            `json:"outcome"`
	Error     string            `json:"error,omitempty"`
	Hint      string            `json:"hint,omitempty"`
	Bytes     uint64            `json:"bytes"`
	Seconds   float64           `json:"seconds"`
	Sent      int               `json:"sent"`
	Unchanged int               `json:"unchanged"`
	Failed    int               `json:"failed"`
	Held      int               `json:"held,omitempty"`   // datasets not sent because of Paused
	Paused    string            `json:"paused,omitempty"` // the pause or closed bandwidth window that stopped transfers
	Pruned    int               `json:"pruned"`
	Removed   int               `json:"removed_datasets,omitempty"` // destroyed orphans
	Datasets  []outcome.Dataset `json:"datasets,omitempty"`         // without datasets that had nothing to send
	// Disk is the state of the target's disk after the run, as in decide.DiskState; "" = no disk. If
	// the disk was away, Outcome is "".
	Disk      string    `json:"disk,omitempty"`
	DiskSince time.Time `json:"disk_since,omitzero"`
	// RefusedDisk reports that Error refuses the disk itself, so that the run did not touch it.
	RefusedDisk bool `json:"refused_disk,omitempty"`
}

// FailureText returns the number of datasets that failed, and of interrupted datasets if there are any.
func (t *TargetRun) FailureText() string {
	interrupted := 0
	for _, d := range t.Datasets {
		if d.Outcome == outcome.Interrupted {
			interrupted++
		}
	}
	text := fmt.Sprintf("%d failed", max(0, t.Failed-interrupted))
	if interrupted > 0 {
		text += fmt.Sprintf(", %d interrupted", interrupted)
	}
	return text
}

// FailDisk adds an error of the target's disk to the results of the transfer.
func (t *TargetRun) FailDisk(err error) {
	t.Outcome = outcome.Worst(t.Outcome, outcome.Of(err))
	if t.Error != "" {
		t.Error += "\n"
	}
	if t.Error += err.Error(); t.Hint == "" {
		t.Hint = fault.HintOf(err)
	}
}

// WithoutDatasets returns a copy without datasets.
func (r *Run) WithoutDatasets() *Run {
	brief := *r
	brief.Targets = nil
	for _, t := range r.Targets {
		short := *t
		short.Datasets = nil
		brief.Targets = append(brief.Targets, &short)
	}
	return &brief
}

// State is the state of a job after its last run.
type State struct {
	Job string `json:"job"`
	// LastRun has no datasets.
	LastRun *Run `json:"last_run,omitempty"`
	// Drills has its own file, because drills and runs may be concurrent.
	Drills DrillState `json:"-"`
	// DrillSince is the start of the first run with a schedule of drills. The first drill is due
	// after it.
	DrillSince time.Time `json:"drill_since,omitzero"`
	// Pools are the pools of the job by the name of the target; the source's has none.
	Pools map[string]*Pool `json:"pools,omitempty"`
	replicate.State
}

// Turn is Turn of the embedded state. It also turns Pools.
func (st *State) Turn(place string, since time.Time) {
	pools := map[string]*Pool{}
	for name, p := range st.Pools {
		pools[replicate.TurnedName(name, st.Place, place)] = p
	}
	st.Pools = pools
	st.State.Turn(place, since)
}

// NeededHolds returns a function that reports whether a job may need its hold for a target on a snapshot, by the full
// name. A hold that it does not need was left by a crash, or its dataset is outside the job now. Without a record of the
// copy, the hold may be the only protection of the common snapshot of an absent target: then it is needed.
func (st *State) NeededHolds(j *replicate.Job, t *replicate.Target) func(snapshot string) bool {
	held, unknown, known := map[string]bool{}, map[string]bool{}, false
	for source, d := range st.Datasets {
		a := d.Targets[t.Name]
		if a == nil {
			continue
		}
		if a.BaseGUID == 0 && a.Success.IsZero() {
			unknown[source], unknown[a.Target] = true, true
			if from, err := endpoint.Parse(j.Source); err == nil {
				unknown[t.CopyOf(from.Name, source)] = true
			}
			continue
		}
		known = true
		for _, h := range a.Held {
			held[h.Source], held[h.Target] = true, true
		}
	}
	for _, g := range st.OrphansAt(t.Name) {
		for _, h := range g.Held { // the hold by which the target host recognizes the orphan
			held[h] = held[h] || t.MirrorsDatasets()
		}
	}
	return func(snapshot string) bool {
		dataset, _, _ := strings.Cut(snapshot, "@")
		return st.LastRun == nil || !known || unknown[dataset] || held[snapshot]
	}
}
