package runner

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/record"
)

// StatusSchema names the shape of status' JSON. Fields are only ever added.
const StatusSchema = "zxfer.replicate.status/v1"

// defaultGrace is how long after it was due a dataset may arrive.
const defaultGrace = 15 * time.Minute

// Status is how all jobs of a file stand.
type Status struct {
	Schema string       `json:"schema"`
	Late   bool         `json:"late"` // any job is
	Jobs   []*JobStatus `json:"jobs"`
}

// JobStatus is how a job stands.
type JobStatus struct {
	Job      string    `json:"job"`
	Source   string    `json:"source"`
	Schedule string    `json:"schedule,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	LastRun  time.Time `json:"last_run,omitzero"`
	Seconds  float64   `json:"seconds,omitempty"` // that the last run took
	Outcome  string    `json:"outcome,omitempty"` // "" = it never ran
	Error    string    `json:"error,omitempty"`
	Hint     string    `json:"hint,omitempty"`
	Late     bool      `json:"late"`
	// Doubted is how many snapshots, on all sides, have dates that retention does
	// not believe.
	Doubted  int              `json:"doubted,omitempty"`
	Datasets []*DatasetStatus `json:"datasets"`
}

// DatasetStatus is how one dataset stands at one target, or on its own where
// the job has none.
type DatasetStatus struct {
	Source string `json:"source"`
	To     string `json:"to"`     // the target's name in the job file, "" without a target
	Target string `json:"target"` // the dataset there
	Base   string `json:"base,omitempty"`
	// Snapshot is the newest one that concerns the job, without a target.
	Snapshot string `json:"snapshot,omitempty"`
	// Success is the begin of the last run that brought it up to date; without a
	// target, that took a snapshot of it or found nothing new in it.
	Success time.Time `json:"last_success,omitzero"`
	// Lag is how many seconds it is past its due time, 0 if it is not. A dataset
	// with none that is late never arrived, or did so in the future: what the
	// clock says then, or now, is wrong.
	Lag     float64 `json:"lag_seconds"`
	Late    bool    `json:"late"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
	Hint    string  `json:"hint,omitempty"`
}

// StatusOf reads how jobs stand. It changes nothing and reaches no host.
func StatusOf(jobs []*replicate.Job, stateDir string, now time.Time) (*Status, error) {
	s := &Status{Schema: StatusSchema, Jobs: []*JobStatus{}}
	for _, j := range jobs {
		st, err := record.Peek(stateDir, j.Name).State()
		if err != nil {
			return nil, err
		}
		js := statusOf(j, st, now)
		s.Jobs = append(s.Jobs, js)
		s.Late = s.Late || js.Late
	}
	return s, nil
}

// Shorten leaves out the datasets that are neither late nor failed.
func (s *Status) Shorten() {
	for _, j := range s.Jobs {
		j.Datasets = slices.DeleteFunc(j.Datasets, func(d *DatasetStatus) bool { return !d.Late && d.Error == "" })
	}
}

func statusOf(j *replicate.Job, st *record.State, now time.Time) *JobStatus {
	js := &JobStatus{Job: j.Name, Source: j.Source, Schedule: j.Schedule, Datasets: []*DatasetStatus{}}
	var event *calendar.Event
	if e, err := calendar.Parse(j.Schedule); err == nil { // "" is none
		event = e
		js.Next, _ = e.Next(now)
	}
	if r := st.LastRun; r != nil {
		js.LastRun, js.Outcome, js.Error, js.Hint = r.Started, r.Outcome, r.Error, r.Hint
		js.Seconds = r.Ended.Sub(r.Started).Seconds()
	}
	grace := cmp.Or(time.Duration(j.Grace), defaultGrace) + time.Duration(j.Jitter)
	// A job that has a schedule and never arrived anywhere is late: its timer
	// may not be there.
	js.Late = event != nil
	add := func(d *DatasetStatus) {
		d.lateness(event, grace, now)
		js.Datasets = append(js.Datasets, d)
	}
	for _, source := range slices.Sorted(maps.Keys(st.Datasets)) {
		for _, h := range st.Datasets[source].Past {
			js.Doubted += h.Doubts()
		}
		if a := st.Datasets[source].Alone; a != nil {
			add(&DatasetStatus{Source: source, Snapshot: a.Snapshot, Success: a.Success, Error: a.Error, Hint: a.Hint})
		}
		for _, target := range slices.Sorted(maps.Keys(st.Datasets[source].Targets)) {
			a := st.Datasets[source].Targets[target]
			add(&DatasetStatus{Source: source, To: target, Target: a.Target, Base: a.Base, Success: a.Success,
				Bytes: a.Bytes, Seconds: a.Seconds, Error: a.Error, Hint: a.Hint})
		}
	}
	if len(js.Datasets) > 0 {
		js.Late = slices.ContainsFunc(js.Datasets, func(d *DatasetStatus) bool { return d.Late })
	}
	return js
}

// lateness compares the last success with when the next one was due.
func (d *DatasetStatus) lateness(event *calendar.Event, grace time.Duration, now time.Time) {
	if event == nil {
		return
	}
	if d.Success.IsZero() || d.Success.After(now.Add(grace)) { // or the clock was wrong then, or is now
		d.Late = true
		return
	}
	// In the zone of now: the schedule means the host's clock.
	due, ok := event.Next(d.Success.In(now.Location()))
	if !ok || !now.After(due) {
		return
	}
	d.Lag = now.Sub(due).Seconds()
	d.Late = now.After(due.Add(grace))
}
