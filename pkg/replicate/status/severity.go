package status

import (
	"slices"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/statedir"
)

// States of a job or dataset. Others are Interrupted, Refused and Failed of package outcome, which
// the last run ended with, and Unverified and NotFinished of package statedir.
const (
	OK      = "ok"      // the last run succeeded or none was due, and nothing is late
	Unknown = "unknown" // no schedule and no run yet, or unreadable records
	Late    = "late"
	Damaged = "damaged" // a pool has data errors
)

// Rank returns a number that is higher for worse states. Unknown words, from records of other
// versions, are the worst.
func Rank(state string) int {
	if at := slices.Index(ranks(), state); at >= 0 {
		return at
	}
	return len(ranks()) - 1
}

// ranks returns all states, from best to worst.
func ranks() []string {
	return []string{OK, Unknown, outcome.Interrupted, statedir.Unverified, statedir.NotFinished, Damaged, Late, outcome.Refused, outcome.Failed}
}

// worst returns the worst of the states.
func worst(parts ...string) string {
	at := 0
	for _, p := range parts {
		at = max(at, Rank(p))
	}
	return ranks()[at]
}

// stateOf returns the state for the outcome of a run.
func stateOf(ended string) string {
	if ended == "" || ended == outcome.Done || ended == outcome.UpToDate {
		return OK
	}
	return worst(ended)
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
