package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// Metrics renders the metrics of all jobs of a file: results and due times. If the records of a
// job cannot be read, it returns an error and the metrics of the other jobs.
func Metrics(f *replicate.File, stateDir string, now time.Time) ([]byte, error) {
	var states []*statedir.State
	var due []*JobStatus
	var errs []error
	for i := range f.Jobs {
		j := &f.Jobs[i]
		st, err := statedir.Peek(stateDir, j.Name).Standing()
		if err != nil {
			errs = append(errs, fmt.Errorf("job %q: %w", j.Name, err))
			st = &statedir.State{} // the next run depends only on the schedule
		} else {
			states = append(states, st)
		}
		due = append(due, statusOf(j, st, statusTimes{now: now}))
	}
	e := statedir.Metrics(states)
	at := func(t time.Time, labels ...string) {
		if !t.IsZero() {
			e.Sample(float64(t.Unix()), labels...)
		}
	}
	e.Family("zxfer_replicate_next_run_seconds", "Next scheduled start when the metrics were written, Unix time.")
	for _, j := range due {
		at(j.Next, "job", j.Job)
	}
	e.Family("zxfer_replicate_dataset_late_after_seconds", "Time at which the dataset becomes late unless a run succeeds before, Unix time.")
	for _, j := range due {
		for _, d := range j.Datasets {
			at(d.LateAfter, "job", j.Job, "source", d.Source, "target", d.To)
		}
	}
	e.Family("zxfer_replicate_drill_late_after_seconds", "Time at which the job's drills become late unless one finds all copies good before, Unix time.")
	for _, j := range due {
		if j.Drill != nil {
			at(j.Drill.LateAfter, "job", j.Job)
		}
	}
	return e.Bytes(), errors.Join(errs...)
}

// WriteMetrics writes the metrics to the file's Textfile, even if some records cannot be read. A
// lock keeps concurrent jobs from overwriting each other's results.
func WriteMetrics(ctx context.Context, f *replicate.File, stateDir string, now time.Time) error {
	err := statedir.Together(ctx, stateDir, func() error {
		text, err := Metrics(f, stateDir, now)
		return errors.Join(err, statedir.Replace(f.Metrics.Textfile, text, 0o644))
	})
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
