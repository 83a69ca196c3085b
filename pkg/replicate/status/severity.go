package status

import (
	"slices"
	"strings"

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

// Problem is an error of a run. One error with several victims, such as an unreachable host, is
// one Problem.
type Problem struct {
	State    string   `json:"state"`
	To       []string `json:"to,omitempty"`       // target names; none: the whole run
	Datasets []string `json:"datasets,omitempty"` // source datasets; none: all
	Error    string   `json:"error"`
	Hint     string   `json:"hint,omitempty"`

	mergeKey string // what equal errors of several datasets have in common
}

// problems returns the problems of the run, then of targets, datasets and pools.
func problems(last *statedir.Run, datasets []*DatasetStatus) []*Problem {
	all := []*Problem{}
	if last == nil {
		return all
	}
	if last.Error != "" {
		all = append(all, &Problem{State: worst(last.Outcome), Error: last.Error, Hint: last.Hint})
	}
	for _, t := range last.Targets {
		if t.Error != "" {
			all = merge(all, &Problem{State: worst(t.Outcome), To: []string{t.Target}, Error: t.Error, Hint: t.Hint, mergeKey: t.Error})
		}
	}
	whole := len(all)
	for _, d := range datasets {
		reported := func(p *Problem) bool { return p.Error == d.Error && (len(p.To) == 0 || slices.Contains(p.To, d.To)) }
		if d.Error == "" || slices.ContainsFunc(all[:whole], reported) {
			continue
		}
		p := &Problem{State: worst(d.Outcome), Datasets: []string{d.Source}, Error: strings.TrimPrefix(d.Error, d.Source+": "), Hint: d.Hint}
		if d.To != "" {
			p.To = []string{d.To}
		}
		// Messages that differ only in the dataset's name are one problem.
		p.mergeKey = strings.NewReplacer(d.Source, "", d.Target, "").Replace(d.Error) + "\n" + d.Hint
		all = append(all[:whole:whole], merge(all[whole:], p)...)
	}
	if len(all) == 0 && stateOf(last.Outcome) != OK { // a record of another version
		all = append(all, &Problem{State: outcome.Failed, Error: "the last run ended as " + last.Outcome})
	}
	for _, d := range last.Damaged {
		p := &Problem{State: Damaged, Error: d.Error, Hint: d.Hint}
		if d.Target != "" {
			p.To = []string{d.Target}
		}
		all = append(all, p)
	}
	return all
}

// merge adds p to an equal problem, or appends it.
func merge(all []*Problem, p *Problem) []*Problem {
	for _, q := range all {
		if q.mergeKey == p.mergeKey && q.State == p.State && p.mergeKey != "" {
			q.To, q.Datasets = union(q.To, p.To), union(q.Datasets, p.Datasets)
			return all
		}
	}
	return append(all, p)
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
