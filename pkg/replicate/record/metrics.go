package record

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/replicate"
)

// Metrics renders the states of jobs in Prometheus' text format.
//
// https://prometheus.io/docs/instrumenting/exposition_formats/
func Metrics(states []*State) []byte {
	var b strings.Builder
	family := func(name, help string, samples func(sample func(labels string, value float64))) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
		samples(func(labels string, value float64) {
			fmt.Fprintf(&b, "%s{%s} %s\n", name, labels, strconv.FormatFloat(value, 'f', -1, 64))
		})
	}
	perRun := func(value func(*Run) float64) func(func(string, float64)) {
		return func(sample func(string, float64)) {
			for _, s := range states {
				if s.LastRun != nil {
					sample(fmt.Sprintf("job=%s", quoted(s.Job)), value(s.LastRun))
				}
			}
		}
	}
	// A dataset of a job without a target has the empty target, which to
	// Prometheus is none.
	perDataset := func(value func(*replicate.Arrival) (float64, bool)) func(func(string, float64)) {
		return func(sample func(string, float64)) {
			for _, s := range states {
				for _, source := range slices.Sorted(maps.Keys(s.Datasets)) {
					if a := s.Datasets[source].Alone; a != nil {
						if v, ok := value(&replicate.Arrival{Attempt: a.Attempt}); ok {
							sample(fmt.Sprintf("job=%s,source=%s,target=\"\"", quoted(s.Job), quoted(source)), v)
						}
					}
					for _, target := range slices.Sorted(maps.Keys(s.Datasets[source].Targets)) {
						if v, ok := value(s.Datasets[source].Targets[target]); ok {
							sample(fmt.Sprintf("job=%s,source=%s,target=%s", quoted(s.Job), quoted(source), quoted(target)), v)
						}
					}
				}
			}
		}
	}
	family("zxfer_replicate_last_run_start_seconds", "Begin of the job's last run, Unix time.",
		perRun(func(r *Run) float64 { return float64(r.Started.Unix()) }))
	family("zxfer_replicate_last_run_duration_seconds", "How long the job's last run took.",
		perRun(func(r *Run) float64 { return r.Ended.Sub(r.Started).Seconds() }))
	family("zxfer_replicate_last_run_success", "1 if the job's last run succeeded as a whole, else 0.",
		perRun(func(r *Run) float64 { return truth(r.Succeeded()) }))
	family("zxfer_replicate_dataset_last_success_seconds", "Begin of the last run that brought the dataset up to date, Unix time.",
		perDataset(func(a *replicate.Arrival) (float64, bool) { return float64(a.Success.Unix()), !a.Success.IsZero() }))
	family("zxfer_replicate_dataset_failed", "1 if the dataset failed in the last run, else 0.",
		perDataset(func(a *replicate.Arrival) (float64, bool) { return truth(a.Error != ""), true }))
	family("zxfer_replicate_dataset_last_bytes", "Stream bytes that the last run moved.",
		perDataset(func(a *replicate.Arrival) (float64, bool) { return float64(a.Bytes), true }))
	return []byte(b.String())
}

func truth(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

// quoted is a label's value. The collector reads nothing of a file that is not text.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}
