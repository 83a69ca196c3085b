package runner

import (
	"context"
	"slices"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/meet"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/zfs"
)

// Preview is what the next run of a job would do.
type Preview struct {
	Job       string               `json:"job"`
	Source    string               `json:"source"`
	Datasets  int                  `json:"datasets"`
	Alone     bool                 `json:"alone,omitempty"` // the job has no target
	Snapshots []string             `json:"snapshots"`       // that it would take
	Targets   []*TargetPreview     `json:"targets"`
	Prunings  []*replicate.Pruning `json:"prunings"` // of what is there now
	// Delegations are for hosts where the job does not run as root.
	Delegations []*Delegation `json:"delegations,omitempty"`
	Error       string        `json:"error,omitempty"`
	Hint        string        `json:"hint,omitempty"`
}

// TargetPreview is a preview's part for one target.
type TargetPreview struct {
	Target  string               `json:"target"`
	To      string               `json:"to"`
	Plan    *plan.Plan           `json:"plan,omitempty"`
	Wire    meet.Report          `json:"wire"`
	Refused []*record.DatasetRun `json:"refused,omitempty"`
	Error   string               `json:"error,omitempty"`
	Hint    string               `json:"hint,omitempty"`
}

// Failed tells whether the next run would fail in any part.
func (p *Preview) Failed() bool {
	if p.Error != "" {
		return true
	}
	for _, t := range p.Targets {
		if t.Error != "" || len(t.Refused) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(p.Prunings, func(r *replicate.Pruning) bool { return r.Error != "" })
}

// Preview reaches all hosts of a job and plans its next run; it changes
// nothing.
func (r *Runner) Preview(ctx context.Context, j *replicate.Job) (*Preview, error) {
	w, err := r.work(j, record.Peek(r.StateDir, j.Name))
	if err != nil {
		return nil, err
	}
	p := &Preview{Job: j.Name, Source: j.Source, Alone: len(j.Targets) == 0, Snapshots: []string{}, Targets: []*TargetPreview{}, Prunings: []*replicate.Pruning{}}
	if err := w.survey(ctx); err != nil {
		p.Error, p.Hint = err.Error(), fault.HintOf(err)
		return p, ctx.Err()
	}
	p.Datasets = len(w.listing.Datasets)
	p.Snapshots = append(p.Snapshots, replicate.Decide(w.view()).Snapshots...)
	now := w.listing
	w.listing = pretend(w.listing, p.Snapshots)
	for _, t := range w.targets {
		p.Targets = append(p.Targets, w.previewTarget(ctx, t, len(p.Snapshots) > 0))
	}
	w.listing = now
	p.Prunings = append(p.Prunings, w.decide(ctx).Prunings...)
	for _, side := range p.Prunings {
		w.partHeld(ctx, side)
	}
	p.Delegations = w.delegations(ctx)
	return p, ctx.Err()
}

func (w *work) previewTarget(ctx context.Context, t *targetWork, pretended bool) *TargetPreview {
	tp := &TargetPreview{Target: t.Name, To: t.To}
	b := w.request(t, nil)
	b.DryRun, b.Pretended = true, pretended
	res, err := job.RunBatch(ctx, b, w.hosts, &quiet{log: w.Log})
	err, t.result, tp.Plan, tp.Wire = replicate.InKeys(err), res, res.Report.Plan, res.Report.Wire
	tp.Wire.Why = replicate.Keys(tp.Wire.Why)
	if err != nil {
		tp.Error, tp.Hint = err.Error(), fault.HintOf(err)
		t.run.Error = tp.Error
		return tp
	}
	for _, d := range res.Datasets {
		if d.Err = replicate.InKeys(d.Err); d.Err == nil {
			continue
		}
		tp.Refused = append(tp.Refused, &record.DatasetRun{Source: d.Source, Target: d.Target, Outcome: outcome.Refused,
			Error: d.Err.Error(), Hint: fault.HintOf(d.Err), Conflict: d.Conflict})
	}
	return tp
}

// pretend adds the snapshots that a run would take to a copy of a listing.
func pretend(l zfs.Listing, snapshots []string) zfs.Listing {
	names := map[string]string{}
	for _, full := range snapshots {
		if dataset, name, err := zfs.ParseSnapshot(full); err == nil { // made of checked parts
			names[dataset] = name
		}
	}
	return plan.Pretend(l, func(dataset string) string { return names[dataset] })
}

// Wrong is why a check failed, as an error for the exit code.
func (p *Preview) Wrong() error {
	if !p.Failed() {
		return nil
	}
	return fault.Failf("", "job %q: %s", p.Job, or(p.Error, "the next run would fail in part: see above"))
}
