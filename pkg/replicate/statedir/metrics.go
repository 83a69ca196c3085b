package statedir

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
)

// Metrics returns the metrics of jobs.
func Metrics(states []*State) *Exposition {
	e := &Exposition{}
	for _, m := range []struct {
		name, help string
		value      func(*Run) float64
	}{
		{"zxfer_replicate_last_run_start_seconds", "Start of the job's last run, Unix time.", func(r *Run) float64 { return float64(r.Started.Unix()) }},
		{"zxfer_replicate_last_run_duration_seconds", "Duration of the job's last run.", func(r *Run) float64 { return r.Ended.Sub(r.Started).Seconds() }},
		{"zxfer_replicate_last_run_success", "1 if every part of the job's last run succeeded, else 0.", func(r *Run) float64 { return boolValue(r.Succeeded()) }},
	} {
		e.Family(m.name, m.help)
		for _, s := range states {
			if s.LastRun != nil {
				e.Sample(m.value(s.LastRun), "job", s.Job)
			}
		}
	}
	for _, m := range []struct {
		name, help string
		value      func(*replicate.CopyState) (float64, bool)
	}{
		{"zxfer_replicate_dataset_last_success_seconds", "Start of the last run that brought the dataset up to date, Unix time.",
			func(a *replicate.CopyState) (float64, bool) { return float64(a.Success.Unix()), !a.Success.IsZero() }},
		{"zxfer_replicate_dataset_failed", "1 if the dataset failed in the last run, else 0.",
			func(a *replicate.CopyState) (float64, bool) { return boolValue(a.Error != ""), true }},
		{"zxfer_replicate_dataset_last_bytes", "Stream bytes that the last run sent for the dataset.",
			func(a *replicate.CopyState) (float64, bool) { return float64(a.Bytes), true }},
	} {
		e.Family(m.name, m.help)
		for _, s := range states {
			for _, source := range slices.Sorted(maps.Keys(s.Datasets)) {
				at := s.Datasets[source].Targets
				if a := s.Datasets[source].Local; a != nil { // Prometheus treats an empty label as missing
					at = maps.Clone(at)
					if at == nil {
						at = map[string]*replicate.CopyState{}
					}
					at[""] = &replicate.CopyState{Attempt: a.Attempt}
				}
				for _, target := range slices.Sorted(maps.Keys(at)) {
					if v, ok := m.value(at[target]); ok {
						e.Sample(v, "job", s.Job, "source", source, "target", target)
					}
				}
			}
		}
	}
	e.Family("zxfer_replicate_dataset_consistent", "1 if the job's freeze was verified for the most recent snapshot received, else 0. Absent for jobs that freeze nothing.")
	for _, s := range states {
		for _, source := range slices.Sorted(maps.Keys(s.Datasets)) {
			known := s.Datasets[source]
			addSample := func(target, snapshot string) {
				if proved, known := known.Consistent[snapshot]; known {
					e.Sample(boolValue(proved), "job", s.Job, "source", source, "target", target)
				}
			}
			if known.Local != nil {
				addSample("", known.Local.Snapshot)
			}
			for _, target := range slices.Sorted(maps.Keys(known.Targets)) {
				addSample(target, known.Targets[target].Base)
			}
		}
	}
	e.Family("zxfer_replicate_pool_data_errors", "Data errors of a pool of the job. Absent for pools without any. The source's pool has an empty target.")
	for _, s := range states {
		if s.LastRun != nil {
			for _, d := range s.LastRun.Damaged {
				e.Sample(float64(d.Errors), "job", s.Job, "target", d.Target, "pool", d.Pool)
			}
		}
	}
	keptCopies(e, states)
	for _, m := range []struct {
		name, help string
		value      func(*Drilled) (float64, bool)
	}{
		{"zxfer_replicate_drill_last_good_seconds", "Start of the last drill that found the copy good, Unix time.",
			func(c *Drilled) (float64, bool) { return float64(c.Good.Unix()), !c.Good.IsZero() }},
		{"zxfer_replicate_drill_good", "1 if the copy's last drill found it good, else 0.",
			func(c *Drilled) (float64, bool) { return boolValue(c.Outcome == outcome.Done), true }},
	} {
		e.Family(m.name, m.help)
		for _, s := range states {
			s.Drills.All(func(c *Drilled) {
				if v, ok := m.value(c); ok {
					e.Sample(v, "job", s.Job, "source", c.Source, "target", c.To)
				}
			})
		}
	}
	return e
}

// keptCopies adds the numbers of diverged copies and orphans, by target.
func keptCopies(e *Exposition, states []*State) {
	for _, m := range []struct {
		name, help string
		targets    func(*State) []string // one entry per copy
	}{
		{"zxfer_replicate_set_aside", "Diverged copies that were renamed and still exist.", func(s *State) (all []string) {
			for _, a := range s.Diverged {
				all = append(all, a.Target)
			}
			return all
		}},
		{"zxfer_replicate_gone", "Copies whose originals were deleted on the source.", func(s *State) (all []string) {
			for _, g := range s.Orphans {
				all = append(all, g.Target)
			}
			return all
		}},
	} {
		e.Family(m.name, m.help)
		for _, s := range states {
			count := map[string]int{}
			for _, known := range s.Datasets {
				for target := range known.Targets {
					count[target] = 0
				}
			}
			for _, target := range m.targets(s) {
				count[target]++
			}
			for _, target := range slices.Sorted(maps.Keys(count)) {
				e.Sample(float64(count[target]), "job", s.Job, "target", target)
			}
		}
	}
}

func boolValue(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

// Exposition builds gauges in Prometheus' text format.
//
// https://prometheus.io/docs/instrumenting/exposition_formats/
type Exposition struct {
	text strings.Builder
	name string
}

// Family starts a metric.
func (e *Exposition) Family(name, help string) {
	e.name = name
	fmt.Fprintf(&e.text, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
}

// Sample adds a value to the last family. labels are pairs of name and value.
func (e *Exposition) Sample(value float64, labels ...string) {
	var pairs []string
	for pair := range slices.Chunk(labels, 2) {
		pairs = append(pairs, pair[0]+"="+quoted(pair[1]))
	}
	fmt.Fprintf(&e.text, "%s{%s} %s\n", e.name, strings.Join(pairs, ","), strconv.FormatFloat(value, 'f', -1, 64))
}

// quoted returns a label value. The collector rejects invalid UTF-8.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}

// Bytes returns the text so far.
func (e *Exposition) Bytes() []byte { return []byte(e.text.String()) }
