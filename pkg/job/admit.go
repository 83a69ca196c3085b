package job

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
)

// admit refuses a plan with conflicts or blocking findings.
func admit(p *plan.Plan, found []finding.Finding, skip []string) error {
	return finding.Refusal(slices.Concat(p.Conflicts, preflight.Blocking(found, skip)))
}

// admission lets in what nothing stands in the way of, each dataset for itself.
type admission struct {
	review   func(*plan.Plan) // shown the plan first, to refuse more of it; may be nil
	reviewed bool
	refused  []*DatasetResult
}

// part takes the datasets that have a conflict, and those that need them, out of
// a plan. A conflict of the request itself stays.
func (a *admission) part(p *plan.Plan) {
	if whole(p) {
		return
	}
	if a.review != nil && !a.reviewed {
		a.review(p)
		a.reviewed = true
	}
	a.refused = partOff(p, a.refused)
}

// room takes the largest datasets out of a plan until the target has room for the
// others: these are to arrive all the same. It returns what the checks find then.
func (a *admission) room(e *ends, p *plan.Plan, state *plan.State, skip []string) []finding.Finding {
	for {
		found := preflight.Send(e.input(state, p))
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
			Summary: fmt.Sprintf("%s: there is no room for %s: %s", e.target.Label(), d.Target, block[i].Summary),
		})
		a.part(p)
	}
}

// largestBelow is the dataset of a plan with the most to send to a dataset of the
// target, or below it; nil where nothing is.
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

// whole tells whether the conflicts concern the request and not a dataset.
func whole(p *plan.Plan) bool {
	for _, c := range p.Conflicts {
		if len(p.Datasets) == 0 && c.ID != plan.NoSnapshot && c.ID != plan.HalfReceived {
			return true
		}
	}
	return false
}

// partOff takes the datasets that have a conflict, and those that need them,
// out of a plan.
func partOff(p *plan.Plan, refused []*DatasetResult) []*DatasetResult {
	if len(p.Conflicts) == 0 {
		return refused
	}
	why := map[string]*DatasetResult{}
	for _, c := range p.Conflicts {
		if why[c.Source] == nil {
			why[c.Source] = &DatasetResult{Source: c.Source, Target: c.Target, Conflict: c.ID, Err: c.Err()}
			refused = append(refused, why[c.Source])
		}
	}
	var rest []*plan.Dataset
	for _, d := range p.Datasets { // in an order that respects Needs
		for _, need := range d.Needs {
			if why[d.Source] == nil && why[need] != nil {
				why[d.Source] = &DatasetResult{Source: d.Source, Target: d.Target, Err: skippedCause(d.Source, need, why[need].Err)}
				refused = append(refused, why[d.Source])
			}
		}
		if r := why[d.Source]; r != nil {
			r.Arrive, r.Steps = d.Arrive, len(d.Steps)
			continue
		}
		rest = append(rest, d)
	}
	p.Datasets, p.Conflicts = rest, nil
	return refused
}
