package runner

import (
	"context"
	"fmt"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
)

// Metrics renders the metrics of all jobs of a file: of those that have run, what came
// of it, and of those with a schedule, what is to come.
func Metrics(f *replicate.File, stateDir string, now time.Time) ([]byte, error) {
	var states []*record.State
	var due []*JobStatus
	for i := range f.Jobs {
		st, err := record.Peek(stateDir, f.Jobs[i].Name).Standing()
		if err != nil {
			return nil, err
		}
		states, due = append(states, st), append(due, statusOf(&f.Jobs[i], st, now))
	}
	e := record.Metrics(states)
	at := func(t time.Time, labels ...string) {
		if !t.IsZero() {
			e.Sample(float64(t.Unix()), labels...)
		}
	}
	e.Family("zxfer_replicate_next_run_seconds", "When the schedule starts the job next, as of when this was written, Unix time.")
	for _, j := range due {
		at(j.Next, "job", j.Job)
	}
	e.Family("zxfer_replicate_dataset_late_after_seconds", "When the dataset is late unless it is brought up to date before, Unix time.")
	for _, j := range due {
		for _, d := range j.Datasets {
			at(d.LateAfter, "job", j.Job, "source", d.Source, "target", d.To)
		}
	}
	e.Family("zxfer_replicate_drill_late_after_seconds", "When the job's drills are late unless one proves all copies good before, Unix time.")
	for _, j := range due {
		if j.Drill != nil {
			at(j.Drill.LateAfter, "job", j.Job)
		}
	}
	return e.Bytes(), nil
}

// WriteMetrics writes them to the file's Textfile. Of two jobs that end together
// neither writes over the other's news.
func WriteMetrics(ctx context.Context, f *replicate.File, stateDir string, now time.Time) error {
	err := record.Together(ctx, stateDir, func() error {
		text, err := Metrics(f, stateDir, now)
		if err != nil {
			return err
		}
		return record.Replace(f.Metrics.Textfile, text, 0o644)
	})
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
