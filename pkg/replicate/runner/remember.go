package runner

import (
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
)

// remember writes log, state and metrics.
func (w *work) remember() error {
	brief := *w.run
	brief.Targets = nil
	for _, t := range w.run.Targets {
		short := *t
		short.Datasets = nil
		brief.Targets = append(brief.Targets, &short)
	}
	w.state.LastRun = &brief
	w.forgetGone()
	return errors.Join(w.store.Append(w.run), w.store.Save(w.state))
}

// forgetGone drops what the job does not concern any more, so that status
// calls nothing late that nobody wants. What is held of it is stale: holds --gc.
func (w *work) forgetGone() {
	if len(w.selected) == 0 {
		return // the source was not seen, or the patterns are wrong
	}
	targets := map[string]bool{}
	for _, t := range w.targets {
		targets[t.Name] = true
	}
	for name, d := range w.state.Datasets {
		for target := range d.Targets {
			if !targets[target] {
				delete(d.Targets, target)
			}
		}
		if len(targets) > 0 {
			d.Alone = nil
		}
		if !w.selected[name] {
			delete(w.state.Datasets, name)
		}
	}
}

// Metrics renders the metrics of all jobs of a file, so far as they have run.
func Metrics(f *replicate.File, stateDir string) ([]byte, error) {
	var states []*record.State
	for i := range f.Jobs {
		st, err := record.Peek(stateDir, f.Jobs[i].Name).State()
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
