package status

import (
	"slices"
	"time"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/statedir"
)

// States of a job, dataset or host. Others are Interrupted, Refused and Failed of package outcome, which
// the last run ended with, and Unverified and NotFinished of package statedir.
const (
	OK          = "ok"      // the last run succeeded or none was due, and nothing is late
	Unknown     = "unknown" // no schedule and no run yet, or unreadable records
	Unreachable = "unreachable"
	Late        = "late"
	Damaged     = "damaged" // a pool has data errors
)

// Severity is how urgent a state is. Its number is the exit code of a monitoring plugin.
//
// https://www.monitoring-plugins.org/doc/guidelines.html
type Severity int

// The severities. Of several, the worst counts: critical, warning, then unknown.
const (
	SeverityOK Severity = iota
	SeverityWarning
	SeverityCritical
	SeverityUnknown
)

func (s Severity) String() string { return [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}[s] }

// Rank returns a number that is higher for worse severities.
func (s Severity) Rank() int { return [...]int{0, 2, 3, 1}[s] }

// condition is a row of the table of severities: something that monitoring reports.
type condition struct {
	// state is the state that the condition gives a job or host, or "" if it gives none.
	state    string
	severity Severity
	when     string // for the documentation
	// alerts are the alerts of docs/fleet/prometheus that report the condition.
	alerts [3]string
	holds  func(*JobStatus) bool // nil: the job has the state
}

// conditions returns the table of severities, from best to worst. Every output uses it. As an array it takes no heap:
// the states of many copies are compared.
func conditions() [15]condition {
	return [...]condition{
		{OK, SeverityOK, "otherwise", [3]string{}, nil},
		{Unknown, SeverityUnknown, "a job without a schedule never ran, or zxfer cannot read its records", [3]string{}, nil},
		{Unreachable, SeverityUnknown, "a host did not answer `status --hosts`", [3]string{"ZxferMetricsStale", "ZxferMetricsGone"}, nil},
		{"", SeverityWarning, "a pause without an end lasts longer than seven days", [3]string{"ZxferPaused"}, func(j *JobStatus) bool { return j.Pause != nil && j.Pause.Forgotten }},
		{"", SeverityWarning, "a copy lacks properties of its source", [3]string{"ZxferCopyLacksProperties"}, func(j *JobStatus) bool { return len(j.Lacking) > 0 }},
		{"", SeverityWarning, "the freeze of an application was not verified for the most recent snapshot of a copy", [3]string{"ZxferNotConsistent"}, func(j *JobStatus) bool { return j.Inconsistent() > 0 }},
		{"", SeverityWarning, "runs could not list the data errors of a pool for two days", [3]string{"ZxferDataErrorsUnknown"}, func(j *JobStatus) bool { return len(j.SilentPools()) > 0 }},
		{outcome.Interrupted, SeverityWarning, "the last run or drill was interrupted", [3]string{"ZxferInterrupted", "ZxferCopyNotVerified"}, nil},
		{statedir.Unverified, SeverityWarning, "a drill could not decide whether a copy is good", [3]string{"ZxferCopyNotVerified"}, nil},
		{statedir.NotFinished, SeverityWarning, "a drill passed its deadline", [3]string{"ZxferCopyNotVerified"}, nil},
		{Late, SeverityWarning, "a dataset, disk or drill is late, or the job does not run", [3]string{"ZxferLate", "ZxferDrillLate", "ZxferNeverRan"}, nil},
		{Late, SeverityCritical, "a dataset or drill also missed a second scheduled time", [3]string{"ZxferMissedTwice", "ZxferDrillMissedTwice"},
			func(j *JobStatus) bool {
				return j.LagCritical > 0 && j.Lag > j.LagCritical || j.Drill != nil && j.Drill.Critical > 0 && j.Drill.Age > j.Drill.Critical
			}},
		{Damaged, SeverityCritical, "a pool of the job has data errors", [3]string{"ZxferDataErrors", "ZxferNotRepairable"}, nil},
		{outcome.Refused, SeverityCritical, "a part of the last run or drill was refused", [3]string{"ZxferFailed", "ZxferCopyNotGood"}, nil},
		{outcome.Failed, SeverityCritical, "a part of the last run or drill failed, or a copy is not good", [3]string{"ZxferFailed", "ZxferCopyNotGood"}, nil},
	}
}

// Rank returns a number that is higher for worse states. Unknown words, from records of other
// versions, are the worst.
func Rank(state string) int {
	all := conditions()
	for i, c := range all {
		if c.state == state && state != "" {
			return i
		}
	}
	return len(all) - 1
}

// Worst returns the worst of the states, or OK if there is none.
func Worst(states ...string) string {
	at := 0
	for _, s := range states {
		at = max(at, Rank(s))
	}
	return conditions()[at].state
}

// SeverityOf returns the severity of a state of a job, dataset or host.
func SeverityOf(state string) Severity { return conditions()[Rank(state)].severity }

// Severity returns the worst severity of the conditions that hold for the job.
func (j *JobStatus) Severity() Severity {
	worst, state := SeverityOK, Worst(j.State)
	for _, c := range conditions() {
		if c.holds == nil && c.state == state || c.holds != nil && c.holds(j) {
			worst = c.severity
		}
	}
	return worst
}

// Severity returns the worst severity of the jobs.
func (s *Status) Severity() Severity {
	worst := SeverityOK
	for _, j := range s.Jobs {
		worst = WorstSeverity(worst, j.Severity())
	}
	return worst
}

// WorstSeverity returns the worst of the severities. It panics without arguments.
func WorstSeverity(all ...Severity) Severity {
	return slices.MaxFunc(all, func(a, b Severity) int { return a.Rank() - b.Rank() })
}

// Inconsistent returns the number of copies for which an application was not frozen.
func (j *JobStatus) Inconsistent() (n int) {
	for _, d := range j.Datasets {
		if d.Consistent != nil && !*d.Consistent {
			n++
		}
	}
	return n
}

// silentPool is how long the data errors of a pool may be unknown. Runs query each pool at least once a day.
const silentPool = 48 * time.Hour

// SilentPools returns the pools whose hosts did not list the data errors for longer than silentPool, except pools of
// disks, which may be away.
func (j *JobStatus) SilentPools() (all []*PoolStatus) {
	for _, p := range j.Pools {
		disk := slices.ContainsFunc(j.Disks, func(d *DiskStatus) bool { return d.To == p.To })
		if !p.Checked.IsZero() && j.LastRun.Sub(p.Checked) > silentPool && !disk {
			all = append(all, p)
		}
	}
	return all
}

// stateOf returns the state for the outcome of a run.
func stateOf(ended string) string {
	if ended == "" || ended == outcome.Done || ended == outcome.UpToDate {
		return OK
	}
	return Worst(ended)
}

// Normalize makes the state, Late and Failed of a job consistent with its parts. A status from
// another host may contradict itself or have unknown words.
func (j *JobStatus) Normalize() {
	late := func(late bool) string {
		if late {
			return Late
		}
		return OK
	}
	word := func(state string) string { // of a job: a host that answers is not unreachable
		if state == Unreachable {
			return outcome.Failed
		}
		return state
	}
	j.Late = j.Late || j.LagWarning > 0 && j.Lag > j.LagWarning
	state := Worst(word(j.State), late(j.Late))
	for _, d := range j.Datasets {
		d.State = Worst(word(d.State), late(d.Late), stateOf(word(d.Outcome)))
		state = Worst(state, d.State)
	}
	for _, p := range j.Problems {
		state = Worst(state, word(p.State))
	}
	for _, p := range j.Pools {
		if p.State != OK && p.State != Unknown {
			p.State = Damaged
			state = Worst(state, Damaged)
		}
	}
	if d := j.Drill; d != nil {
		d.Late = d.Late || d.Warning > 0 && d.Age > d.Warning
		j.Late = j.Late || d.Late
		state = Worst(state, word(d.State()))
	}
	if j.Failed && state == OK {
		state = outcome.Failed
	}
	j.State, j.Late = state, j.Late || state == Late
	j.Failed = j.Failed || state != OK && state != Unknown && state != Late
}
