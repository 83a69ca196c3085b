package heal

import (
	"context"
	"errors"
	"slices"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/transport"
)

// JobReport is the JSON report of `zxfer heal --job`.
type JobReport struct {
	Schema string    `json:"schema"` // "zxfer.heal.job/v1"
	Job    string    `json:"job"`
	DryRun bool      `json:"dry_run"`
	Heals  []*Report `json:"heals"` // of the source, then of each target
	outcome.Conclusion
}

// RunJob runs `zxfer heal --job`: it heals the source of the job req.Job, and then each of its
// targets, only from the job's own copies. It ignores req.At. A side that fails does not prevent
// the others. If sides lack blocks that others had to heal first, it heals them again. Its error
// has the class of the worst side, and is Refused if nothing was changed.
func RunJob(ctx context.Context, req Request, at *hosts.Set, rep send.Reporter) (*JobReport, error) {
	r := &JobReport{Schema: "zxfer.heal.job/v1", Job: req.Job, DryRun: req.DryRun, Heals: []*Report{}}
	sides, touched := req.sides(), false
	errs := make([]error, len(sides))
	heal := func(i int) *Report {
		one := req
		one.At, one.Settings = sides[i].at, sides[i].Settings
		healed, err := Run(ctx, one, at, rep)
		errs[i] = err // it names the host or the dataset
		touched = touched || slices.Contains([]string{outcome.Done, outcome.Failed, outcome.Interrupted}, healed.Outcome)
		return healed
	}
	for i := range sides {
		if ctx.Err() != nil {
			errs[i] = fault.Interrupt("the same command resumes", errors.New("interrupted"))
			break
		}
		r.Heals = append(r.Heals, heal(i))
	}
	for i, first := range r.Heals {
		if ctx.Err() == nil && first.isIncomplete() && slices.ContainsFunc(r.Heals[i+1:], (*Report).hasHealed) {
			rep.Log(first.At + ": healing again, because its copies were healed")
			r.Heals[i] = heal(i)
			r.Heals[i].addHealed(first)
		}
	}
	err := outcome.Join(errs...)
	if touched {
		err = ends.Changed(err)
	}
	success := outcome.UpToDate
	for _, healed := range r.Heals {
		success = outcome.Worst(success, healed.Outcome)
	}
	r.Conclusion = outcome.Conclude(err, success)
	return r, err
}

// isIncomplete reports whether a dataset was healed only in part, or not at all.
func (r *Report) isIncomplete() bool {
	return slices.ContainsFunc(r.Datasets, func(d *Dataset) bool { return d.Why != "" })
}

// hasHealed reports whether an object was healed.
func (r *Report) hasHealed() bool {
	return slices.ContainsFunc(r.Objects, func(t *Object) bool { return t.Outcome == Healed })
}

// addHealed adds the objects that an earlier heal of the same side healed.
func (r *Report) addHealed(earlier *Report) {
	for _, t := range earlier.Objects {
		if t.Outcome != Healed || slices.ContainsFunc(r.Objects, func(o *Object) bool { return o.Shown == t.Shown }) {
			continue
		}
		r.Objects = append(r.Objects, t)
		i := slices.IndexFunc(earlier.Datasets, func(d *Dataset) bool { return d.Dataset == t.Dataset })
		if i >= 0 && !slices.ContainsFunc(r.Datasets, func(d *Dataset) bool { return d.Dataset == t.Dataset }) {
			r.Datasets = append(r.Datasets, earlier.Datasets[i])
		}
	}
}

// healSide is the source or a target of a job.
type healSide struct {
	at endpoint.Endpoint
	transport.Settings
}

// sides returns the source and the targets of the job r.Job, each once.
func (r *Request) sides() (all []healSide) {
	add := func(e endpoint.Endpoint, w transport.Settings) {
		if !slices.ContainsFunc(all, func(s healSide) bool { return sameDataset(s.at, e) }) {
			all = append(all, healSide{e, w})
		}
	}
	for _, end := range []func(*Copy) endpoint.Endpoint{func(c *Copy) endpoint.Endpoint { return c.Source }, func(c *Copy) endpoint.Endpoint { return c.Target }} {
		for i := range r.Copies {
			if c := &r.Copies[i]; c.Job == r.Job {
				add(end(c), c.Settings)
			}
		}
	}
	return all
}
