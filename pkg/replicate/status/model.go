package status

import (
	"slices"
	"time"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
)

// Schema names the JSON format of the status. New versions only add fields.
const Schema = "zxfer.replicate.status/v1"

// Status is the state of all jobs of a file.
type Status struct {
	Schema string `json:"schema"`
	Late   bool   `json:"late"`   // any job is late
	Failed bool   `json:"failed"` // any job failed
	// Host is the name by which the job file selects this host's jobs.
	Host string       `json:"host,omitempty"`
	Jobs []*JobStatus `json:"jobs"`
}

// JobStatus is the state of a job. It is in groups for the reader; in JSON, all fields are of one object.
type JobStatus struct {
	Job    string `json:"job"`
	Source string `json:"source"`
	State  string `json:"state"` // the worst of its parts' states
	RunSchedule
	LastRunStatus
	Late bool `json:"late"`
	RunningStatus
	Verdict
	LeftCopies
	// Pools are the pools of the source and the targets.
	Pools []*PoolStatus `json:"pools,omitempty"`
	WaitStatus
	// Drill is nil if there was no drill and none is due.
	Drill    *DrillStatus     `json:"drill,omitempty"`
	Datasets []*DatasetStatus `json:"datasets"`

	unread error          // of reading the records
	of     *replicate.Job // in the direction of the records
}

// RunSchedule is the direction and the schedule of a job.
type RunSchedule struct {
	// Switched is when a fail over made a copy the source; zero: the direction is that of the job file.
	Switched time.Time `json:"switched,omitzero"`
	Schedule string    `json:"schedule,omitempty"`
	Next     time.Time `json:"next,omitzero"`
}

// LastRunStatus is the last run of a job.
type LastRunStatus struct {
	LastRun time.Time `json:"last_run,omitzero"`
	Seconds float64   `json:"seconds,omitempty"` // its duration
	Outcome string    `json:"outcome,omitempty"` // "" = never ran
	Error   string    `json:"error,omitempty"`   // of the run as a whole, or of reading the records
	Hint    string    `json:"hint,omitempty"`
}

// RunningStatus is what holds the lock of a job.
type RunningStatus struct {
	Running bool `json:"running,omitempty"` // a run, heal or prune holds the lock
	// RunningSince is the start of the run in progress, or zero if there is none.
	RunningSince time.Time `json:"running_since,omitzero"`
	// RunningCommand is the command that holds the lock, or "" if it is a run or unknown.
	RunningCommand string `json:"running_command,omitempty"`
}

// Verdict is what is wrong with a job.
type Verdict struct {
	// Failed reports that the last run failed in part, that its result is unknown, or that a pool
	// has data errors.
	Failed bool `json:"failed"`
	// Problems lists the reasons for a bad state, each once.
	Problems []*Problem `json:"problems"`
	// Lag is the largest lag of a dataset. Above LagWarning the job is late, above LagCritical it
	// missed a second run. It is 0 without a schedule.
	Lag         float64 `json:"lag_seconds"`
	LagWarning  float64 `json:"lag_warning_seconds,omitempty"`
	LagCritical float64 `json:"lag_critical_seconds,omitempty"`
}

// LeftCopies are the snapshots and copies that an administrator may have to handle.
type LeftCopies struct {
	// Untrusted counts the snapshots, on all sides, with dates that retention does not trust.
	Untrusted int `json:"doubted,omitempty"`
	// Diverged lists the diverged copies that were renamed and still exist.
	Diverged []DivergedStatus `json:"set_aside,omitempty"`
	// Orphans lists the copies of datasets that were deleted on the source.
	Orphans []OrphanStatus `json:"gone,omitempty"`
	// Lacking lists the copies that lack properties of their source, such as acltype.
	Lacking []LackingCopy `json:"lacking,omitempty"`
}

// WaitStatus is what transfers wait for.
type WaitStatus struct {
	// Pause is the pause in effect, or nil.
	Pause *PauseStatus `json:"pause,omitempty"`
	// Windows lists the targets to which a closed bandwidth window stops transfers now.
	Windows []ClosedWindow `json:"closed_windows,omitempty"`
	// Disks are the disks of targets that come and go.
	Disks []*DiskStatus `json:"disks,omitempty"`
}

// DatasetStatus is the state of one dataset at one target, or of the dataset alone if the job has
// no target.
type DatasetStatus struct {
	Source string `json:"source"`
	To     string `json:"to"`     // the target's name in the job file, "" without a target
	Target string `json:"target"` // dataset on the target
	State  string `json:"state"`
	// Outcome is the outcome of the last run, or "" if it succeeded.
	Outcome string `json:"outcome,omitempty"`
	Base    string `json:"base,omitempty"`
	// Consistent reports whether the dataset's applications were frozen for Base or Snapshot. It
	// is nil if no freeze was configured.
	Consistent *bool `json:"consistent,omitempty"`
	// Snapshot is the job's most recent snapshot, for a job without a target.
	Snapshot string `json:"snapshot,omitempty"`
	// Success is the start of the last run that brought the copy up to date. For a job without a
	// target, that run took a snapshot or found no changes.
	Success time.Time `json:"last_success,omitzero"`
	Lateness
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
	Hint    string  `json:"hint,omitempty"`

	lastBytes uint64 // sent by the last run; Bytes is of the last run that tried
}

// Lateness is whether a dataset is late.
type Lateness struct {
	// Lag is the number of seconds after the due time, or 0 before it. For a dataset that never
	// arrived, or that arrived in the future because of a wrong clock, it counts from the first
	// failed run since. If there was no run, the lag of a late dataset is unknown and 0.
	Lag  float64 `json:"lag_seconds"`
	Late bool    `json:"late"`
	// LateAfter is the deadline for the next arrival. It is zero without a schedule or if unknown.
	LateAfter time.Time `json:"late_after,omitzero"`

	// criticalAfter is when the dataset will also have missed a second scheduled run, or zero.
	criticalAfter time.Time
}

// DivergedStatus is a renamed copy, with the command that destroys it.
type DivergedStatus struct {
	replicate.DivergedCopy
	Destroy string `json:"destroy,omitempty"` // "" if the target is no longer in the job file
}

// LackingCopy is a copy that lacks properties of its source, because the last run could not set them.
type LackingCopy struct {
	To     string `json:"to"`     // the target's name in the job file
	Target string `json:"target"` // dataset on the target
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
}

// OrphanStatus is a copy of a dataset that was deleted on the source.
type OrphanStatus struct {
	Source string    `json:"source"`
	To     string    `json:"to"`     // the target's name in the job file
	Target string    `json:"target"` // dataset on the target
	Since  time.Time `json:"since"`
	Due    time.Time `json:"due,omitzero"` // earliest time at which zxfer may destroy it; zero = it is kept
}

// Summary counts jobs and their copies, which are pairs of a dataset and a target. Every output of a
// status uses it.
type Summary struct {
	Jobs, LateJobs, FailedJobs    int
	Copies, Healthy, Late, Failed int            // all, in state OK, late, and failed or refused in the last run
	Diverged, Orphans             int            // renamed copies, and copies of deleted datasets
	Lacking                       int            // copies that lack properties of their source
	States                        map[string]int // copies, and jobs without any, by state
}

// Summarize returns the summary of jobs.
func Summarize(jobs ...*JobStatus) *Summary {
	s := &Summary{Jobs: len(jobs), States: map[string]int{}}
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	for _, j := range jobs {
		count(&s.LateJobs, j.Late)
		count(&s.FailedJobs, j.Failed)
		s.Copies, s.Diverged, s.Orphans = s.Copies+len(j.Datasets), s.Diverged+len(j.Diverged), s.Orphans+len(j.Orphans)
		s.Lacking += len(j.Lacking)
		for _, d := range j.Datasets {
			count(&s.Healthy, d.State == OK)
			count(&s.Late, d.Late)
			count(&s.Failed, d.Outcome == outcome.Failed || d.Outcome == outcome.Refused)
			s.States[d.State]++
		}
		if len(j.Datasets) == 0 {
			s.States[j.State]++
		}
	}
	return s
}

// Shorten removes the datasets that are neither late nor failed.
func (s *Status) Shorten() {
	for _, j := range s.Jobs {
		j.Datasets = slices.DeleteFunc(j.Datasets, func(d *DatasetStatus) bool { return d.State == OK })
	}
}

// Problem is an error of a run. One error with several victims, such as an unreachable host, is
// one Problem.
type Problem struct {
	State    string   `json:"state"`
	To       []string `json:"to,omitempty"`       // target names; none: the whole run
	Datasets []string `json:"datasets,omitempty"` // source datasets; none: all
	Error    string   `json:"error"`
	Hint     string   `json:"hint,omitempty"`
}

// PauseStatus is a pause in effect.
type PauseStatus struct {
	Since         time.Time `json:"since"`
	Until         time.Time `json:"until,omitzero"` // zero = until resume
	TransfersOnly bool      `json:"transfers_only,omitempty"`
	Reason        string    `json:"reason,omitempty"`
	By            string    `json:"by,omitempty"`
	All           bool      `json:"all,omitempty"` // all jobs are paused
	// Forgotten means that the pause lasts longer than a week and has no end.
	Forgotten bool `json:"forgotten,omitempty"`
}

// Text describes the pause.
func (p *PauseStatus) Text(stamp func(time.Time) string) string {
	d := decide.Pause{Since: p.Since, Until: p.Until, TransfersOnly: p.TransfersOnly, Reason: p.Reason, By: p.By}
	text := d.Text(stamp)
	if p.Forgotten {
		text += ", since " + stamp(p.Since)
	}
	return text
}

// ClosedWindow is a target whose bandwidth is 0 now.
type ClosedWindow struct {
	To    string    `json:"to"`
	Until time.Time `json:"until"`
}
