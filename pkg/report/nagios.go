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
	"zxfer/pkg/replicate/runner"
)

// Level is how bad things are, as monitoring plugins tell it: their exit code.
//
// https://www.monitoring-plugins.org/doc/guidelines.html
type Level int

// The levels. Of several, what is critical counts for more than a warning, and
// that for more than what is not known.
const (
	LevelOK Level = iota
	LevelWarning
	LevelCritical
	LevelUnknown
)

func (l Level) String() string { return [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}[l] }

// rank orders levels, the worst highest.
func (l Level) rank() int { return [...]int{0, 2, 3, 1}[l] }

// What a check writes has bounds, in bytes: of longer output the oldest readers, which
// take 4 KiB, would lose the end, and a line is read on a pager.
const (
	nagiosFirst = 240  // the first line without its performance data
	nagiosPerf  = 2000 // which is left out from where it would be longer
	nagiosMost  = 4000
)

// Nagios writes how all jobs stand as a monitoring plugin does, what is worst first:
// a line, performance data behind "|", and more lines.
func Nagios(w io.Writer, s *runner.Status) (Level, error) {
	var perf []string
	datasets := 0
	for _, j := range s.Jobs { // always in the same order, whatever is left out
		perf = append(perf, performance(j)...)
		datasets += len(j.Datasets)
	}
	well := english.Plural(len(s.Jobs), "job", "") + ", " + english.Plural(datasets, "dataset", "") + ", none late or failed"
	var jobs []checked
	for _, j := range s.Jobs {
		jobs = append(jobs, checked{j, len(j.Datasets)})
	}
	return nagios(w, jobs, well, func(bad int) string { return ofAll(bad, len(s.Jobs)) }, perf)
}

// ofAll tells how many of all jobs are not well.
func ofAll(bad, all int) string { return fmt.Sprintf("%d of %s", bad, english.Plural(all, "job", "")) }

// checked is a job with so many copies, of which it may have but those that are not
// well.
type checked struct {
	*runner.JobStatus
	copies int
}

// NagiosHosts is Nagios of many hosts: one that does not answer is shown as a job of
// which nothing is known, and counted apart.
func NagiosHosts(w io.Writer, f *fleet.Fleet) (Level, error) {
	var jobs []checked
	all, copies, late, failed, aside, gone := 0, 0, 0, 0, 0, 0
	for _, h := range f.Hosts {
		if h.State == fleet.Unreachable {
			jobs = append(jobs, checked{&runner.JobStatus{Job: oneLine(h.Host), State: runner.Unknown, Failed: true, LastRun: time.Unix(0, 0), Problems: []*runner.Problem{{State: h.State, Error: h.Error}}}, 0})
		}
		for _, j := range h.Jobs {
			of := *j.JobStatus
			of.Job = oneLine(h.Host) + " " + of.Job
			all, copies, aside, gone = all+1, copies+j.Copies, aside+len(j.Aside), gone+len(j.Gone)
			if jobs = append(jobs, checked{&of, j.Copies}); of.Late {
				late++
			}
			if of.Failed {
				failed++
			}
		}
	}
	hosts := english.Plural(len(f.Hosts), "host", "")
	well := fmt.Sprintf("%s, %s, %s, none late or failed", hosts, english.Plural(all, "job", ""), english.Plural(copies, "copy", "copies"))
	perf := []string{fmt.Sprintf("hosts=%d;;;0", len(f.Hosts)), fmt.Sprintf("unreachable=%d;;;0", f.Unreachable), fmt.Sprintf("late=%d;;;0", late),
		fmt.Sprintf("failed=%d;;;0", failed), fmt.Sprintf("copies=%d;;;0", copies), fmt.Sprintf("aside=%d;;;0", aside), fmt.Sprintf("gone=%d;;;0", gone)}
	return nagios(w, jobs, well, func(bad int) string {
		var parts []string
		if bad -= f.Unreachable; bad > 0 {
			parts = append(parts, ofAll(bad, all)+" on "+hosts)
		}
		if n := f.Unreachable; n > 0 {
			parts = append(parts, fmt.Sprintf("%d of %s without an answer", n, hosts))
		}
		return strings.Join(parts, ", ")
	}, perf)
}

// nagios writes how jobs stand. well is said where all are, sum of how many are not.
func nagios(w io.Writer, jobs []checked, well string, sum func(bad int) string, perf []string) (Level, error) {
	slices.SortStableFunc(jobs, func(a, b checked) int { return levelOf(b.JobStatus).rank() - levelOf(a.JobStatus).rank() })
	var said, more []string
	worst := LevelOK
	for _, j := range jobs {
		if levelOf(j.JobStatus) != LevelOK {
			worst = levelOf(jobs[0].JobStatus)
			said = append(said, shorten(j.Job+": "+inBrief(j), nagiosFirst/2))
			more = append(more, details(j.JobStatus)...)
		}
	}
	text := well
	if len(said) > 0 {
		of := " (" + sum(len(said)) + ")"
		text = shorten(strings.Join(said, "; "), nagiosFirst-max(40, len("ZXFER CRITICAL: ")+len(of))) + of
	}
	out := nagiosLine(worst, text)
	if data := within(perf, " ", nagiosPerf); data != "" {
		out += " | " + data
	}
	for i, l := range more {
		l = "\n" + unpiped(shorten(l, nagiosMost/4))
		if rest := fmt.Sprintf("\n... and %s", english.Plural(len(more)-i, "line", "")); len(out)+len(l)+len(rest) > nagiosMost {
			out += rest
			break
		}
		out += l
	}
	return worst, writeString(w, out+"\n")
}

// NagiosUnknown writes why nothing is known at all.
func NagiosUnknown(w io.Writer, err error) error {
	return writeString(w, nagiosLine(LevelUnknown, shorten(sentence(err.Error()), nagiosFirst))+"\n")
}

func nagiosLine(l Level, text string) string { return "ZXFER " + l.String() + ": " + unpiped(text) }

// unpiped has nothing that begins performance data.
func unpiped(s string) string { return strings.ReplaceAll(s, "|", "/") }

// shorten shortens a text to so many bytes.
func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-3], "") + "..."
}

// within joins as many of the first parts as are no longer than that.
func within(parts []string, sep string, most int) string {
	out := ""
	for _, p := range parts {
		if len(out)+len(sep)+len(p) > most {
			break
		}
		out += sep + p
	}
	return strings.TrimPrefix(out, sep)
}

func levelOf(j *runner.JobStatus) Level {
	switch {
	case j.State == runner.Unknown:
		return LevelUnknown
	case j.State == outcome.Failed, j.State == outcome.Refused, j.LagCritical > 0 && j.Lag > j.LagCritical,
		j.Drill != nil && j.Drill.Critical > 0 && j.Drill.Age > j.Drill.Critical:
		return LevelCritical
	case j.State == runner.OK:
		return LevelOK
	}
	return LevelWarning
}

// inBrief is what is not well with a job.
func inBrief(j checked) string {
	var parts []string
	if j.LastRun.IsZero() {
		parts = Course(j.JobStatus)
	}
	if len(j.Problems) > 0 {
		parts = append(parts, Problem(j.Problems[0]))
	}
	if n := len(j.Problems) - 1; n > 0 {
		parts = append(parts, fmt.Sprintf("%d more", n))
	}
	if late := count(j.JobStatus, func(d *runner.DatasetStatus) bool { return d.Late }); late > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s late", late, english.Plural(j.copies, "dataset", ""))+by(j.Lag))
	} else if j.Late && j.copies == 0 && j.State == runner.Late {
		parts = append(parts, "late"+by(j.Lag))
	}
	return strings.Join(parts, ", ")
}

// details are lines of a job that is not well.
func details(j *runner.JobStatus) []string {
	out := []string{fmt.Sprintf("%s: %s", j.Job, levelOf(j))}
	if j.LastRun.IsZero() {
		out = append(out, Course(j)...)
	}
	for _, p := range j.Problems {
		out = append(out, Problem(p))
	}
	for _, d := range j.Datasets {
		if d.Late {
			out = append(out, strings.TrimSuffix("late"+by(d.Lag)+": "+oneLine(d.Source)+" to "+oneLine(d.To), " to "))
		}
	}
	return out
}

func by(lag float64) string {
	if lag == 0 {
		return ""
	}
	return " by " + Seconds(lag)
}

func count(j *runner.JobStatus, is func(*runner.DatasetStatus) bool) (n int) {
	for _, d := range j.Datasets {
		if is(d) {
			n++
		}
	}
	return n
}

// performance is what is measured of a job. The names of jobs need no quotes; what is
// measured comes before them, as RRD tells labels apart by their first 19 characters.
func performance(j *runner.JobStatus) []string {
	if j.State == runner.Unknown {
		return nil
	}
	failed := count(j, func(d *runner.DatasetStatus) bool { return d.Outcome == outcome.Failed || d.Outcome == outcome.Refused })
	if failed == 0 && (j.Outcome == outcome.Failed || j.Outcome == outcome.Refused) {
		failed = 1 // what concerned no single one
	}
	out := []string{fmt.Sprintf("failed_%s=%d;;0;0", j.Job, failed), fmt.Sprintf("datasets_%s=%d;;;0", j.Job, len(j.Datasets))}
	if d := j.Drill; d != nil && d.Warning > 0 {
		out = append(out, fmt.Sprintf("drill_%s=%.0fs;%.0f;%.0f;0", j.Job, d.Age, d.Warning, d.Critical))
	}
	if n := len(j.Aside); n > 0 {
		out = append(out, fmt.Sprintf("aside_%s=%d;;;0", j.Job, n))
	}
	if n := len(j.Gone); n > 0 {
		out = append(out, fmt.Sprintf("gone_%s=%d;;;0", j.Job, n))
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
		lag = "U" // late, and nobody can tell by how much
	}
	return append([]string{fmt.Sprintf("lag_%s=%s;%.0f;%s;0", j.Job, lag, j.LagWarning, critical)}, out...)
}
