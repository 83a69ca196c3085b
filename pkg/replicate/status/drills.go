package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
)

// DrillStatus is the state of a job's copies according to its drills.
type DrillStatus struct {
	Schedule string    `json:"schedule,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	Last     time.Time `json:"last,omitzero"`     // start of the last drill
	Outcome  string    `json:"outcome,omitempty"` // of the last drill, "" = none yet
	// Error is the error of the last drill as a whole, such as a refusal. Copies have their own.
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	// Good is the start of the drill that last verified the copy whose verification is the oldest.
	// It is zero if a copy was never verified.
	Good time.Time `json:"good,omitzero"`
	DrillLateness
	Running bool `json:"running,omitempty"` // a drill is running
	Copies  int  `json:"copies"`
	// NeverVerified counts the copies that no drill ever found good.
	NeverVerified int `json:"never_verified,omitempty"`
	// NotGood lists the copies that the last drill did not verify.
	NotGood []*statedir.DrilledCopy `json:"not_good,omitempty"`

	results []drillResult
}

// DrillLateness is whether the drills of a job are late.
type DrillLateness struct {
	// Age is the time since Good or, for a copy that was never verified, since a verification was
	// expected.
	Age      float64 `json:"age_seconds,omitempty"`
	Warning  float64 `json:"age_warning_seconds,omitempty"`
	Critical float64 `json:"age_critical_seconds,omitempty"`
	Late     bool    `json:"late"`
	// LateAfter is the deadline for the next drill that verifies all copies, or zero if unknown.
	LateAfter time.Time `json:"late_after,omitzero"`

	// criticalAfter is when the job will also have missed a second drill, or zero.
	criticalAfter time.Time
}

// drillResult is what the last drill found out about a copy.
type drillResult struct {
	source, to string
	good       time.Time // start of the last drill that found it good, or zero
	state      string
}

// State returns the state of the drills, as part of the job's state.
func (d *DrillStatus) State() string {
	state := OK
	for _, c := range d.NotGood {
		state = Worst(state, c.Outcome)
	}
	if d.Late {
		state = Worst(state, Late)
	}
	return Worst(state, stateOf(d.Outcome))
}

func drillStatusOf(j *replicate.Job, st *statedir.State, now time.Time, pause *decide.Pause) *DrillStatus {
	known := &st.Drills
	d := &DrillStatus{Schedule: j.DrillSchedule()}
	due := deadline{now: now, grace: replicate.DrillGrace}
	if e, err := calendar.Parse(d.Schedule); err == nil { // "" is not a schedule
		due.event = e
		d.Next, _ = e.Next(now)
	}
	if known.Last == nil && due.event == nil {
		return nil
	}
	if known.Last != nil {
		d.Last, d.Outcome = known.Last.Started, known.Last.Outcome
		d.Error, d.Hint = known.Last.Error, known.Last.Hint
	}
	var from time.Time // start of the longest wait for a verified copy
	never := known.Last == nil
	add := func(good, since time.Time) {
		if good.IsZero() || due.future(good) { // the clock is or was wrong
			never, good = true, since
		}
		if from.IsZero() || !good.IsZero() && good.Before(from) {
			from = good
		}
	}
	root, _ := endpoint.Parse(j.Source) // valid
	known.All(func(c *statedir.DrilledCopy) {
		if j.Target(c.To) == nil || c.Source != root.Name && !strings.HasPrefix(c.Source, root.Name+"/") {
			return // of the other direction, or of an earlier job file
		}
		d.Copies++
		if c.Good.IsZero() {
			d.NeverVerified++
		}
		result := drillResult{source: c.Source, to: c.To, good: c.Good}
		switch {
		case c.Outcome != outcome.Done:
			d.NotGood = append(d.NotGood, c)
			result.state = Worst(c.Outcome)
		case known.Last == nil || c.Good.Equal(known.Last.Started):
			result.state = OK
		default:
			// A drill that ended early left the older results of other copies. It skips absent disks.
			result.state = stateOf(known.Last.Outcome)
		}
		if known.Last != nil {
			d.results = append(d.results, result)
		}
		if j.DiskTarget(c.To) == nil { // a drill does not wait for a disk
			add(c.Good, cmp.Or(c.Failing, st.DrillSince))
		}
	})
	for _, c := range unreached(j, st) {
		d.Copies++
		d.NeverVerified++
		if d.Outcome != "" && d.Outcome != outcome.Done {
			c.state = Worst(d.Outcome)
			d.results = append(d.results, c)
		}
		add(time.Time{}, cmp.Or(known.LastComplete, st.DrillSince))
	}
	if from = cmp.Or(from, st.DrillSince); !never {
		d.Good = from
	}
	if due.event == nil || from.IsZero() {
		d.Age = age(now, d.Good)
		return d
	}
	d.Age = age(now, from)
	if pause.State(now) == decide.Paused { // no drill is due
		return d
	}
	if d.Late = due.future(from); d.Late {
		return d
	}
	if first, period := due.after(pause.DueFrom(from, now)); !first.IsZero() {
		d.LateAfter = first.Add(replicate.DrillGrace)
		d.Late = now.After(d.LateAfter)
		d.Warning = d.LateAfter.Sub(from).Seconds()
		if period > 0 {
			d.criticalAfter = d.LateAfter.Add(period)
			d.Critical = d.criticalAfter.Sub(from).Seconds()
		}
	}
	return d
}

func age(now, from time.Time) float64 {
	if from.IsZero() {
		return 0
	}
	return max(0, now.Sub(from).Seconds())
}

// unreached returns the copies that arrived but were never drilled.
func unreached(j *replicate.Job, st *statedir.State) (all []drillResult) {
	at, err := endpoint.Parse(j.Source)
	if err != nil {
		return nil
	}
	for _, source := range slices.Sorted(maps.Keys(st.Datasets)) {
		for _, t := range j.Targets {
			a := st.Datasets[source].Targets[t.Name]
			if a != nil && t.Disk == nil && !a.Success.IsZero() && st.Drills.Copies[source][t.Name] == nil && j.SelectsName(at.Name, source) && t.SelectsName(at.Name, source) {
				all = append(all, drillResult{source: source, to: t.Name})
			}
		}
	}
	return all
}

// addDrills adds the state of the drills to the job's status.
func (j *JobStatus) addDrills(d *DrillStatus) {
	if j.Drill = d; d == nil {
		return
	}
	for _, c := range d.NotGood {
		j.Failed = true
		j.Problems = append(j.Problems, &Problem{State: Worst(c.Outcome), To: []string{c.To}, Datasets: []string{c.Source},
			Error: "drill of @" + c.Snapshot + ": the copy is " + c.DisplayOutcome() + ": " + c.Error, Hint: c.Hint})
	}
	again := "zxfer replicate drill " + j.Job
	if d.Outcome != "" && d.Outcome != outcome.Done && len(d.NotGood) == 0 {
		j.Failed = true
		why := "the last drill ended as " + d.Outcome
		if d.Error != "" {
			why += ": " + d.Error
		}
		j.Problems = append(j.Problems, &Problem{State: Worst(d.Outcome), Error: why, Hint: cmp.Or(d.Hint, again)})
	}
	if d.Late {
		why := "no drill has verified the copies yet"
		if !d.Good.IsZero() {
			why = fmt.Sprintf("the last drill that verified all copies was %.0f days ago", d.Age/(24*3600))
		}
		j.Problems = append(j.Problems, &Problem{State: Late, Error: why, Hint: again})
	}
}
