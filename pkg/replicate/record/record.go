package record

import (
	"time"

	"zxfer/pkg/replicate"
)

// Outcomes of a run, of a target and of a dataset.
const (
	Done        = "done"
	UpToDate    = "up-to-date"
	Failed      = "failed"
	Refused     = "refused"     // a rule said no; nothing was changed
	Interrupted = "interrupted" // the next run resumes
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

// State is what is known of a job's datasets after its last run.
type State struct {
	Job string `json:"job"`
	// LastRun is the last run as a whole, without its datasets.
	LastRun *Run `json:"last_run,omitempty"`
	// Datasets are those of the source, by name.
	Datasets map[string]*Dataset `json:"datasets"`
}

// Dataset is one dataset of the source.
type Dataset struct {
	GUID           uint64 `json:"guid,string"`
	EncryptionRoot string `json:"encryption_root,omitempty"`
	// Pruned tells, by side, what retention found nothing more to remove of:
	// while that is the same there is no need to ask again.
	Pruned map[string]string `json:"pruned,omitempty"`
	// Past is what retention learnt of its snapshots, by side.
	Past map[string]*replicate.History `json:"past,omitempty"`
	// Targets is where it is, by the target's name in the job file.
	Targets map[string]*Arrival `json:"targets"`
	// Alone is how it stands where its job has no target, else nil.
	Alone *Alone `json:"alone,omitempty"`
}

// Alone is a dataset of a job without a target.
type Alone struct {
	Snapshot string `json:"snapshot,omitempty"` // the newest that concerns the job
	// Success is the begin of the last run that took a snapshot of it, or found
	// nothing new in it to take one of; of a job that takes none, of the last
	// one that applied its retention.
	Success time.Time `json:"success,omitzero"`
	Tried   time.Time `json:"tried"`           // begin of the last run
	Error   string    `json:"error,omitempty"` // of the last run, "" where it succeeded
	Hint    string    `json:"hint,omitempty"`
}

// Arrival is a dataset at one target.
type Arrival struct {
	Target         string `json:"target"`                    // the dataset there
	EncryptionRoot string `json:"encryption_root,omitempty"` // there
	Base           string `json:"base,omitempty"`            // newest common snapshot, as the source names it
	There          string `json:"there,omitempty"`           // as the target does
	BaseGUID       uint64 `json:"base_guid,string,omitempty"`
	Held           []Held `json:"held,omitempty"`   // what may carry the target's hold: the base and, after a crash, others
	Moving         bool   `json:"moving,omitempty"` // the holds are not known to be on the base, and on it alone
	// Sending is the createtxg on the source of the newest snapshot of streams
	// that are under way, or did not all arrive; 0 = none.
	Sending uint64    `json:"sending,omitempty"`
	Success time.Time `json:"success,omitzero"` // begin of the last run that succeeded
	Tried   time.Time `json:"tried"`            // begin of the last run
	Bytes   uint64    `json:"bytes"`            // that the last run moved
	Seconds float64   `json:"seconds"`
	Error   string    `json:"error,omitempty"` // of the last run, "" where it succeeded
	Hint    string    `json:"hint,omitempty"`
}

// Held is a snapshot that the job holds for a target, on both sides, by full
// names; "" where it does not.
type Held struct {
	Source string `json:"source"`
	There  string `json:"there"`
}

// Arrival returns the state of a dataset at a target; it is made where there
// is none.
func (s *State) Arrival(source, target string) *Arrival {
	d := s.Dataset(source)
	if d.Targets[target] == nil {
		d.Targets[target] = &Arrival{}
	}
	return d.Targets[target]
}

// Alone returns the state of a dataset without a target; it is made where
// there is none.
func (s *State) Alone(source string) *Alone {
	d := s.Dataset(source)
	if d.Alone == nil {
		d.Alone = &Alone{}
	}
	return d.Alone
}

// Dataset returns the state of a dataset; it is made where there is none.
func (s *State) Dataset(source string) *Dataset {
	d := s.Datasets[source]
	if d == nil {
		d = &Dataset{Targets: map[string]*Arrival{}}
		s.Datasets[source] = d
	}
	if d.Targets == nil {
		d.Targets = map[string]*Arrival{}
	}
	return d
}
