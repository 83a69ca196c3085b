package record

import (
	"time"

	"zxfer/pkg/replicate"
)

// Run is one run of a job: a line of the log.
type Run struct {
	Job       string       `json:"job"`
	Source    string       `json:"source"`
	Started   time.Time    `json:"started"`
	Ended     time.Time    `json:"ended"`
	Outcome   string       `json:"outcome"`
	Error     string       `json:"error,omitempty"` // of what concerned the whole run
	Hint      string       `json:"hint,omitempty"`
	Datasets  int          `json:"datasets"`  // of the source
	Snapshots int          `json:"snapshots"` // that the run took
	Pruned    int          `json:"pruned"`    // snapshots and bookmarks destroyed on the source
	Targets   []*TargetRun `json:"targets"`
	Notes     []string     `json:"notes,omitempty"`
}

// TargetRun is a run's part for one target.
type TargetRun struct {
	Target    string       `json:"target"` // its name in the job file
	To        string       `json:"to"`
	Outcome   string       `json:"outcome"`
	Error     string       `json:"error,omitempty"`
	Hint      string       `json:"hint,omitempty"`
	Bytes     uint64       `json:"bytes"`
	Seconds   float64      `json:"seconds"`
	Sent      int          `json:"sent"`
	Unchanged int          `json:"unchanged"`
	Failed    int          `json:"failed"`
	Pruned    int          `json:"pruned"`
	Datasets  []DatasetRun `json:"datasets,omitempty"` // without those that had nothing to send
}

// DatasetRun is a run's part for one dataset.
type DatasetRun struct {
	Source   string  `json:"source"`
	Target   string  `json:"target"`
	Snapshot string  `json:"snapshot,omitempty"` // that arrived, or was to
	Streams  int     `json:"streams,omitempty"`
	Full     int     `json:"full,omitempty"` // of the streams, those without a base
	Bytes    uint64  `json:"bytes,omitempty"`
	Seconds  float64 `json:"seconds,omitempty"`
	Outcome  string  `json:"outcome"`
	Conflict string  `json:"conflict,omitempty"` // id, where the plan refused it
	Error    string  `json:"error,omitempty"`
	Hint     string  `json:"hint,omitempty"`
}

// State is what is known of a job after its last run.
type State struct {
	Job string `json:"job"`
	// LastRun is the last run as a whole, without its datasets.
	LastRun *Run `json:"last_run,omitempty"`
	replicate.State
}
