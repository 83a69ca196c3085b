package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/size"
)

// StatusText writes the status of all jobs for people. flags holds the flags for a job file and
// state directory other than the defaults.
func StatusText(w io.Writer, s *status.Status, flags string) error {
	var b strings.Builder
	for _, j := range s.Jobs {
		jobText(&b, j)
		if j.Drill != nil {
			fmt.Fprintf(&b, "  drill: %s\n", strings.Join(DrillFacts(j.Drill, stamp), ", "))
		}
		shown := map[string]bool{}
		for i, p := range j.Problems {
			if shown[p.Error] && p.Error != "" {
				again := *p
				again.Error = sameError
				p = &again
			}
			shown[p.Error] = true
			fmt.Fprintf(&b, "  %s\n", Problem(p))
			if i == 0 || p.Hint != j.Problems[i-1].Hint {
				writePrefixed(&b, "    hint: ", p.Hint)
			}
		}
		for _, fact := range DiskFacts(j, stamp) {
			fmt.Fprintf(&b, "  %s\n", fact)
		}
		for _, fact := range UnknownPools(j, stamp) {
			fmt.Fprintf(&b, "  %s\n", fact)
		}
		leftCopiesText(&b, j)
		lackingText(&b, j)
		if j.Untrusted > 0 {
			fmt.Fprintf(&b, "  retention ignores the dates of %s\n", english.Plural(j.Untrusted, "snapshot", ""))
			writePrefixed(&b, "    hint: ", "to list them: zxfer replicate prune -n "+j.Job+flags)
		}
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, d := range j.Datasets {
			datasetRow(tw, d, j.Schedule != "")
		}
		_ = tw.Flush() // writes to a Builder cannot fail
	}
	return writeString(w, b.String())
}

// sameError replaces an error that a problem of the same job already shows.
const sameError = "the same error"

func hasError(problems []*status.Problem, text string) bool {
	return text != "" && slices.ContainsFunc(problems, func(p *status.Problem) bool { return p.Error == text })
}

// UnknownPools returns a fact for each pool of a job whose data errors are unknown, because its host
// did not list them.
func UnknownPools(j *status.JobStatus, stamp func(time.Time) string) (facts []string) {
	for _, p := range j.Pools {
		if p.Unknown == "" {
			continue
		}
		where, since := "pool "+oneLine(p.Pool), ""
		if p.To != "" {
			where += " of " + oneLine(p.To)
		}
		if !p.Checked.IsZero() {
			since = " since " + stamp(p.Checked)
		}
		why := joinLines(p.Unknown)
		if hasError(j.Problems, p.Unknown) {
			why = sameError
		}
		facts = append(facts, "data errors of "+where+" are unknown"+since+": "+why)
	}
	return facts
}

// DiskFacts returns a fact for each disk of a job that comes and goes.
func DiskFacts(j *status.JobStatus, stamp func(time.Time) string) (facts []string) {
	for _, d := range j.Disks {
		fact := fmt.Sprintf("disk %s (pool %s, GUID %d): %s", oneLine(d.To), oneLine(d.Pool), d.GUID, oneLine(d.State))
		if !d.Since.IsZero() {
			fact += " since " + stamp(d.Since)
		}
		if d.Removable {
			fact += ", may be removed"
		}
		if !d.Scrubbed.IsZero() {
			fact += ", scrubbed " + stamp(d.Scrubbed)
		}
		switch {
		case d.Late:
			fact += ", LATE since " + stamp(d.LateAfter)
		case !d.LateAfter.IsZero():
			fact += ", late after " + stamp(d.LateAfter)
		}
		if d.Reason != "" {
			fact += ": " + joinLines(d.Reason)
		}
		facts = append(facts, fact)
	}
	return facts
}

// leftCopiesText lists diverged copies and orphans.
func leftCopiesText(b *strings.Builder, j *status.JobStatus) {
	for _, a := range j.Diverged {
		fmt.Fprintf(b, "  renamed on %s since %s: %s\n", oneLine(a.Target), stamp(a.Since), oneLine(a.As))
		if a.Destroy != "" {
			writePrefixed(b, "    hint: ", "to destroy it: "+a.Destroy)
		}
	}
	for _, g := range j.Orphans {
		fate := "stays"
		if !g.Due.IsZero() {
			fate = "may be destroyed at " + stamp(g.Due)
		}
		fmt.Fprintf(b, "  deleted on the source since %s: %s; its copy on %s %s: %s\n", stamp(g.Since), oneLine(g.Source), oneLine(g.To), fate, oneLine(g.Target))
	}
}

// maxLacking is the number of copies that lackingText lists.
const maxLacking = 10

// lackingText lists the copies that lack properties of their source.
func lackingText(b *strings.Builder, j *status.JobStatus) {
	for _, l := range j.Lacking[:min(len(j.Lacking), maxLacking)] {
		fmt.Fprintf(b, "  warning: %s\n", lackingCopy(l))
		writePrefixed(b, "    hint: ", l.Hint)
	}
	if more := len(j.Lacking) - maxLacking; more > 0 {
		fmt.Fprintf(b, "  warning: %s more lack properties of their source\n", english.Plural(more, "copy", "copies"))
	}
}

func lackingCopy(l status.LackingCopy) string { return oneLine(l.To) + ": " + joinLines(l.Error) }

func jobText(b *strings.Builder, j *status.JobStatus) {
	parts := []string{oneLine(j.Source)}
	if !j.Switched.IsZero() {
		parts = append(parts, "the source since "+stamp(j.Switched))
	}
	if !j.LastRun.IsZero() {
		parts = append(parts, "last run "+stamp(j.LastRun), fmt.Sprintf("%s in %s", oneLine(j.Outcome), Seconds(j.Seconds)))
	}
	parts = append(parts, InProgress(j)...)
	parts = append(parts, Pauses(j, stamp)...)
	if j.Next.IsZero() {
		parts = append(parts, "no schedule")
	} else {
		parts = append(parts, "next "+stamp(j.Next))
	}
	if j.Failed && j.State != status.Late {
		parts = append(parts, capitals(j.State))
	}
	if j.Late {
		parts = append(parts, capitals(status.Late))
	}
	fmt.Fprintf(b, "%s: %s\n", j.Job, strings.Join(parts, ", "))
}

// InProgress returns whether a job never ran, and what is in progress.
func InProgress(j *status.JobStatus) (parts []string) {
	first := j.LastRun.IsZero() && !j.Failed
	if first && j.RunningSince.IsZero() {
		parts = append(parts, "never ran")
	}
	switch {
	case j.RunningCommand != "":
		parts = append(parts, oneLine(j.RunningCommand)+" is in progress")
	case !j.RunningSince.IsZero() && first:
		parts = append(parts, "the first run is in progress since "+stamp(j.RunningSince))
	case !j.RunningSince.IsZero():
		parts = append(parts, "a run is in progress since "+stamp(j.RunningSince))
	case j.Running:
		parts = append(parts, "a run, heal or prune is in progress")
	}
	return parts
}

// datasetRow writes one table row.
func datasetRow(w io.Writer, d *status.DatasetStatus, scheduled bool) {
	var state []string
	if d.Outcome != "" {
		state = append(state, capitals(oneLine(d.Outcome)))
	}
	switch {
	case d.Late && d.Lag == 0:
		state = append(state, "LATE")
	case d.Late:
		state = append(state, "LATE by "+Seconds(d.Lag))
	case d.Lag > 0:
		state = append(state, "due for "+Seconds(d.Lag))
	case d.Outcome == "" && scheduled:
		state = append(state, "on time")
	case d.Outcome == "":
		state = append(state, "-")
	}
	if d.Consistent != nil {
		state = append(state, Consistent(*d.Consistent))
	}
	last := "never"
	if !d.Success.IsZero() {
		last = stamp(d.Success)
	}
	cells := []string{oneLine(d.Source), oneLine(d.To), last, strings.Join(state, ", "), size.Text(d.Bytes) + " in " + Seconds(d.Seconds)}
	if d.To == "" { // a job without a target
		newest := "no snapshot"
		if d.Snapshot != "" {
			newest = "@" + oneLine(d.Snapshot)
		}
		cells = []string{cells[0], last, cells[3], newest}
	}
	fmt.Fprintf(w, "  %s\n", strings.Join(cells, "\t"))
}

// Consistent returns the text for a snapshot taken with or without a freeze.
func Consistent(proved bool) string {
	if proved {
		return "consistent"
	}
	return "NOT CONSISTENT"
}

// Problem formats a problem on one line: "failed: tank/a to far: connection refused".
func Problem(p *status.Problem) string {
	what := finding.JoinFirst(p.Datasets, 3)
	if len(p.To) > 0 {
		what += " to " + strings.Join(p.To, ", ")
	}
	if what != "" {
		what = strings.TrimSpace(oneLine(what)) + ": "
	}
	return oneLine(p.State) + ": " + what + joinLines(p.Error)
}

// firstProblem returns the first problem of a job and the number of others.
func firstProblem(j *status.JobStatus) (facts []string) {
	if len(j.Problems) > 0 {
		facts = append(facts, Problem(j.Problems[0]))
	}
	if more := len(j.Problems) - 1; more > 0 {
		facts = append(facts, fmt.Sprintf("%d more", more))
	}
	return facts
}

// capitals returns a state in capitals, for attention.
func capitals(state string) string { return strings.ToUpper(state) }

func stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// joinLines joins the lines of a message.
func joinLines(s string) string {
	return Line(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

// Pauses returns the pause of a job, and the targets to which a bandwidth window of 0 stops
// transfers.
func Pauses(j *status.JobStatus, stamp func(time.Time) string) (facts []string) {
	if j.Pause != nil {
		facts = append(facts, shorten(oneLine(j.Pause.Text(stamp)), 2*decide.MaxReason))
	}
	for _, w := range j.Windows {
		facts = append(facts, fmt.Sprintf("no transfers to %s until %s (bandwidth_window)", oneLine(w.To), stamp(w.Until)))
	}
	return facts
}

// Warnings describes the conditions of a job that are a warning, and do not change its state.
func Warnings(j *status.JobStatus) (facts []string) {
	if j.Pause != nil && j.Pause.Forgotten {
		facts = append(facts, Pauses(j, stamp)[0])
	}
	if n := len(j.Lacking); n > 0 {
		facts = append(facts, fmt.Sprintf("%s of the source", english.Plural(n, "copy lacks properties", "copies lack properties")))
	}
	if n := j.Inconsistent(); n > 0 {
		facts = append(facts, english.Plural(n, "copy", "copies")+" not consistent")
	}
	for _, p := range j.SilentPools() {
		facts = append(facts, "data errors of pool "+oneLine(p.Pool)+" unknown since "+stamp(p.Checked))
	}
	return facts
}

// DrillFacts summarizes the state of a job's drills.
func DrillFacts(d *status.DrillStatus, stamp func(time.Time) string) (facts []string) {
	if d.Running {
		facts = append(facts, "a drill is running")
	}
	switch {
	case d.Last.IsZero() && d.Running:
	case d.Last.IsZero():
		facts = append(facts, "none yet")
	case len(d.NotGood) > 0:
		facts = append(facts, fmt.Sprintf("%d of %s not verified, %s", len(d.NotGood), english.Plural(d.Copies, "copy", "copies"), stamp(d.Last)))
	case d.Outcome != outcome.Done:
		facts = append(facts, oneLine(d.Outcome)+" "+stamp(d.Last))
	case d.NeverVerified > 0: // copies that are newer than the drill
		facts = append(facts, fmt.Sprintf("%d of %s good, %s", d.Copies-d.NeverVerified, english.Plural(d.Copies, "copy", "copies"), stamp(d.Last)))
	default:
		facts = append(facts, fmt.Sprintf("%s good, %s", english.Plural(d.Copies, "copy", "copies"), stamp(d.Last)))
	}
	switch {
	case d.Age > 0 && !d.Good.IsZero():
		facts = append(facts, "all verified "+Seconds(d.Age)+" ago")
	case !d.Last.IsZero() && d.Good.IsZero() && d.NeverVerified >= d.Copies:
		facts = append(facts, "no copy was ever verified")
	case !d.Last.IsZero() && d.Good.IsZero():
		facts = append(facts, "not all were ever verified")
	}
	if !d.Next.IsZero() {
		facts = append(facts, "next "+stamp(d.Next))
	}
	return facts
}
