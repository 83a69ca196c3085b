package send

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
)

// admission admits the datasets of a plan one by one: a conflict stops only its dataset and those
// that need it.
type admission struct {
	review   func(*plan.Plan) // may add conflicts before the first check; nil if there is no review
	reviewed bool
	refused  []*DatasetResult
}

// refuseOversized refuses the largest datasets until the target has space for the rest. It
// returns the findings for the remaining plan.
func (a *admission) refuseOversized(e *ends.Ends, p *plan.Plan, state *plan.State, skip []string) []finding.Finding {
	for {
		found := preflight.Send(e.Input(state, p))
		block := preflight.Blocking(found, skip)
		i := slices.IndexFunc(block, func(f finding.Finding) bool { return f.ID == preflight.Space })
		if i < 0 {
			return found
		}
		d := largestBelow(p, block[i].Target)
		if d == nil {
			return found
		}
		p.Refuse(finding.Finding{
			ID: plan.NoRoom, Source: d.Source, Target: d.Target, Remedy: block[i].Remedy,
			Summary: fmt.Sprintf("%s: not enough space for %s: %s", e.Target.Conn.Label(), d.Target, block[i].Summary),
		})
		a.removeRefused(p)
	}
}

// largestBelow returns the dataset with the most bytes to send to target or its descendants, nil
// if there is none.
func largestBelow(p *plan.Plan, target string) (most *plan.Dataset) {
	bytes := uint64(0)
	for _, d := range p.Datasets {
		n := uint64(0)
		for _, st := range d.Steps {
			n += st.Bytes
		}
		if n > bytes && (d.Target == target || strings.HasPrefix(d.Target, target+"/")) {
			most, bytes = d, n
		}
	}
	return most
}

// removeRefused removes from a plan the datasets that have a conflict, and their dependents.
// Conflicts that concern the whole request remain.
func (a *admission) removeRefused(p *plan.Plan) {
	if concernsRequest(p) {
		return
	}
	if a.review != nil && !a.reviewed {
		a.review(p)
		a.reviewed = true
	}
	a.refused = splitRefused(p, a.refused)
}

// concernsRequest reports whether the conflicts concern the whole request rather than single
// datasets.
func concernsRequest(p *plan.Plan) bool {
	for _, c := range p.Conflicts {
		if len(p.Datasets) == 0 && c.ID != plan.NoSnapshot && c.ID != plan.HalfReceived {
			return true
		}
	}
	return false
}

// splitRefused removes from a plan the datasets that have a conflict, and their dependents, and
// appends their results to refused.
func splitRefused(p *plan.Plan, refused []*DatasetResult) []*DatasetResult {
	if len(p.Conflicts) == 0 {
		return refused
	}
	why := map[string]*DatasetResult{}
	for _, c := range p.Conflicts {
		if why[c.Source] == nil {
			why[c.Source] = &DatasetResult{Dataset: outcome.Dataset{Source: c.Source, Target: c.Target, Conflict: c.ID}, Err: c.Err()}
			refused = append(refused, why[c.Source])
		}
	}
	var rest []*plan.Dataset
	for _, d := range p.Datasets { // Needs precede their dependents.
		for _, need := range d.Needs {
			if why[d.Source] == nil && why[need] != nil {
				why[d.Source] = &DatasetResult{Dataset: outcome.Dataset{Source: d.Source, Target: d.Target}, Err: skippedCause(d.Source, need, why[need].Err)}
				refused = append(refused, why[d.Source])
			}
		}
		if r := why[d.Source]; r != nil {
			r.Final, r.Snapshot, r.Streams = d.Final, d.Final.Name, len(d.Steps)
			continue
		}
		rest = append(rest, d)
	}
	p.Datasets, p.Conflicts = rest, nil
	return refused
}

// skippedError reports a dataset that was not sent because another one failed.
type skippedError struct{ dataset, need string }

func (e *skippedError) Error() string {
	return fmt.Sprintf("%s was not sent: it needs %s, which failed", e.dataset, e.need)
}

// skippedCause returns a skippedError with the class of err: the command that resumes the other
// dataset also sends this one.
func skippedCause(dataset, need string, err error) error {
	return &fault.Error{Class: fault.ClassOf(err), Err: &skippedError{dataset: dataset, need: need}}
}
