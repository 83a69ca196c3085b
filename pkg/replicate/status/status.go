package status

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
)

// Schema names the JSON format of the status. New versions only add fields.
const Schema = "zxfer.replicate.status/v1"

// Normalize makes the state, Late and Failed of a job consistent with its parts. A status from
// another host may contradict itself or have unknown words.
func (j *JobStatus) Normalize() {
	late := func(late bool) string {
		if late {
			return Late
		}
		return OK
	}
	j.Late = j.Late || j.LagWarning > 0 && j.Lag > j.LagWarning
	state := worst(j.State, late(j.Late))
	for _, d := range j.Datasets {
		d.State = worst(d.State, late(d.Late), stateOf(d.Outcome))
		state = worst(state, d.State)
	}
	for _, p := range j.Problems {
		state = worst(state, p.State)
	}
	for _, p := range j.Pools {
		if p.State != OK && p.State != Unknown {
			p.State = Damaged
			state = worst(state, Damaged)
		}
	}
	if d := j.Drill; d != nil {
		d.Late = d.Late || d.Warning > 0 && d.Age > d.Warning
		j.Late = j.Late || d.Late
		state = worst(state, d.State())
	}
	if j.Failed && state == OK {
		state = outcome.Failed
	}
	j.State, j.Late = state, j.Late || state == Late
	j.Failed = j.Failed || state != OK && state != Unknown && state != Late
}

// Status is the state of all jobs of a file.
type Status struct {
	Schema string `json:"schema"`
	Late   bool   `json:"late"`   // any job is late
	Failed bool   `json:"failed"` // any job failed
	// Host is the name by which the job file selects this host's jobs.
	Host string       `json:"host,omitempty"`
	Jobs []*JobStatus `json:"jobs"`
}

// JobStatus is the state of a job.
type JobStatus struct {
	Job    string `json:"job"`
	Source string `json:"source"`
	State  string `json:"state"` // the worst of its parts' states
	// Standby reports that a fail over made the source a copy. The job does not run, so it has no
	// datasets and is not late.
	Standby  bool      `json:"standby,omitempty"`
	Schedule string    `json:"schedule,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	LastRun  time.Time `json:"last_run,omitzero"`
	Seconds  float64   `json:"seconds,omitempty"` // duration of the last run
	Outcome  string    `json:"outcome,omitempty"` // "" = never ran
	Error    string    `json:"error,omitempty"`   // of the last run as a whole, or of reading the records
	Hint     string    `json:"hint,omitempty"`
	Late     bool      `json:"late"`
	Running  bool      `json:"running,omitempty"` // a run, heal or prune holds the job's lock
	// RunningSince is the start of the run in progress, or zero if there is none.
	RunningSince time.Time `json:"running_since,omitzero"`
	// RunningCommand is the command that holds the lock, or "" if it is a run or unknown.
	RunningCommand string `json:"running_command,omitempty"`
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
	// Untrusted counts the snapshots, on all sides, with dates that retention does not trust.
	Untrusted int `json:"doubted,omitempty"`
	// Diverged lists the diverged copies that were renamed and still exist.
	Diverged []DivergedStatus `json:"set_aside,omitempty"`
	// Orphans lists the copies of datasets that were deleted on the source.
	Orphans []OrphanStatus `json:"gone,omitempty"`
	// Lacking lists the copies that lack properties of their source, such as acltype.
	Lacking []LackingCopy `json:"lacking,omitempty"`
	// Pools are the pools of the source and the targets.
	Pools []*PoolStatus `json:"pools,omitempty"`
	// Pause is the pause in effect, or nil.
	Pause *PauseStatus `json:"pause,omitempty"`
	// Windows lists the targets to which a closed bandwidth window stops transfers now.
	Windows []ClosedWindow `json:"closed_windows,omitempty"`
	// Disks are the disks of targets that come and go.
	Disks []*DiskStatus `json:"disks,omitempty"`
	// Drill is nil if there was no drill and none is due.
	Drill    *DrillStatus     `json:"drill,omitempty"`
	Datasets []*DatasetStatus `json:"datasets"`
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
	// Lag is the number of seconds after the due time, or 0 before it. For a dataset that never
	// arrived, or that arrived in the future because of a wrong clock, it counts from the first
	// failed run since. If there was no run, the lag of a late dataset is unknown and 0.
	Lag  float64 `json:"lag_seconds"`
	Late bool    `json:"late"`
	// LateAfter is the deadline for the next arrival. It is zero without a schedule or if unknown.
	LateAfter time.Time `json:"late_after,omitzero"`
	Bytes     uint64    `json:"bytes"`
	Seconds   float64   `json:"seconds"`
	Error     string    `json:"error,omitempty"`
	Hint      string    `json:"hint,omitempty"`
}

// DivergedStatus is a renamed copy, with the command that destroys it.
type DivergedStatus struct {
	replicate.DivergedCopy
	Destroy string `json:"destroy,omitempty"` // "" if the target is no longer in the job file
}

func divergedOf(j *replicate.Job, st *statedir.State) (out []DivergedStatus) {
	for _, d := range st.Diverged {
		s := DivergedStatus{DivergedCopy: d}
		for i := range j.Targets {
			t := &j.Targets[i]
			if to, err := endpoint.Parse(t.To); err == nil && t.Name == d.Target {
				s.Destroy = remedy.Host{Name: to.Host, Shell: j.TransferTo(t).RSH}.Command("zfs", "destroy", "-r", d.As)
			}
		}
		out = append(out, s)
	}
	return out
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

// Of reads the status of jobs from their records. It changes nothing and connects to no
// host. An unreadable record affects only its own job.
//
// since returns when the schedule of a job took effect, for jobs that never ran. It may be nil or
// return the zero time if that is unknown.
func Of(jobs []*replicate.Job, stateDir string, now time.Time, since func(job string) time.Time) *Status {
	s := &Status{Schema: Schema, Jobs: []*JobStatus{}}
	for _, j := range jobs {
		store := statedir.Peek(stateDir, j.Name)
		st, err := store.FullState()
		w := statusTimes{now: now, run: store.Run()}
		var unreadable error
		w.pause, unreadable = statedir.Paused(stateDir, j.Name, now)
		err = cmp.Or(err, unreadable)
		if since != nil {
			w.since = since(j.Name)
		}
		js := statusOf(j, cmp.Or(st, &statedir.State{}), w)
		js.Running, js.RunningSince, js.RunningCommand = store.Running(), w.run, store.Holder()
		if js.Drill != nil {
			js.Drill.Running = store.Drilling()
		}
		if err != nil {
			js.unreadable(err)
		}
		s.Jobs = append(s.Jobs, js)
		s.Late, s.Failed = s.Late || js.Late, s.Failed || js.Failed
	}
	return s
}

// unreadable marks the state of a job as unknown because of err.
func (j *JobStatus) unreadable(err error) {
	j.State, j.Late, j.Failed, j.Error, j.Hint = Unknown, false, true, err.Error(), fault.HintOf(err)
	if errors.Is(err, fs.ErrPermission) {
		j.Hint = "run it as root or as the job's user"
	}
	j.Problems = []*Problem{{State: Unknown, Error: j.Error, Hint: j.Hint}}
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

// statusTimes holds the times that the status of a job depends on, except those in its records.
type statusTimes struct {
	now   time.Time
	run   time.Time // start of the run in progress, zero if there is none
	since time.Time // when the schedule took effect, zero if unknown
	pause *decide.Pause
}

// longRun is how long a run in progress keeps its job from being late.
const longRun = 24 * time.Hour

func statusOf(j *replicate.Job, st *statedir.State, w statusTimes) *JobStatus {
	now := w.judgedAt()
	js := &JobStatus{Job: j.Name, Source: j.Source, Schedule: j.Schedule, State: Unknown, Problems: []*Problem{}, Datasets: []*DatasetStatus{}}
	if j.Standby {
		js.Standby, js.State, js.Schedule = true, OK, ""
		return js
	}
	due := deadline{now: now, grace: cmp.Or(time.Duration(j.Grace), defaultGrace) + time.Duration(j.Jitter), pause: w.pause, active: w.pause.State(w.now).Active()}
	if e, err := calendar.Parse(j.Schedule); err == nil { // "" is not a schedule
		due.event = e
		js.Next, _ = e.Next(w.now)
	}
	last := st.LastRun
	if last != nil {
		js.LastRun, js.Outcome, js.Error, js.Hint = last.Started, last.Outcome, last.Error, last.Hint
		js.Seconds, js.State = last.Ended.Sub(last.Started).Seconds(), stateOf(last.Outcome)
	}
	// A job with a schedule whose datasets never arrived is late: its timer may be missing.
	js.Late = due.event != nil && !due.active
	js.Pause, js.Windows = pauseStatusOf(w.pause, w.now), closedWindows(j, w.now)
	js.LagWarning, js.LagCritical = due.levels(now)
	if last == nil && len(st.Datasets) == 0 {
		due.neverRan(js, w.since)
	}
	var silent []string // datasets of a relay that get no new snapshots
	add := func(d *DatasetStatus, a *replicate.Attempt) {
		if proved, known := st.Datasets[d.Source].Consistent[cmp.Or(d.Base, d.Snapshot)]; known {
			d.Consistent = &proved
		}
		d.Success = a.Success
		d.Outcome, d.Error, d.Hint = outcomeOf(a, last)
		d.State = stateOf(d.Outcome)
		if t := j.DiskTarget(d.To); t != nil {
			judgeDisk(d, a, t, st.Disks[d.To], &due)
		} else {
			at := due.forTarget(j, d.To)
			if from := at.judge(d, a); d.Lag > js.Lag {
				js.Lag = d.Lag
				js.LagWarning, js.LagCritical = at.levels(from)
			}
		}
		if js.judgeReceived(d, j, st.Datasets[d.Source].Received, due.forTarget(j, d.To)) && !slices.Contains(silent, d.Source) {
			silent = append(silent, d.Source)
		}
		js.Datasets = append(js.Datasets, d)
	}
	for _, source := range slices.Sorted(maps.Keys(st.Datasets)) {
		known := st.Datasets[source]
		for _, h := range known.Histories {
			js.Untrusted += h.CountUntrusted()
		}
		if a := known.Local; a != nil {
			add(&DatasetStatus{Source: source, Snapshot: a.Snapshot}, &a.Attempt)
		}
		for _, target := range slices.Sorted(maps.Keys(known.Targets)) {
			a := known.Targets[target]
			if a.Lacks != "" {
				js.Lacking = append(js.Lacking, LackingCopy{To: target, Target: a.Target, Error: a.Lacks, Hint: a.LacksHint})
			}
			add(&DatasetStatus{Source: source, To: target, Target: a.Target, Base: a.Base, Bytes: a.Bytes, Seconds: a.Seconds}, &a.Attempt)
		}
	}
	js.Diverged, js.Orphans, js.Pools = divergedOf(j, st), orphansOf(j, st), poolsOf(j, st)
	if len(js.Datasets) > 0 {
		js.Late = slices.ContainsFunc(js.Datasets, func(d *DatasetStatus) bool { return d.Late })
	}
	js.Problems = problems(last, js.Datasets)
	js.Failed = len(js.Problems) > 0
	js.addDrills(drillStatusOf(j, st, w.now, w.pause))
	js.addDisks(disksOf(j, st, &due))
	js.judgeRuns(j, last, &due)
	js.addSilence(j, st, silent)
	js.Normalize()
	return js
}

// judgedAt returns the time at which lateness is judged: during a run its start, as the run brings
// what is due, unless it takes longer than longRun.
func (w statusTimes) judgedAt() time.Time {
	if !w.run.IsZero() && w.run.Before(w.now) && w.now.Sub(w.run) < longRun {
		return w.run
	}
	return w.now
}

// orphansOf returns the orphans of a job.
func orphansOf(j *replicate.Job, st *statedir.State) (all []OrphanStatus) {
	for _, g := range st.Orphans {
		s := OrphanStatus{Source: g.Source, To: g.Target, Target: g.Dataset, Since: g.Since}
		for i := range j.Targets {
			if j.Targets[i].Name == g.Target {
				s.Due = g.Due(&j.Targets[i])
			}
		}
		all = append(all, s)
	}
	return all
}

// outcomeOf returns the outcome of a dataset in the last run, with error and hint, or "" if it
// succeeded.
func outcomeOf(a *replicate.Attempt, last *statedir.Run) (ended, why, hint string) {
	if last != nil && a.Tried.Before(last.Started) {
		reached := slices.ContainsFunc(last.Targets, func(t *statedir.TargetRun) bool { return t.Outcome != "" })
		if last.Error != "" && !reached { // the run ended before it reached any target
			return last.Outcome, last.Error, last.Hint
		}
		return "", "", "" // nothing to send
	}
	if a.Error != "" && a.Outcome == "" { // a record of an older version
		return outcome.Failed, a.Error, a.Hint
	}
	return a.Outcome, a.Error, a.Hint
}
