package runner

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/statedir"
)

// StatusSchema names the shape of status' JSON. Fields are only ever added.
const StatusSchema = "zxfer.replicate.status/v1"

// defaultGrace is how long after it was due a dataset may arrive.
const defaultGrace = 15 * time.Minute

// How a job or a dataset stands, in one word, is one of these, or of outcome's
// Interrupted, Refused and Failed, which its last run ended with, or record.Unproved.
const (
	OK      = "ok"      // the last run succeeded, or none is due yet, and none is late
	Unknown = "unknown" // it has no schedule and never ran, or its records cannot be read
	Late    = "late"
	Damaged = "damaged" // a pool has data errors
)

// ranks are the states, the worst last.
func ranks() []string {
	return []string{OK, Unknown, outcome.Interrupted, statedir.Unproved, Damaged, Late, outcome.Refused, outcome.Failed}
}

// Rank orders states, the worst highest; a word of none of them, in records that are
// another's, is the worst.
func Rank(state string) int {
	if at := slices.Index(ranks(), state); at >= 0 {
		return at
	}
	return len(ranks()) - 1
}

// worst is the state of a whole whose parts have these.
func worst(parts ...string) string {
	at := 0
	for _, p := range parts {
		at = max(at, Rank(p))
	}
	return ranks()[at]
}

// stateOf is the state that the outcome of a run is.
func stateOf(ended string) string {
	if ended == "" || ended == outcome.Done || ended == outcome.UpToDate {
		return OK
	}
	return worst(ended)
}

// Settle makes one of all that is said of a job: its state is the worst of its parts',
// and what it says of being late or failed goes with that. What another host said may
// contradict itself, or have words that this version does not know.
func (j *JobStatus) Settle() {
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

// Status is how all jobs of a file stand.
type Status struct {
	Schema string `json:"schema"`
	Late   bool   `json:"late"`   // any job is
	Failed bool   `json:"failed"` // any job has
	// Host is by what name this host takes its part of the job file.
	Host string       `json:"host,omitempty"`
	Jobs []*JobStatus `json:"jobs"`
}

// JobStatus is how a job stands.
type JobStatus struct {
	Job      string    `json:"job"`
	Source   string    `json:"source"`
	State    string    `json:"state"` // the worst of its last run's and its datasets'
	Schedule string    `json:"schedule,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	LastRun  time.Time `json:"last_run,omitzero"`
	Seconds  float64   `json:"seconds,omitempty"` // that the last run took
	Outcome  string    `json:"outcome,omitempty"` // "" = it never ran
	Error    string    `json:"error,omitempty"`   // of the last run as a whole, or why the records cannot be read
	Hint     string    `json:"hint,omitempty"`
	Late     bool      `json:"late"`
	Running  bool      `json:"running,omitempty"` // a run is in progress, or a heal or prune, which keeps runs away
	// RunningSince is the begin of the run in progress, zero if there is none.
	RunningSince time.Time `json:"running_since,omitzero"`
	// RunningCommand is the command that keeps runs away, "" if it is a run or unknown.
	RunningCommand string `json:"running_command,omitempty"`
	// Failed tells that the last run did not bring all to an end, that nobody can tell,
	// or that a pool has data errors.
	Failed bool `json:"failed"`
	// Problems are why, each once, whatever it befell.
	Problems []*Problem `json:"problems"`
	// Lag is that of the dataset with most of it; more than LagWarning is late, more
	// than LagCritical is a second run that was missed. 0 = there is no schedule.
	Lag         float64 `json:"lag_seconds"`
	LagWarning  float64 `json:"lag_warning_seconds,omitempty"`
	LagCritical float64 `json:"lag_critical_seconds,omitempty"`
	// Doubted is how many snapshots, on all sides, have dates that retention does
	// not believe.
	Doubted int `json:"doubted,omitempty"`
	// Aside are the copies that were set aside, as they diverged, and are still there.
	Aside []replicate.DivergedCopy `json:"set_aside,omitempty"`
	// Gone are the copies whose originals the source no longer has.
	Gone []GoneStatus `json:"gone,omitempty"`
	// Drill is how the copies stood in drills, nil where there was none and none is due.
	Drill    *DrillStatus     `json:"drill,omitempty"`
	Datasets []*DatasetStatus `json:"datasets"`
}

// DatasetStatus is how one dataset stands at one target, or on its own where
// the job has none.
type DatasetStatus struct {
	Source string `json:"source"`
	To     string `json:"to"`     // the target's name in the job file, "" without a target
	Target string `json:"target"` // the dataset there
	State  string `json:"state"`
	// Outcome is that of the last run, "" where it succeeded; Error and Hint say why.
	Outcome string `json:"outcome,omitempty"`
	Base    string `json:"base,omitempty"`
	// Consistent tells whether the dataset's applications are proved to have stood still
	// for Base, or Snapshot; nil where none was to.
	Consistent *bool `json:"consistent,omitempty"`
	// Snapshot is the newest one that concerns the job, without a target.
	Snapshot string `json:"snapshot,omitempty"`
	// Success is the begin of the last run that brought it up to date; without a
	// target, that took a snapshot of it or found nothing new in it.
	Success time.Time `json:"last_success,omitzero"`
	// Lag is how many seconds it is past its due time, 0 if it is not. Of a dataset that
	// never arrived, or did so in the future (what the clock says then, or now, is wrong),
	// it is counted from the first run that tried since; one with none that is late was not
	// tried, and nobody can tell.
	Lag  float64 `json:"lag_seconds"`
	Late bool    `json:"late"`
	// LateAfter is when it is late unless it arrives before; zero without a schedule, or
	// where nobody can tell.
	LateAfter time.Time `json:"late_after,omitzero"`
	Bytes     uint64    `json:"bytes"`
	Seconds   float64   `json:"seconds"`
	Error     string    `json:"error,omitempty"`
	Hint      string    `json:"hint,omitempty"`
}

// GoneStatus is a copy whose original is gone.
type GoneStatus struct {
	Source string    `json:"source"`
	To     string    `json:"to"`     // the target's name in the job file
	Target string    `json:"target"` // the dataset there
	Since  time.Time `json:"since"`
	Due    time.Time `json:"due,omitzero"` // when it may go at the soonest; zero = it is kept
}

// goneOf are those of a job.
func goneOf(j *replicate.Job, st *statedir.State) (all []GoneStatus) {
	for _, g := range st.Orphans {
		s := GoneStatus{Source: g.Source, To: g.Target, Target: g.Dataset, Since: g.Since}
		for i := range j.Targets {
			if j.Targets[i].Name == g.Target {
				s.Due = g.Due(&j.Targets[i])
			}
		}
		all = append(all, s)
	}
	return all
}

// StatusOf reads the status of jobs. It changes nothing and reaches no host. If the records
// of one job cannot be read, it still returns the others.
//
// since returns when the schedule of a job began to apply, for jobs that never ran. It may
// be nil, and may return the zero time, if that is unknown.
func StatusOf(jobs []*replicate.Job, stateDir string, now time.Time, since func(job string) time.Time) *Status {
	s := &Status{Schema: StatusSchema, Jobs: []*JobStatus{}}
	for _, j := range jobs {
		store := statedir.Peek(stateDir, j.Name)
		st, err := store.Standing()
		w := when{now: now, run: store.Run()}
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

// unreadable notes that nobody can tell how the job stands.
func (j *JobStatus) unreadable(err error) {
	j.State, j.Late, j.Failed, j.Error, j.Hint = Unknown, false, true, err.Error(), fault.HintOf(err)
	if errors.Is(err, fs.ErrPermission) {
		j.Hint = "root may read it, and the job's user"
	}
	j.Problems = []*Problem{{State: Unknown, Error: j.Error, Hint: j.Hint}}
}

// Shorten leaves out the datasets that are neither late nor failed.
func (s *Status) Shorten() {
	for _, j := range s.Jobs {
		j.Datasets = slices.DeleteFunc(j.Datasets, func(d *DatasetStatus) bool { return d.State == OK })
	}
}

// when holds the times that the status of a job depends on, except those of its records.
type when struct {
	now   time.Time
	run   time.Time // begin of the run in progress, zero if there is none
	since time.Time // when the schedule began to apply, zero if that is unknown
}

// longRun is how long a run in progress keeps its job from becoming late.
const longRun = 24 * time.Hour

// judged returns the time at which lateness is judged: during a run, its begin, as the run
// brings what is due. A run that takes longer than longRun does not count.
func (w when) judged() time.Time {
	if !w.run.IsZero() && w.run.Before(w.now) && w.now.Sub(w.run) < longRun {
		return w.run
	}
	return w.now
}

func statusOf(j *replicate.Job, st *statedir.State, w when) *JobStatus {
	now := w.judged()
	js := &JobStatus{Job: j.Name, Source: j.Source, Schedule: j.Schedule, State: Unknown, Problems: []*Problem{}, Datasets: []*DatasetStatus{}}
	due := deadline{now: now, grace: cmp.Or(time.Duration(j.Grace), defaultGrace) + time.Duration(j.Jitter)}
	if e, err := calendar.Parse(j.Schedule); err == nil { // "" is none
		due.event = e
		js.Next, _ = e.Next(w.now)
	}
	last := st.LastRun
	if last != nil {
		js.LastRun, js.Outcome, js.Error, js.Hint = last.Started, last.Outcome, last.Error, last.Hint
		js.Seconds, js.State = last.Ended.Sub(last.Started).Seconds(), stateOf(last.Outcome)
	}
	// A job with a schedule whose datasets never arrived is late: its timer may be missing.
	js.Late = due.event != nil
	js.LagWarning, js.LagCritical = due.levels(now)
	if last == nil && len(st.Datasets) == 0 {
		due.neverRan(js, w.since)
	}
	add := func(d *DatasetStatus, a *replicate.Attempt) {
		if proved, known := st.Datasets[d.Source].Consistent[cmp.Or(d.Base, d.Snapshot)]; known {
			d.Consistent = &proved
		}
		d.Success = a.Success
		d.Outcome, d.Error, d.Hint = outcomeOf(a, last)
		d.State = stateOf(d.Outcome)
		if from := due.judge(d, a); d.Lag > js.Lag {
			js.Lag = d.Lag
			js.LagWarning, js.LagCritical = due.levels(from)
		}
		js.Datasets = append(js.Datasets, d)
	}
	for _, source := range slices.Sorted(maps.Keys(st.Datasets)) {
		known := st.Datasets[source]
		for _, h := range known.Past {
			js.Doubted += h.Doubts()
		}
		if a := known.Alone; a != nil {
			add(&DatasetStatus{Source: source, Snapshot: a.Snapshot}, &a.Attempt)
		}
		for _, target := range slices.Sorted(maps.Keys(known.Targets)) {
			a := known.Targets[target]
			add(&DatasetStatus{Source: source, To: target, Target: a.Target, Base: a.Base, Bytes: a.Bytes, Seconds: a.Seconds}, &a.Attempt)
		}
	}
	js.Aside, js.Gone = st.Aside, goneOf(j, st)
	if len(js.Datasets) > 0 {
		js.Late = slices.ContainsFunc(js.Datasets, func(d *DatasetStatus) bool { return d.Late })
	}
	js.Problems = problems(last, js.Datasets)
	js.Failed = len(js.Problems) > 0
	js.drilled(drillStatusOf(j, st, w.now))
	js.Settle()
	return js
}

// outcomeOf is what became of a dataset in the last run, "" where that succeeded, and
// why.
func outcomeOf(a *replicate.Attempt, last *statedir.Run) (ended, why, hint string) {
	if last != nil && a.Tried.Before(last.Started) {
		reached := slices.ContainsFunc(last.Targets, func(t *statedir.TargetRun) bool { return t.Outcome != "" })
		if last.Error != "" && !reached { // it ended before it came to any
			return last.Outcome, last.Error, last.Hint
		}
		return "", "", "" // there was nothing of it to send
	}
	if a.Error != "" && a.Outcome == "" { // as an older version wrote it
		return outcome.Failed, a.Error, a.Hint
	}
	return a.Outcome, a.Error, a.Hint
}

// deadline tells by when the datasets of a job are to arrive; event is nil where it
// has no schedule.
type deadline struct {
	event *calendar.Event
	grace time.Duration
	now   time.Time
}

// after is when the run after a time was due, and the one after that. In the zone of
// now: the schedule means the host's clock.
func (d *deadline) after(t time.Time) (due, next time.Time, ok bool) {
	if d.event == nil {
		return due, next, false
	}
	if due, ok = d.event.Next(t.In(d.now.Location())); ok {
		next, _ = d.event.Next(due)
	}
	return due, next, ok
}

// judge compares the last success with when the next one was due, and returns from
// when it counted.
func (d *deadline) judge(s *DatasetStatus, a *replicate.Attempt) (from time.Time) {
	if d.event == nil {
		return from
	}
	from = a.Success
	if from.IsZero() || d.future(from) {
		s.Late = true
		if from = cmp.Or(a.Failing, a.Tried); !from.IsZero() && !d.future(from) {
			s.Lag, s.LateAfter = max(0, d.now.Sub(from).Seconds()), from
		}
	} else if due, _, ok := d.after(from); ok {
		s.LateAfter = due.Add(d.grace)
		s.Lag = max(0, d.now.Sub(due).Seconds())
		s.Late = d.now.After(s.LateAfter)
	}
	if s.Late {
		s.State = worst(s.State, Late)
	}
	return from
}

// neverRan judges a job with a schedule that never ran like one whose last run was when the
// schedule began to apply.
func (d *deadline) neverRan(js *JobStatus, since time.Time) {
	if since.IsZero() || d.future(since) {
		return
	}
	first, _, ok := d.after(since)
	if !ok {
		return
	}
	js.State, js.Lag = OK, max(0, d.now.Sub(first).Seconds())
	js.Late = d.now.After(first.Add(d.grace))
	js.LagWarning, js.LagCritical = d.levels(since)
}

// future tells of a time when the clock was wrong, or is now.
func (d *deadline) future(t time.Time) bool { return t.After(d.now.Add(d.grace)) }

// levels are how many seconds past its due time what arrived then is late, and has
// missed a second run too.
func (d *deadline) levels(success time.Time) (warning, critical float64) {
	due, next, ok := d.after(success)
	if !ok {
		return 0, 0
	}
	warning = d.grace.Seconds()
	if !next.IsZero() {
		critical = (next.Sub(due) + d.grace).Seconds()
	}
	return warning, critical
}
