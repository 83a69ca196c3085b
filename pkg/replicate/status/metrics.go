package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// Metrics renders the metrics of all jobs of a file: results and due times. If the records of a
// job cannot be read, it returns an error and the metrics of the other jobs.
func Metrics(f *replicate.File, stateDir string, now time.Time) ([]byte, error) {
	var states, all []*statedir.State // without unreadable ones, and for each job
	var due []*JobStatus
	var errs []error
	for i := range f.Jobs {
		j := &f.Jobs[i]
		st, err := statedir.Peek(stateDir, j.Name).FullState()
		if err != nil {
			errs = append(errs, fmt.Errorf("job %q: %w", j.Name, err))
			st = &statedir.State{} // the next run depends only on the schedule
		} else {
			keepKnown(j, st)
			states = append(states, st)
		}
		all = append(all, st)
		pause, err := statedir.Paused(stateDir, j.Name, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("job %q: %w", j.Name, err))
		}
		due = append(due, statusOf(j, st, statusTimes{now: now, pause: pause}))
	}
	e := recordedMetrics(states)
	e.addFamily("zxfer_replicate_drill_good", "1 if the job's last drill found the copy good, else 0. Absent until a drill ended, and for newer copies.")
	for i, st := range all {
		drilledWell(&f.Jobs[i], st, func(source, to string, good bool) {
			e.addSample(boolValue(good), f.Jobs[i].Name, "source", source, "target", to)
		})
	}
	at := func(t time.Time, job string, labels ...string) {
		if !t.IsZero() {
			e.addSample(float64(t.Unix()), job, labels...)
		}
	}
	e.addFamily("zxfer_replicate_next_run_seconds", "Next scheduled start when the metrics were written, Unix time.")
	for _, j := range due {
		at(j.Next, j.Job)
	}
	e.addFamily("zxfer_replicate_paused", "1 if the job or its transfers are paused, otherwise 0.")
	for _, j := range due {
		e.addSample(boolValue(j.Pause != nil), j.Job)
	}
	e.addFamily("zxfer_replicate_paused_until_seconds", "End of the job's pause, Unix time. Absent without a pause, and if it lasts until resume.")
	for _, j := range due {
		if j.Pause != nil {
			at(j.Pause.Until, j.Job)
		}
	}
	e.addFamily("zxfer_replicate_dataset_late_after_seconds", "Time at which the dataset becomes late unless a run succeeds before, Unix time.")
	for _, j := range due {
		for _, d := range j.Datasets {
			at(d.LateAfter, j.Job, "source", d.Source, "target", d.To)
		}
	}
	e.addFamily("zxfer_replicate_drill_late_after_seconds", "Time at which the job's drills become late unless one finds all copies good before, Unix time.")
	for _, j := range due {
		if j.Drill != nil {
			at(j.Drill.LateAfter, j.Job)
		}
	}
	for _, job := range slices.Sorted(maps.Keys(e.size)) {
		if e.size[job] > maxJobMetrics {
			errs = append(errs, fmt.Errorf("job %q: its metrics exceed %s: the others are missing", job, size.Text(maxJobMetrics)))
		}
	}
	return e.bytes(), errors.Join(errs...)
}

// maxJobMetrics is the size in bytes of all samples of a job. 20,000 copies need about 16 MiB.
const maxJobMetrics = 16 << 20

// WriteMetrics writes the metrics to the file's Textfile, even if some records cannot be read. A
// lock keeps concurrent jobs from overwriting each other's results.
func WriteMetrics(ctx context.Context, f *replicate.File, stateDir string, now time.Time) error {
	err := statedir.WithLock(ctx, stateDir, func() error {
		text, err := Metrics(f, stateDir, now)
		return errors.Join(err, statedir.Replace(f.Metrics.Textfile, text, 0o644))
	})
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// recordedMetrics returns the metrics of the last runs, and when drills found copies good.
func recordedMetrics(states []*statedir.State) *exposition {
	e := &exposition{}
	for _, m := range []struct {
		name, help string
		value      func(*statedir.Run) float64
	}{
		{"zxfer_replicate_last_run_start_seconds", "Start of the job's last run, Unix time.", func(r *statedir.Run) float64 { return float64(r.Started.Unix()) }},
		{"zxfer_replicate_last_run_duration_seconds", "Duration of the job's last run.", func(r *statedir.Run) float64 { return r.Ended.Sub(r.Started).Seconds() }},
		{"zxfer_replicate_last_run_success", "1 if every part of the job's last run succeeded, else 0.", func(r *statedir.Run) float64 { return boolValue(r.Succeeded()) }},
	} {
		e.addFamily(m.name, m.help)
		for _, s := range states {
			if s.LastRun != nil {
				e.addSample(m.value(s.LastRun), s.Job)
			}
		}
	}
	for _, m := range []struct {
		name, help string
		value      func(*replicate.CopyState) (float64, bool)
	}{
		{"zxfer_replicate_dataset_last_success_seconds", "Start of the last run that brought the dataset up to date, Unix time.",
			func(a *replicate.CopyState) (float64, bool) { return float64(a.Success.Unix()), !a.Success.IsZero() }},
		{"zxfer_replicate_dataset_failed", "1 if the dataset failed in the last run, otherwise 0.",
			func(a *replicate.CopyState) (float64, bool) { return boolValue(a.Error != ""), true }},
		{"zxfer_replicate_dataset_last_bytes", "Stream bytes that the last run sent for the dataset.",
			func(a *replicate.CopyState) (float64, bool) { return float64(a.Bytes), true }},
	} {
		e.addFamily(m.name, m.help)
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
						e.addSample(v, s.Job, "source", source, "target", target)
					}
				}
			}
		}
	}
	e.addFamily("zxfer_replicate_dataset_consistent", "1 if the job's freeze was verified for the most recent snapshot received, else 0. Absent for jobs that freeze nothing.")
	for _, s := range states {
		for _, source := range slices.Sorted(maps.Keys(s.Datasets)) {
			known := s.Datasets[source]
			addSample := func(target, snapshot string) {
				if proved, known := known.Consistent[snapshot]; known {
					e.addSample(boolValue(proved), s.Job, "source", source, "target", target)
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
	e.addFamily("zxfer_replicate_pool_data_errors", "Data errors of a pool of the job. Absent for pools without any. The source's pool has an empty target.")
	for _, s := range states {
		if s.LastRun != nil {
			for _, d := range s.LastRun.Damaged {
				e.addSample(float64(d.Errors), s.Job, "target", d.Target, "pool", d.Pool)
			}
		}
	}
	e.addFamily("zxfer_replicate_pool_repairable", "1 if copies of the job can repair all data errors of the pool, else 0. Absent for pools without any, and if unknown.")
	for _, s := range states {
		if s.LastRun != nil {
			for _, d := range s.LastRun.Damaged {
				if d.Repair != "" && d.Repair != heal.RepairUnknown {
					e.addSample(boolValue(d.Repair == heal.RepairFull), s.Job, "target", d.Target, "pool", d.Pool)
				}
			}
		}
	}
	e.addFamily("zxfer_replicate_pool_checked_seconds", "Start of the last run in which the pool's host listed its data errors, Unix time. Absent if none did.")
	for _, s := range states {
		for _, target := range slices.Sorted(maps.Keys(s.Pools)) {
			if p := s.Pools[target]; !p.Checked.IsZero() {
				e.addSample(float64(p.Checked.Unix()), s.Job, "target", target, "pool", p.Name)
			}
		}
	}
	diskMetrics(e, states)
	keptCopies(e, states)
	e.addFamily("zxfer_replicate_drill_last_good_seconds", "Start of the last drill that found the copy good, Unix time.")
	for _, s := range states {
		s.Drills.All(func(c *statedir.DrilledCopy) {
			if !c.Good.IsZero() {
				e.addSample(float64(c.Good.Unix()), s.Job, "source", c.Source, "target", c.To)
			}
		})
	}
	return e
}

// diskMetrics adds the states of disks that come and go.
func diskMetrics(e *exposition, states []*statedir.State) {
	for _, m := range []struct {
		name, help string
		value      func(*replicate.DiskState) (float64, bool)
	}{
		{"zxfer_replicate_disk_state", "1 for the state of the target's disk in the last run, which the label state names.",
			func(*replicate.DiskState) (float64, bool) { return 1, true }},
		{"zxfer_replicate_disk_since_seconds", "Start of the first run that saw the target's disk in this state, Unix time.",
			func(d *replicate.DiskState) (float64, bool) { return float64(d.Since.Unix()), !d.Since.IsZero() }},
		{"zxfer_replicate_disk_scrubbed_seconds", "End of the last known scrub of the disk's pool, Unix time. Absent if there is none.",
			func(d *replicate.DiskState) (float64, bool) { return float64(d.Scrubbed.Unix()), !d.Scrubbed.IsZero() }},
	} {
		e.addFamily(m.name, m.help)
		for _, s := range states {
			for _, target := range slices.Sorted(maps.Keys(s.Disks)) {
				d := s.Disks[target]
				v, ok := m.value(d)
				labels := []string{"target", target, "pool", d.Pool}
				if strings.HasSuffix(m.name, "_state") {
					labels = append(labels, "state", string(d.State))
				}
				if ok {
					e.addSample(v, s.Job, labels...)
				}
			}
		}
	}
}

// keptCopies adds the numbers of diverged copies, orphans, and copies that lack properties, by target.
func keptCopies(e *exposition, states []*statedir.State) {
	for _, m := range []struct {
		name, help string
		targets    func(*statedir.State) []string // one entry per copy
	}{
		{"zxfer_replicate_set_aside", "Diverged copies that were renamed and still exist.", func(s *statedir.State) (all []string) {
			for _, a := range s.Diverged {
				all = append(all, a.Target)
			}
			return all
		}},
		{"zxfer_replicate_gone", "Copies whose originals were deleted on the source.", func(s *statedir.State) (all []string) {
			for _, g := range s.Orphans {
				all = append(all, g.Target)
			}
			return all
		}},
		{"zxfer_replicate_lacking", "Copies that lack properties of their source, such as acltype.", func(s *statedir.State) (all []string) {
			for _, known := range s.Datasets {
				for target, a := range known.Targets {
					if a.Lacks != "" {
						all = append(all, target)
					}
				}
			}
			return all
		}},
	} {
		e.addFamily(m.name, m.help)
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
				e.addSample(float64(count[target]), s.Job, "target", target)
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

// exposition builds gauges in Prometheus' text format. It omits a sample whose labels the metric
// already has, because it makes the whole file invalid, and samples of a job above maxJobMetrics.
//
// https://prometheus.io/docs/instrumenting/exposition_formats/
type exposition struct {
	text strings.Builder
	name string
	seen map[string]bool // labels of the last metric
	size map[string]int  // bytes by job, with those of omitted samples
}

// addFamily starts a metric.
func (e *exposition) addFamily(name, help string) {
	e.name, e.seen = name, map[string]bool{}
	fmt.Fprintf(&e.text, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
}

// addSample adds a value to the last family. more are pairs of the names and values of more labels.
func (e *exposition) addSample(value float64, job string, more ...string) {
	pairs := []string{"job=" + quoted(job)}
	for pair := range slices.Chunk(more, 2) {
		pairs = append(pairs, pair[0]+"="+quoted(pair[1]))
	}
	labels := strings.Join(pairs, ",")
	line := fmt.Sprintf("%s{%s} %s\n", e.name, labels, strconv.FormatFloat(value, 'f', -1, 64))
	if e.seen[labels] {
		return
	}
	if e.size == nil {
		e.size = map[string]int{}
	}
	if e.size[job] += len(line); e.size[job] > maxJobMetrics {
		return
	}
	e.seen[labels] = true
	e.text.WriteString(line)
}

// quoted returns a label value. The collector rejects invalid UTF-8.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}

// bytes returns the text so far.
func (e *exposition) bytes() []byte { return []byte(e.text.String()) }

// maxDiskState is the length of the longest state of a disk, and more.
const maxDiskState = 64

// keepKnown removes from the records of a job what no metric may name: datasets that are not below the
// job's source, and targets that the job does not have. The job's user may own the records.
func keepKnown(j *replicate.Job, st *statedir.State) {
	root := ""
	if at, err := endpoint.Parse(j.Source); err == nil {
		root = at.Name
	}
	isSource := func(name string) bool {
		_, err := zfs.ParseDataset(name)
		return err == nil && (name == root || strings.HasPrefix(name, root+"/"))
	}
	isTarget := func(name string) bool {
		return slices.ContainsFunc(j.Targets, func(t replicate.Target) bool { return t.Name == name })
	}
	isPool := func(name string) bool {
		_, err := zfs.ParseDataset(name)
		return err == nil
	}
	maps.DeleteFunc(st.Datasets, func(source string, d *replicate.DatasetState) bool {
		maps.DeleteFunc(d.Targets, func(to string, _ *replicate.CopyState) bool { return !isTarget(to) })
		return !isSource(source)
	})
	maps.DeleteFunc(st.Drills.Copies, func(source string, of map[string]*statedir.DrilledCopy) bool {
		maps.DeleteFunc(of, func(to string, _ *statedir.DrilledCopy) bool { return !isTarget(to) })
		return !isSource(source)
	})
	maps.DeleteFunc(st.Pools, func(to string, p *statedir.Pool) bool { return to != "" && !isTarget(to) || !isPool(p.Name) })
	maps.DeleteFunc(st.Disks, func(to string, d *replicate.DiskState) bool {
		return !isTarget(to) || d.Pool != "" && !isPool(d.Pool) || len(d.State) > maxDiskState
	})
	if r := st.LastRun; r != nil {
		r.Damaged = slices.DeleteFunc(r.Damaged, func(d *statedir.Damage) bool {
			return d.Target != "" && !isTarget(d.Target) || !isPool(d.Pool)
		})
	}
	st.Diverged = slices.DeleteFunc(st.Diverged, func(c replicate.DivergedCopy) bool { return !isTarget(c.Target) })
	st.Orphans = slices.DeleteFunc(st.Orphans, func(o *replicate.Orphan) bool { return o == nil || !isTarget(o.Target) })
}
