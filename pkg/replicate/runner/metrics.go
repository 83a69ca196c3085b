package runner

import (
	"context"
	"fmt"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
)

// Metrics renders the metrics of all jobs of a file, so far as they have run.
func Metrics(f *replicate.File, stateDir string) ([]byte, error) {
	var states []*record.State
	for i := range f.Jobs {
		st, err := record.Peek(stateDir, f.Jobs[i].Name).Standing()
		if err != nil {
			return nil, err
		}
		states = append(states, st)
	}
	return record.Metrics(states), nil
}

// WriteMetrics writes them to the file's Textfile. Of two jobs that end together
// neither writes over the other's news.
func WriteMetrics(ctx context.Context, f *replicate.File, stateDir string) error {
	err := record.Together(ctx, stateDir, func() error {
		text, err := Metrics(f, stateDir)
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
