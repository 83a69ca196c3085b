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
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// Metrics renders the metrics of all jobs of a file: results and due times. If the records of a
// job cannot be read, it returns an error and the metrics of the other jobs.
func Metrics(f *replicate.File, stateDir string, now time.Time) ([]byte, error) {
	var jobs []*replicate.Job
	for i := range f.Jobs {
		jobs = append(jobs, &f.Jobs[i])
	}
	s := Of(jobs, stateDir, now, nil)
	var errs []error
	for _, j := range s.Jobs {
		if j.unread != nil {
			errs = append(errs, fmt.Errorf("job %q: %w", j.Job, j.unread))
		}
		j.keepKnown()
	}
	text, tooLong := exposition(s.Jobs)
	for _, job := range tooLong {
		errs = append(errs, fmt.Errorf("job %q: its metrics exceed %s: the others are missing", job, size.Text(maxJobMetrics)))
	}
	return []byte(text), errors.Join(errs...)
}

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

// maxDiskState is the length of the longest state of a disk, and more.
const maxDiskState = 64

// keepKnown removes what no metric may name: datasets that are not below the job's source, targets that the job does
// not have, and disks that no run looked for. The job's user may own the records.
func (j *JobStatus) keepKnown() {
	of := j.of
	root := ""
	if at, err := endpoint.Parse(of.Source); err == nil {
		root = at.Name
	}
	odd := func(source, to string) bool {
		_, err := zfs.ParseDataset(source)
		return err != nil || source != root && !strings.HasPrefix(source, root+"/") ||
			to != "" && !slices.ContainsFunc(of.Targets, func(t replicate.Target) bool { return t.Name == to })
	}
	j.Datasets = slices.DeleteFunc(j.Datasets, func(d *DatasetStatus) bool { return odd(d.Source, d.To) })
	j.Lacking = slices.DeleteFunc(j.Lacking, func(l LackingCopy) bool { return odd(root, l.To) })
	j.Diverged = slices.DeleteFunc(j.Diverged, func(d DivergedStatus) bool { return odd(root, d.Target) })
	j.Orphans = slices.DeleteFunc(j.Orphans, func(o OrphanStatus) bool { return odd(root, o.To) })
	j.Pools = slices.DeleteFunc(j.Pools, func(p *PoolStatus) bool {
		_, err := zfs.ParseDataset(p.Pool)
		return err != nil
	})
	j.Disks = slices.DeleteFunc(j.Disks, func(d *DiskStatus) bool { return d.State == Unknown || len(d.State) > maxDiskState })
	if j.Drill != nil {
		j.Drill.results = slices.DeleteFunc(j.Drill.results, func(r drillResult) bool { return odd(r.source, r.to) })
	}
}

// family is a metric. Each job is a label of its samples.
type family struct {
	name, help string
	labels     []string // other labels
	// samples calls add for each sample of a job, with the values of labels. It calls it once for the same values:
	// otherwise the collector rejects the file.
	samples func(j *JobStatus, add sample)
}

type sample func(value float64, labels ...string)

// at adds a time, unless it is zero.
func (add sample) at(t time.Time, labels ...string) {
	if !t.IsZero() {
		add(float64(t.Unix()), labels...)
	}
}

// is adds a statement.
func (add sample) is(v bool, labels ...string) {
	if v {
		add(1, labels...)
	} else {
		add(0, labels...)
	}
}

// per returns a function that makes the samples of a job from those of its parts, with the labels of the parts.
func per[T any](parts func(*JobStatus) []T, labels func(T) []string) func(func(T, sample)) func(*JobStatus, sample) {
	return func(samples func(T, sample)) func(*JobStatus, sample) {
		return func(j *JobStatus, add sample) {
			for _, p := range parts(j) {
				samples(p, func(value float64, more ...string) { add(value, append(labels(p), more...)...) })
			}
		}
	}
}

// optional returns a list with p, or an empty one if p is nil.
func optional[T any](p *T) []*T {
	if p == nil {
		return nil
	}
	return []*T{p}
}

// families returns the metrics in the order of the file.
func families() []family {
	job, dataset, pool := []string(nil), []string{"source", "target"}, []string{"target", "pool"}
	ran := func(samples func(*JobStatus, sample)) func(*JobStatus, sample) {
		return func(j *JobStatus, add sample) {
			if !j.LastRun.IsZero() {
				samples(j, add)
			}
		}
	}
	// A dataset of a job without a target has the target "", which Prometheus treats as a missing label.
	datasets := per(func(j *JobStatus) []*DatasetStatus { return j.Datasets }, func(d *DatasetStatus) []string { return []string{d.Source, d.To} })
	pools := per(func(j *JobStatus) []*PoolStatus { return j.Pools }, func(p *PoolStatus) []string { return []string{p.To, p.Pool} })
	disks := per(func(j *JobStatus) []*DiskStatus { return j.Disks }, func(d *DiskStatus) []string { return []string{d.To, d.Pool} })
	drills := per(func(j *JobStatus) []*DrillStatus { return optional(j.Drill) }, func(*DrillStatus) []string { return nil })
	pauses := per(func(j *JobStatus) []*PauseStatus { return optional(j.Pause) }, func(*PauseStatus) []string { return nil })
	drilled := func(samples func(drillResult, sample)) func(*JobStatus, sample) {
		return drills(func(d *DrillStatus, add sample) {
			for _, r := range d.results {
				samples(r, func(value float64, more ...string) { add(value, append([]string{r.source, r.to}, more...)...) })
			}
		})
	}
	// counted counts copies by target, also 0 for each target that has copies.
	counted := func(targets func(*JobStatus) []string) func(*JobStatus, sample) {
		return func(j *JobStatus, add sample) {
			count := map[string]int{}
			for _, d := range j.Datasets {
				if d.To != "" {
					count[d.To] = 0
				}
			}
			for _, to := range targets(j) {
				count[to]++
			}
			for _, to := range slices.Sorted(maps.Keys(count)) {
				add(float64(count[to]), to)
			}
		}
	}
	return []family{
		{"zxfer_replicate_last_run_start_seconds", "Start of the job's last run, Unix time.", job,
			ran(func(j *JobStatus, add sample) { add.at(j.LastRun) })},
		{"zxfer_replicate_last_run_duration_seconds", "Duration of the job's last run.", job,
			ran(func(j *JobStatus, add sample) { add(j.Seconds) })},
		{"zxfer_replicate_last_run_success", "1 if every part of the job's last run succeeded, else 0.", job,
			ran(func(j *JobStatus, add sample) { add.is(j.runState() == OK) })},
		{"zxfer_replicate_last_run_state", "1 for the state that the job's last run ended in, which the label state names.", []string{"state"},
			ran(func(j *JobStatus, add sample) { add(1, j.runState()) })},
		{"zxfer_replicate_dataset_last_success_seconds", "Start of the last run that brought the dataset up to date, Unix time.", dataset,
			datasets(func(d *DatasetStatus, add sample) { add.at(d.Success) })},
		{"zxfer_replicate_dataset_failed", "1 if the dataset failed in the last run, otherwise 0.", dataset,
			datasets(func(d *DatasetStatus, add sample) { add.is(stateOf(d.Outcome) != OK) })},
		{"zxfer_replicate_dataset_last_bytes", "Stream bytes that the last run sent for the dataset.", dataset,
			datasets(func(d *DatasetStatus, add sample) { add(float64(d.lastBytes)) })},
		{"zxfer_replicate_dataset_consistent", "1 if the job's freeze was verified for the most recent snapshot received, else 0. Absent for jobs that freeze nothing.", dataset,
			datasets(func(d *DatasetStatus, add sample) {
				if d.Consistent != nil {
					add.is(*d.Consistent)
				}
			})},
		{"zxfer_replicate_pool_data_errors", "Data errors of a pool of the job. Absent for pools without any. The source's pool has an empty target.", pool,
			pools(func(p *PoolStatus, add sample) {
				if p.State == Damaged {
					add(float64(p.Errors))
				}
			})},
		{"zxfer_replicate_pool_repairable", "1 if copies of the job can repair all data errors of the pool, else 0. Absent for pools without any, and if unknown.", pool,
			pools(func(p *PoolStatus, add sample) {
				if p.Repair != "" && p.Repair != heal.RepairUnknown {
					add.is(p.Repair == heal.RepairFull)
				}
			})},
		{"zxfer_replicate_pool_checked_seconds", "Start of the last run in which the pool's host listed its data errors, Unix time. Absent if none did.", pool,
			pools(func(p *PoolStatus, add sample) { add.at(p.Checked) })},
		{"zxfer_replicate_disk_state", "1 for the state of the target's disk in the last run, which the label state names.", append(slices.Clone(pool), "state"),
			disks(func(d *DiskStatus, add sample) { add(1, d.State) })},
		{"zxfer_replicate_disk_since_seconds", "Start of the first run that saw the target's disk in this state, Unix time.", pool,
			disks(func(d *DiskStatus, add sample) { add.at(d.Since) })},
		{"zxfer_replicate_disk_scrubbed_seconds", "End of the last known scrub of the disk's pool, Unix time. Absent if there is none.", pool,
			disks(func(d *DiskStatus, add sample) { add.at(d.Scrubbed) })},
		{"zxfer_replicate_set_aside", "Diverged copies that were renamed and still exist.", []string{"target"}, counted(func(j *JobStatus) (to []string) {
			for _, d := range j.Diverged {
				to = append(to, d.Target)
			}
			return to
		})},
		{"zxfer_replicate_gone", "Copies whose originals were deleted on the source.", []string{"target"}, counted(func(j *JobStatus) (to []string) {
			for _, o := range j.Orphans {
				to = append(to, o.To)
			}
			return to
		})},
		{"zxfer_replicate_lacking", "Copies that lack properties of their source, such as acltype.", []string{"target"}, counted(func(j *JobStatus) (to []string) {
			for _, l := range j.Lacking {
				to = append(to, l.To)
			}
			return to
		})},
		{"zxfer_replicate_drill_last_good_seconds", "Start of the last drill that found the copy good, Unix time.", dataset,
			drilled(func(r drillResult, add sample) { add.at(r.good) })},
		{"zxfer_replicate_drill_good", "1 if the job's last drill found the copy good, else 0. Absent until a drill ended, and for newer copies.", dataset,
			drilled(func(r drillResult, add sample) { add.is(r.state == OK) })},
		{"zxfer_replicate_drill_state", "1 for the state in which the job's last drill left the copy, which the label state names.", append(slices.Clone(dataset), "state"),
			drilled(func(r drillResult, add sample) { add(1, r.state) })},
		{"zxfer_replicate_next_run_seconds", "Next scheduled start when the metrics were written, Unix time.", job,
			func(j *JobStatus, add sample) { add.at(j.Next) }},
		{"zxfer_replicate_paused", "1 if the job or its transfers are paused, otherwise 0.", job,
			func(j *JobStatus, add sample) { add.is(j.Pause != nil) }},
		{"zxfer_replicate_paused_until_seconds", "End of the job's pause, Unix time. Absent without a pause, and if it lasts until resume.", job,
			pauses(func(p *PauseStatus, add sample) { add.at(p.Until) })},
		{"zxfer_replicate_dataset_late_after_seconds", "Time at which the dataset becomes late unless a run succeeds before, Unix time.", dataset,
			datasets(func(d *DatasetStatus, add sample) { add.at(d.LateAfter) })},
		{"zxfer_replicate_dataset_critical_after_seconds", "Time at which the dataset will also have missed a second scheduled run, Unix time.", dataset,
			datasets(func(d *DatasetStatus, add sample) { add.at(d.criticalAfter) })},
		{"zxfer_replicate_drill_late_after_seconds", "Time at which the job's drills become late unless one finds all copies good before, Unix time.", job,
			drills(func(d *DrillStatus, add sample) { add.at(d.LateAfter) })},
		{"zxfer_replicate_drill_critical_after_seconds", "Time at which the job will also have missed a second scheduled drill, Unix time.", job,
			drills(func(d *DrillStatus, add sample) { add.at(d.criticalAfter) })},
	}
}

// runState returns the state that the last run ended in.
func (j *JobStatus) runState() string {
	if j.Outcome == "" { // a record of another version
		return outcome.Failed
	}
	return stateOf(j.Outcome)
}

// maxJobMetrics is the size in bytes of all samples of a job. 20,000 copies need about 16 MiB.
const maxJobMetrics = 16 << 20

// exposition returns the gauges of jobs in Prometheus' text format. It omits samples of a job above maxJobMetrics, and
// returns the jobs of these.
//
// https://prometheus.io/docs/instrumenting/exposition_formats/
func exposition(jobs []*JobStatus) (string, []string) {
	var text strings.Builder
	sizes := map[string]int{} // in bytes, with those of omitted samples
	for _, m := range families() {
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name)
		for _, j := range jobs {
			m.samples(j, func(value float64, labels ...string) {
				line := m.name + "{job=" + quoted(j.Job)
				for i, label := range m.labels {
					line += "," + label + "=" + quoted(labels[i])
				}
				line += "} " + strconv.FormatFloat(value, 'f', -1, 64) + "\n"
				if sizes[j.Job] += len(line); sizes[j.Job] <= maxJobMetrics {
					text.WriteString(line)
				}
			})
		}
	}
	maps.DeleteFunc(sizes, func(_ string, n int) bool { return n <= maxJobMetrics })
	return text.String(), slices.Sorted(maps.Keys(sizes))
}

// quoted returns a label value. The collector rejects invalid UTF-8.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}
