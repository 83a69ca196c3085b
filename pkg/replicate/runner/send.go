package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/meet"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/zfs"
)

// defaultParallel is how many datasets move at once: a pool of spinning disks
// is served best by few readers.
const defaultParallel = 2

// send moves the batches of all targets at once.
func (w *work) send(ctx context.Context) {
	limit := w.job.Parallel
	if limit == 0 {
		limit = defaultParallel
	}
	g := newGate(limit)
	requests := make([]job.Batch, len(w.targets)) // before the first begins, which may change the state
	for i, t := range w.targets {
		requests[i] = w.request(t, g)
	}
	var wg sync.WaitGroup
	for i, t := range w.targets {
		if len(w.listing.Datasets) == 0 { // all is settled
			t.result = &job.BatchResult{}
			w.tally(t, nil)
			continue
		}
		wg.Go(func() {
			rep := &sending{w: w, t: t, quiet: quiet{log: func(s string) { w.Log(w.job.Name + " to " + t.Name + ": " + s) }}}
			began := time.Now()
			res, err := job.RunBatch(ctx, requests[i], w.hosts, rep)
			t.run.Seconds = time.Since(began).Seconds()
			t.result = res
			for _, d := range res.Datasets {
				d.Err = replicate.InKeys(d.Err)
			}
			w.tally(t, replicate.InKeys(err))
		})
	}
	wg.Wait()
	for _, t := range w.targets {
		w.update(t)
	}
}

// tally makes the record of a target.
func (w *work) tally(t *targetWork, err error) {
	r := t.run
	r.Unchanged = len(w.idle)
	if err != nil {
		r.Outcome, r.Error, r.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
		return
	}
	r.Outcome = outcome.UpToDate
	for _, d := range t.result.Datasets {
		if d.Err == nil && d.Steps == 0 {
			r.Unchanged++
			continue
		}
		dr := record.DatasetRun{Source: d.Source, Target: d.Target, Snapshot: d.Arrive.Name, Streams: d.Steps, Full: d.Full,
			Bytes: d.Bytes, Seconds: d.Seconds, Outcome: outcome.Done}
		r.Bytes += d.Bytes
		if d.Err != nil {
			r.Failed++
			dr.Outcome, dr.Error, dr.Hint, dr.Conflict = outcome.Of(d.Err), d.Err.Error(), fault.HintOf(d.Err), d.Conflict
		} else {
			r.Sent++
		}
		r.Outcome = outcome.Worst(r.Outcome, dr.Outcome)
		r.Datasets = append(r.Datasets, dr)
	}
}

// update takes a target's results over into the state.
func (w *work) update(t *targetWork) {
	for name := range w.idle {
		a := w.state.Arrival(name, t.Name)
		a.Tried, a.Success, a.Bytes, a.Seconds = w.run.Started, w.run.Started, 0, 0
	}
	if t.run.Error != "" {
		for _, d := range w.listing.Datasets {
			a := w.state.Arrival(d.Name, t.Name)
			a.Tried, a.Bytes, a.Seconds = w.run.Started, 0, 0
			a.Error, a.Hint = t.run.Error, t.run.Hint
		}
		return
	}
	there := make(map[string]*zfs.Dataset, len(t.result.Target.Datasets))
	for _, d := range t.result.Target.Datasets {
		there[d.Name] = d
	}
	for _, d := range t.result.Datasets {
		a := w.state.Arrival(d.Source, t.Name)
		a.Target, a.Tried, a.Bytes, a.Seconds = d.Target, w.run.Started, d.Bytes, d.Seconds
		a.Error, a.Hint = "", ""
		t.arrived(a, d)
		if d.Err != nil {
			a.Error, a.Hint = d.Err.Error(), fault.HintOf(d.Err)
			continue
		}
		if err := w.unsnapped[d.Source]; err != nil { // what was there is, what should be is not
			a.Error, a.Hint = err.Error(), fault.HintOf(err)
		} else {
			a.Success = w.run.Started
		}
		if td := there[d.Target]; td != nil {
			a.EncryptionRoot = td.Get("encryptionroot")
		}
		if sd := w.listing.Find(d.Source); sd != nil {
			ds := w.state.Dataset(d.Source)
			ds.GUID, ds.EncryptionRoot = sd.GUID, sd.Get("encryptionroot")
		}
	}
}

// conclude makes the run's outcome of its targets'.
func (w *work) conclude(ctx context.Context, err error) {
	r := w.run
	r.Ended = w.Now().UTC().Truncate(time.Second)
	r.Outcome = outcome.UpToDate
	if r.Snapshots > 0 || r.Pruned > 0 {
		r.Outcome = outcome.Done
	}
	for _, t := range r.Targets {
		r.Outcome = outcome.Worst(r.Outcome, t.Outcome)
	}
	if err != nil {
		r.Outcome, r.Error, r.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
	}
	if ctx.Err() != nil && r.Outcome == outcome.Failed {
		r.Outcome = outcome.Interrupted
	}
}

// verdict is the run as an error: nil, Interrupted where only that happened,
// Refused where nothing was tried, else Failed.
func (w *work) verdict(err error) error {
	const resumes = "the next run, or the same command, resumes"
	if err != nil {
		err = ofJob(fmt.Errorf("job %q: %w", w.job.Name, err))
		if w.run.Outcome == outcome.Interrupted {
			err = fault.Interrupt(resumes, err)
		}
		return err
	}
	if w.run.Outcome == outcome.Done || w.run.Outcome == outcome.UpToDate {
		return nil
	}
	var errs []error
	for _, t := range w.run.Targets {
		add := func(message, hint string) {
			errs = append(errs, fault.Failf(hint, "job %q to %s: %s", w.job.Name, t.Target, message))
		}
		if t.Error != "" {
			add(t.Error, t.Hint)
		}
		for _, d := range t.Datasets {
			if d.Error != "" {
				add(d.Error, d.Hint)
			}
		}
	}
	if w.run.Outcome == outcome.Interrupted {
		return fault.Interrupt(resumes, errors.Join(errs...))
	}
	return &fault.Error{Class: fault.Failed, Err: errors.Join(errs...)}
}

// ofJob makes a failure of what a single command would call wrong usage, as a name
// that is too long: the command line named none of it.
func ofJob(err error) error {
	if err == nil || fault.ClassOf(err) != fault.Usage {
		return err
	}
	return &fault.Error{Class: fault.Failed, Err: err}
}

// quiet is a Reporter that passes only on what a log should have.
type quiet struct{ log func(string) }

func (q *quiet) Log(message string)               { q.log(message) }
func (*quiet) Planned(*job.Report)                {}
func (*quiet) Started(int, *plan.Dataset, int)    {}
func (*quiet) Progress(int, meet.Progress)        {}
func (*quiet) Finished(id int, r *job.StepResult) {}
