package html

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
)

// jobTable is the status of a job's datasets at its targets.
type jobTable struct {
	Name, Source string
	Facts        []string
	State        badge
	Problems     []problem
	First        string // heading of the first column
	Targets      []string
	Rows         []jobRow
	More         string
}

// emptyCell fills cells without a value.
const emptyCell = "–"

type jobRow struct {
	Dataset string
	Cells   []jobCell
}

// jobCell is the status of a dataset at one target.
type jobCell struct {
	Target string
	Age    string
	State  badge
	Note   string
}

// Status returns the page of `zxfer replicate status`.
func Status(about About, s *status.Status) ([]byte, error) {
	p := &page{About: about, Verb: "replicate status", Times: stamp(about.Made)}
	p.addStatus(s, about.Made)
	p.Title = []string{fmt.Sprintf("%s, %s", english.Plural(len(s.Jobs), "job", ""), p.Outcome.Text)}
	return render(p)
}

// Run returns the page of `zxfer replicate run`: the results of the runs and the status of their
// jobs. errs are the errors of the command's parts.
func Run(about About, runs []*statedir.Run, s *status.Status, c history.Recording, errs []error) ([]byte, error) {
	p := &page{About: about, Verb: "replicate run", Times: times(&c, about.Made), Course: courseOf(&c, nil), Said: messagesOf(&c, about.Made), Errors: failures(errs...)}
	var names, outcomes []string
	var bytes uint64
	var seconds float64
	var sent, unchanged, failed, taken, removed int
	for _, r := range runs {
		names, outcomes = append(names, name(r.Job)), append(outcomes, r.Outcome)
		seconds += r.Ended.Sub(r.Started).Seconds()
		taken, removed = taken+r.Snapshots, removed+r.Pruned
		for _, t := range r.Targets {
			bytes += t.Bytes
			sent, unchanged, failed, removed = sent+t.Sent, unchanged+t.Unchanged, failed+t.Failed, removed+t.Pruned
		}
		p.runTables(r)
	}
	if s != nil {
		p.addStatus(s, about.Made)
	}
	p.Title, p.Outcome = []string{cmp.Or(strings.Join(names[:min(len(names), 6)], ", "), "no job ran")}, badge{}
	if err := outcome.Join(errs...); err != nil {
		p.Outcome = outcomeBadge(outcome.Of(err))
	} else if len(outcomes) > 0 {
		p.Outcome = outcomeBadge(outcome.Worst(outcomes...))
	}
	p.Figures = []figure{{"Moved", size.Text(bytes), ""}, {"Took", report.Seconds(seconds), ""},
		{"Datasets sent", fmt.Sprint(sent), fmt.Sprintf("%d unchanged, %d failed", unchanged, failed)},
		{"Snapshots taken", fmt.Sprint(taken), fmt.Sprintf("%d removed", removed)}}
	return render(p)
}

// runTables adds the results of a run at each target.
func (p *page) runTables(r *statedir.Run) {
	t := table{Title: "Run of " + name(r.Job), Columns: []string{"target", "outcome", "sent", "moved", "took"}}
	for _, x := range r.Targets {
		b := outcomeBadge(x.Outcome)
		t.Rows = append(t.Rows, []cell{{Text: name(x.Target), Note: name(x.To)}, {Text: cmp.Or(b.Text, diskText(x), "not started"), Class: b.Class, Note: text(x.Error)},
			{Text: fmt.Sprint(x.Sent), Note: fmt.Sprintf("%d unchanged, %s, %d destroyed", x.Unchanged, x.FailureText(), x.Pruned)},
			{Text: size.Text(x.Bytes)}, {Text: report.Seconds(x.Seconds)}})
	}
	p.add(t)
	for _, n := range r.Notes {
		if len(p.Notes) < maxRows {
			p.Notes = append(p.Notes, name(r.Job)+": "+text(n))
		}
	}
}

// diskText describes the disk of a target that a run could not send to, "" for other targets.
func diskText(t *statedir.TargetRun) string {
	if t.Disk == "" {
		return ""
	}
	return "disk " + name(t.Disk)
}

// addStatus adds the status of jobs at a time.
func (p *page) addStatus(s *status.Status, now time.Time) {
	sum := status.Summarize(s.Jobs...)
	room := maxCells
	for _, j := range s.Jobs {
		p.Jobs = append(p.Jobs, jobTableOf(j, now, &room))
	}
	states := slices.SortedFunc(maps.Keys(sum.States), func(a, b string) int { return status.Rank(b) - status.Rank(a) })
	var not []string
	for _, state := range states {
		if state != status.OK {
			not = append(not, fmt.Sprintf("%d %s", sum.States[state], name(state)))
		}
	}
	worst := status.OK
	for _, j := range s.Jobs {
		worst = status.Worst(worst, j.State)
	}
	p.judge(worst, s.Severity())
	p.Figures = append(p.Figures, figure{"Jobs", fmt.Sprint(sum.Jobs), ""},
		figure{"Copies without problems", fmt.Sprintf("%d of %d", sum.States[status.OK], sum.Copies), strings.Join(not, ", ")})
}

// judge sets the outcome of a page about jobs.
func (p *page) judge(worst string, severity status.Severity) {
	if p.Outcome = badgeOf(worst, severity); severity == status.SeverityOK {
		p.Outcome.Text = "all on time"
	}
}

// jobTableOf lists datasets in a bad state first, limited by room.
func jobTableOf(j *status.JobStatus, now time.Time, room *int) jobTable {
	t := jobTable{Name: name(j.Job), First: "dataset", Source: name(j.Source), State: badgeOf(j.State, j.Severity()), Facts: jobFacts(j, now)}
	for _, p := range j.Problems[:min(len(j.Problems), maxRows)] {
		t.Problems = append(t.Problems, problem{text(report.Problem(p)), hints(p.Hint)})
	}
	for _, l := range j.Lacking[:min(len(j.Lacking), maxLeftCopies)] {
		t.Problems = append(t.Problems, problem{"warning: " + name(l.To) + ": " + text(l.Error), hints(l.Hint)})
	}
	if more := len(j.Lacking) - maxLeftCopies; more > 0 {
		t.Problems = append(t.Problems, problem{"warning: " + english.Plural(more, "more copy lacks", "more copies lack") + " properties of the source", nil})
	}
	rows, columns := map[string]map[string]*status.DatasetStatus{}, map[string]bool{}
	var well, not []string
	for _, d := range j.Datasets {
		if !columns[d.To] {
			columns[d.To] = true
			t.Targets = append(t.Targets, d.To)
		}
		if rows[d.Source] == nil {
			rows[d.Source] = map[string]*status.DatasetStatus{}
			well = append(well, d.Source)
		}
		rows[d.Source][d.To] = d
	}
	slices.Sort(t.Targets)
	well = slices.DeleteFunc(well, func(source string) bool {
		for _, d := range rows[source] {
			if d.State != status.OK {
				not = append(not, source)
				return true
			}
		}
		return false
	})
	order := slices.Concat(not, well)
	for i, source := range order {
		if *room -= len(t.Targets); *room < 0 {
			t.More = fmt.Sprintf("and %d more datasets", len(order)-i)
			break
		}
		row := jobRow{Dataset: name(source)}
		for _, to := range t.Targets {
			row.Cells = append(row.Cells, cellOf(to, rows[source][to], now))
		}
		t.Rows = append(t.Rows, row)
	}
	for i, to := range t.Targets {
		t.Targets[i] = cmp.Or(name(to), "on the source")
	}
	return t
}

// badgeOf shows a state and its severity. A job in state OK may have a warning.
func badgeOf(state string, severity status.Severity) badge {
	if state == status.OK && severity != status.SeverityOK {
		state = "warning"
	}
	switch severity {
	case status.SeverityOK:
		return badge{name(state), "good"}
	case status.SeverityCritical:
		return badge{name(state), "bad"}
	}
	return badge{name(state), "warn"}
}

// maxLeftCopies is the number of diverged copies, orphans, and copies without properties of their source that are listed.
const maxLeftCopies = 5

// jobFacts describes a job's runs.
func jobFacts(j *status.JobStatus, now time.Time) (facts []string) {
	stamp := func(t time.Time) string { return stamp(t.In(now.Location())) }
	addText := func(more []string) {
		for _, fact := range more {
			facts = append(facts, text(fact))
		}
	}
	if !j.LastRun.IsZero() {
		facts = append(facts, fmt.Sprintf("last run %s, %s, in %s", stamp(j.LastRun), name(j.Outcome), report.Seconds(j.Seconds)))
	}
	facts = append(facts, report.InProgress(j)...)
	addText(report.Pauses(j, stamp))
	if j.Next.IsZero() {
		facts = append(facts, "no schedule")
	} else {
		facts = append(facts, "next run "+stamp(j.Next))
	}
	if j.Drill != nil {
		facts = append(facts, "drill: "+strings.Join(report.DrillFacts(j.Drill, stamp), ", "))
	}
	addText(report.DiskFacts(j, stamp))
	addText(report.UnknownPools(j, stamp))
	for _, a := range j.Diverged[:min(len(j.Diverged), maxLeftCopies)] {
		facts = append(facts, fmt.Sprintf("renamed on %s since %s: %s", name(a.Target), stamp(a.Since), name(a.As)))
	}
	for _, g := range j.Orphans[:min(len(j.Orphans), maxLeftCopies)] {
		facts = append(facts, fmt.Sprintf("deleted on the source since %s: %s", stamp(g.Since), name(g.Source)))
	}
	if len(j.Diverged) > maxLeftCopies || len(j.Orphans) > maxLeftCopies {
		facts = append(facts, "in all "+strings.Join(report.KeptCopies(status.Summarize(j)), ", "))
	}
	if j.Untrusted > 0 {
		facts = append(facts, "retention ignores the dates of "+english.Plural(j.Untrusted, "snapshot", ""))
	}
	return facts
}

// cellOf shows the age and state of a copy.
func cellOf(to string, d *status.DatasetStatus, now time.Time) jobCell {
	c := jobCell{Target: cmp.Or(name(to), "on the source")}
	if d == nil {
		c.Age = emptyCell
		return c
	}
	c.Age, c.State = "never received", badgeOf(d.State, status.SeverityOf(d.State))
	if !d.Success.IsZero() {
		c.Age = age(now.Sub(d.Success)) + " old"
	}
	var notes []string
	if d.Lag > 0 {
		notes = append(notes, "due for "+age(time.Duration(d.Lag*float64(time.Second))))
	}
	if d.Consistent != nil {
		notes = append(notes, report.Consistent(*d.Consistent))
	}
	if snapshot := cmp.Or(d.Snapshot, d.Base); snapshot != "" {
		notes = append(notes, "@"+name(snapshot))
	}
	c.Note = strings.Join(notes, ", ")
	return c
}

// age formats a duration without zero units: "1 d".
func age(d time.Duration) string {
	text := report.Seconds(max(0, d).Seconds())
	for _, none := range []string{" 0 s", " 0 min", " 0 h"} {
		text = strings.TrimSuffix(text, none)
	}
	return text
}
