package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/status"
)

// Limits of the output in bytes. Old readers cut it at 4 KiB, and people read the first line on a
// pager.
const (
	nagiosFirstLine = 240  // the first line without its performance data
	nagiosPerf      = 2000 // the performance data, of which the rest is omitted
	nagiosMax       = 4000
)

// Nagios writes the status of all jobs as a monitoring plugin does, worst first: one line,
// performance data after "|", and more lines.
func Nagios(w io.Writer, s *status.Status) (status.Severity, error) {
	sum := status.Summarize(s.Jobs...)
	var perf []string
	var jobs []summarizedJob
	for _, j := range s.Jobs { // performance data has the same order in each run
		jobs = append(jobs, summarizedJob{j, status.Summarize(j)})
		perf = append(perf, performance(jobs[len(jobs)-1])...)
	}
	well := english.Plural(sum.Jobs, "job", "") + ", " + english.Plural(sum.Copies, "dataset", "") + ", none late or failed"
	return nagios(w, jobs, well, func(bad int) string { return countBad(bad, sum.Jobs) }, perf)
}

// countBad formats how many of all jobs have a bad state.
func countBad(bad, all int) string {
	return fmt.Sprintf("%d of %s", bad, english.Plural(all, "job", ""))
}

// summarizedJob is a job and its summary. Its Datasets may have only the copies in a bad state.
type summarizedJob struct {
	*status.JobStatus
	sum *status.Summary
}

// NagiosHosts is Nagios for many hosts. It shows an unreachable host as a job, and counts it separately.
func NagiosHosts(w io.Writer, f *fleet.Fleet) (status.Severity, error) {
	var jobs []summarizedJob
	sum := f.Summary()
	for _, h := range f.Hosts {
		if h.State == status.Unreachable {
			silent := &status.JobStatus{Job: oneLine(h.Host), State: h.State}
			silent.LastRun, silent.Problems = time.Unix(0, 0), []*status.Problem{{State: h.State, Error: h.Error}}
			jobs = append(jobs, summarizedJob{silent, status.Summarize(silent)})
		}
		for _, j := range h.Jobs {
			of := *j.JobStatus
			of.Job = oneLine(h.Host) + " " + of.Job
			jobs = append(jobs, summarizedJob{&of, fleet.Summarize(j)})
		}
	}
	hosts := english.Plural(len(f.Hosts), "host", "")
	well := fmt.Sprintf("%s, %s, %s, none late or failed", hosts, english.Plural(sum.Jobs, "job", ""), english.Plural(sum.Copies, "copy", "copies"))
	perf := []string{fmt.Sprintf("hosts=%d;;;0", len(f.Hosts)), fmt.Sprintf("unreachable=%d;;;0", f.Unreachable), fmt.Sprintf("late=%d;;;0", sum.LateJobs),
		fmt.Sprintf("failed=%d;;;0", sum.FailedJobs), fmt.Sprintf("copies=%d;;;0", sum.Copies), fmt.Sprintf("aside=%d;;;0", sum.Diverged), fmt.Sprintf("gone=%d;;;0", sum.Orphans)}
	return nagios(w, jobs, well, func(bad int) string {
		var parts []string
		if bad -= f.Unreachable; bad > 0 {
			parts = append(parts, countBad(bad, sum.Jobs)+" on "+hosts)
		}
		if n := f.Unreachable; n > 0 {
			parts = append(parts, fmt.Sprintf("%d of %s did not answer", n, hosts))
		}
		return strings.Join(parts, ", ")
	}, perf)
}

// nagios writes jobs. well is the text if all are OK; otherwise sum describes how many are not.
func nagios(w io.Writer, jobs []summarizedJob, well string, sum func(bad int) string, perf []string) (status.Severity, error) {
	slices.SortStableFunc(jobs, func(a, b summarizedJob) int { return b.Severity().Rank() - a.Severity().Rank() })
	count, paused := pausedJobs(jobs)
	var said, more []string
	worst := status.SeverityOK
	for _, j := range jobs {
		if j.Severity() != status.SeverityOK {
			worst = jobs[0].Severity()
			said = append(said, shorten(j.Job+": "+jobSummary(j), nagiosFirstLine/2))
			more = append(more, jobDetails(j.JobStatus)...)
		}
	}
	text := well + count
	more = append(more, paused...)
	if len(said) > 0 {
		of := " (" + sum(len(said)) + ")"
		text = shorten(strings.Join(said, "; "), nagiosFirstLine-max(40, len("ZXFER CRITICAL: ")+len(of))) + of
	}
	out := nagiosLine(worst, text)
	if data := joinWithin(perf, " ", nagiosPerf); data != "" {
		out += " | " + data
	}
	for i, l := range more {
		l = "\n" + replacePipes(shorten(l, nagiosMax/4))
		if rest := fmt.Sprintf("\n... and %s", english.Plural(len(more)-i, "line", "")); len(out)+len(l)+len(rest) > nagiosMax {
			out += rest
			break
		}
		out += l
	}
	return worst, writeString(w, out+"\n")
}

// pausedJobs counts paused jobs, and lists them with their pauses.
func pausedJobs(jobs []summarizedJob) (count string, lines []string) {
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j summarizedJob) bool { return j.Pause == nil })
	if len(jobs) == 0 {
		return "", nil
	}
	for _, j := range jobs {
		lines = append(lines, j.Job+": "+strings.Join(Pauses(j.JobStatus, stamp), ", "))
	}
	return fmt.Sprintf(", %d paused", len(jobs)), lines
}

// NagiosUnknown writes why the state is unknown.
func NagiosUnknown(w io.Writer, err error) error {
	return writeString(w, nagiosLine(status.SeverityUnknown, shorten(joinLines(err.Error()), nagiosFirstLine))+"\n")
}

func nagiosLine(severity status.Severity, text string) string {
	return "ZXFER " + severity.String() + ": " + replacePipes(text)
}

// replacePipes replaces "|", which starts performance data.
func replacePipes(s string) string { return strings.ReplaceAll(s, "|", "/") }

// shorten limits a text to most bytes.
func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-3], "") + "..."
}

// joinWithin joins the first parts that fit into most bytes.
func joinWithin(parts []string, sep string, most int) string {
	out := ""
	for _, p := range parts {
		if len(out)+len(sep)+len(p) > most {
			break
		}
		out += sep + p
	}
	return strings.TrimPrefix(out, sep)
}

// jobSummary describes what is wrong with a job.
func jobSummary(j summarizedJob) string {
	var parts []string
	if j.LastRun.IsZero() {
		parts = InProgress(j.JobStatus)
	}
	parts = append(parts, firstProblem(j.JobStatus)...)
	parts = append(parts, Warnings(j.JobStatus)...)
	if late := j.sum.Late; late > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s late", late, english.Plural(j.sum.Copies, "dataset", ""))+lateBy(j.Lag))
	} else if j.Late && j.sum.Copies == 0 && j.State == status.Late {
		parts = append(parts, "late"+lateBy(j.Lag))
	}
	return strings.Join(parts, ", ")
}

// jobDetails describes a job in a bad state on several lines.
func jobDetails(j *status.JobStatus) []string {
	out := []string{fmt.Sprintf("%s: %s", j.Job, j.Severity())}
	if j.LastRun.IsZero() {
		out = append(out, InProgress(j)...)
	}
	for _, p := range j.Problems {
		out = append(out, Problem(p))
	}
	for _, d := range j.Datasets {
		if d.Late {
			out = append(out, strings.TrimSuffix("late"+lateBy(d.Lag)+": "+oneLine(d.Source)+" to "+oneLine(d.To), " to "))
		}
	}
	for _, l := range j.Lacking {
		out = append(out, lackingCopy(l))
	}
	return out
}

func lateBy(lag float64) string {
	if lag == 0 {
		return ""
	}
	return " by " + Seconds(lag)
}

// performance returns the performance data of a job. Job names need no quotes. The metric precedes
// the name, because RRD distinguishes labels by their first 19 characters.
func performance(j summarizedJob) []string {
	if j.State == status.Unknown {
		return nil
	}
	failed := j.sum.Failed
	if failed == 0 && (j.Outcome == outcome.Failed || j.Outcome == outcome.Refused) {
		failed = 1 // a failure of the whole run
	}
	out := []string{fmt.Sprintf("failed_%s=%d;;0;0", j.Job, failed), fmt.Sprintf("datasets_%s=%d;;;0", j.Job, j.sum.Copies)}
	if d := j.Drill; d != nil && d.Warning > 0 {
		age := fmt.Sprintf("%.0fs", d.Age)
		if d.Good.IsZero() {
			age = "U" // a copy was never verified
		}
		out = append(out, fmt.Sprintf("drill_%s=%s;%.0f;%.0f;0", j.Job, age, d.Warning, d.Critical))
	}
	if n := j.sum.Diverged; n > 0 {
		out = append(out, fmt.Sprintf("aside_%s=%d;;;0", j.Job, n))
	}
	if n := j.sum.Orphans; n > 0 {
		out = append(out, fmt.Sprintf("gone_%s=%d;;;0", j.Job, n))
	}
	if n := j.sum.Lacking; n > 0 {
		out = append(out, fmt.Sprintf("lacking_%s=%d;0;;0", j.Job, n))
	}
	if j.LagWarning == 0 {
		return out
	}
	critical := ""
	if j.LagCritical > 0 {
		critical = fmt.Sprintf("%.0f", j.LagCritical)
	}
	lag := fmt.Sprintf("%.0fs", j.Lag)
	if j.Late && j.Lag == 0 {
		lag = "U" // late by an unknown amount
	}
	return append([]string{fmt.Sprintf("lag_%s=%s;%.0f;%s;0", j.Job, lag, j.LagWarning, critical)}, out...)
}
