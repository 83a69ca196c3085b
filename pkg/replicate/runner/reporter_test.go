package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/transport/connect"
)

// told records the calls of a Reporter except progress.
type told struct {
	name string
	mu   *sync.Mutex
	all  *[]string
}

func (r told) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.all = append(*r.all, r.name+": "+fmt.Sprintf(format, args...))
}

func (r told) Log(message string)                    { r.note("log %s", message) }
func (r told) Activity(string) func()                { return func() {} }
func (r told) Planned(p *job.Report)                 { r.note("planned %d", p.Plan.Steps()) }
func (r told) Started(_ int, d *plan.Dataset, _ int) { r.note("started %s", d.Source) }
func (told) Progress(int, connect.Progress)          {}
func (r told) Finished(_ int, result *job.StepResult) {
	r.note("finished %s%s", result.Source, result.Snapshot)
}
func (r told) Ended(d *plan.Dataset, err error) { r.note("ended %s: %v", d.Source, err) }

// A run reports its transfers to a target like a transfer of its own.
func TestARunTellsOfItsTransfers(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.snapshot("src", "s1")
	run := r.runner(t)
	var all []string
	var mu sync.Mutex
	run.Reporter = func(name, target string) job.Reporter {
		if target == "" {
			return nil // only the log is told
		}
		return told{name + " to " + target, &mu, &all}
	}
	_, err := run.Run(t.Context(), r.job, true)
	require.NoError(t, err)
	require.Equal(t, []string{"j to t: planned 1", "j to t: started src", "j to t: finished src@s1", "j to t: ended src: <nil>"}, all)
}

// If the result of a batch could not be inspected, earlier errors are still reported.
func TestRecordOfABatchThatWasStopped(t *testing.T) {
	t.Parallel()
	b := &batch{side: &side{target: &replicate.Target{}}, err: fault.Interrupt("", context.Canceled), result: &job.BatchResult{Datasets: []*job.DatasetResult{
		{Dataset: outcome.Dataset{Source: "a"}, Err: errors.New("no space")}, {Dataset: outcome.Dataset{Source: "b"}, Err: fault.Interrupt("", context.Canceled)}, {Dataset: outcome.Dataset{Source: "c"}},
	}}}
	r := b.record(0)
	require.Equal(t, outcome.Interrupted, r.Outcome)
	require.Len(t, r.Datasets, 1)
	require.Equal(t, "a", r.Datasets[0].Source)
	require.Equal(t, outcome.Failed, r.Datasets[0].Outcome)
}
