package html

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/report"
)

// Limits of a page about many hosts: columns of jobs, and jobs in full.
const (
	maxJobColumns = 4
	maxHostJobs   = 40
)

// Hosts returns the page of `zxfer replicate status --hosts`. It shows jobs in a bad state in
// full, and every job of every host as a cell.
func Hosts(about About, f *fleet.Fleet) ([]byte, error) {
	p := &page{About: about, Verb: "replicate status --hosts", Times: stamp(about.Made)}
	states, count := f.Counts()
	var not []string
	for _, s := range states {
		if s != status.OK {
			not = append(not, fmt.Sprintf("%d %s", count[s], name(s)))
		}
	}
	if p.judge(status.OK, f.Severity()); len(not) > 0 {
		p.Outcome.Text = strings.Join(not, ", ")
	}
	sum, left := f.Summary(), 0
	room := maxCells / 2
	for _, h := range f.Hosts {
		if h.State == status.Unreachable && len(p.Errors) < maxHostJobs {
			p.Errors = append(p.Errors, problem{name(h.Host) + " did not report the status of its jobs: " + text(h.Error), hints(h.Hint)})
		}
		for _, j := range h.Jobs {
			if j.Severity() == status.SeverityOK {
				continue
			}
			if len(p.Jobs) == maxHostJobs {
				left++
				continue
			}
			t := jobTableOf(j.JobStatus, about.Made, &room)
			t.Name = name(h.Host) + ": " + t.Name
			if more := j.Copies - j.Well - len(j.Datasets); more > 0 {
				t.More = cmp.Or(t.More, fmt.Sprintf("and %d more copies", more))
			}
			p.Jobs = append(p.Jobs, t)
		}
	}
	if left > 0 {
		p.Notes = append(p.Notes, english.Plural(left, "more job that is not well", "more jobs that are not well")+" are shown below as cells only")
	}
	for _, pattern := range f.NotAsked[:min(len(f.NotAsked), maxRows)] {
		p.Notes = append(p.Notes, "Hosts like "+name(pattern)+" were not queried: the job file does not name them.")
	}
	p.Jobs = append(p.Jobs, hostsTable(f, about.Made))
	p.Title = []string{fmt.Sprintf("%s, %s", english.Plural(len(f.Hosts), "host", ""), english.Plural(sum.Jobs, "job", ""))}
	p.Figures = []figure{{"Hosts without problems", fmt.Sprintf("%d of %d", count[status.OK], len(f.Hosts)), strings.Join(not, ", ")},
		{"Jobs", fmt.Sprint(sum.Jobs), ""}, {"Copies without problems", fmt.Sprintf("%d of %d", sum.Healthy, sum.Copies), ""}}
	return render(p)
}

// hostsTable returns a row per host. The most common jobs have their own column, and the last
// column has the others.
func hostsTable(f *fleet.Fleet, now time.Time) jobTable {
	t := jobTable{Name: "All hosts", First: "host", Source: "the age of each job's oldest copy"}
	have := map[string]int{}
	for _, h := range f.Hosts {
		for _, j := range h.Jobs {
			if have[j.Job]++; have[j.Job] == 1 {
				t.Targets = append(t.Targets, j.Job)
			}
		}
	}
	slices.SortStableFunc(t.Targets, func(a, b string) int { return cmp.Or(have[b]-have[a], strings.Compare(a, b)) })
	columns := t.Targets[:min(len(t.Targets), maxJobColumns)]
	others := len(t.Targets) > len(columns)
	room := maxCells
	for i, h := range f.Hosts {
		if room -= len(columns) + 1; room < 0 {
			t.More = fmt.Sprintf("and %d more hosts", len(f.Hosts)-i)
			break
		}
		t.Rows = append(t.Rows, hostRow(h, columns, others, now))
	}
	t.Targets = nil
	for _, c := range columns {
		t.Targets = append(t.Targets, name(c))
	}
	if others {
		t.Targets = append(t.Targets, "other jobs")
	}
	if len(t.Targets) == 0 {
		t.Targets = []string{"jobs"}
	}
	return t
}

func hostRow(h *fleet.Host, columns []string, others bool, now time.Time) jobRow {
	row := jobRow{Dataset: name(h.Host)}
	if h.State == status.Unreachable {
		row.Cells = []jobCell{{Target: "jobs", State: badge{"did not answer", badgeOf(h.State, status.SeverityOf(h.State)).Class}}}
		for len(row.Cells) < len(columns) || others && len(row.Cells) == len(columns) {
			row.Cells = append(row.Cells, jobCell{Age: emptyCell})
		}
		return row
	}
	var rest []string
	worst, severity := status.OK, status.SeverityOK
	for _, j := range h.Jobs {
		if !slices.Contains(columns, j.Job) {
			rest = append(rest, name(j.Job))
			worst, severity = status.Worst(worst, j.State), status.WorstSeverity(severity, j.Severity())
		}
	}
	for _, c := range columns {
		at := slices.IndexFunc(h.Jobs, func(j *fleet.Job) bool { return j.Job == c })
		if at < 0 {
			row.Cells = append(row.Cells, jobCell{Target: name(c), Age: emptyCell})
			continue
		}
		row.Cells = append(row.Cells, hostCell(h.Jobs[at], now))
	}
	if others {
		c := jobCell{Target: "other jobs", Age: emptyCell}
		if len(rest) > 0 {
			c.Age, c.State, c.Note = english.Plural(len(rest), "job", ""), badgeOf(worst, severity), text(strings.Join(rest, ", "))
		}
		row.Cells = append(row.Cells, c)
	}
	return row
}

// hostCell shows a job of a host.
func hostCell(j *fleet.Job, now time.Time) jobCell {
	c := jobCell{Target: name(j.Job), Age: "no copy", State: badgeOf(j.State, j.Severity())}
	switch {
	case !j.Oldest.IsZero():
		c.Age = age(now.Sub(j.Oldest)) + " old"
	case j.Copies > 0:
		c.Age = "one never received"
	}
	var notes []string
	if j.Well < j.Copies {
		notes = append(notes, fmt.Sprintf("%d of %s ok", j.Well, english.Plural(j.Copies, "copy", "copies")))
	}
	if j.Late && j.Lag > 0 {
		notes = append(notes, "late by "+report.Seconds(j.Lag))
	}
	for _, fact := range report.Pauses(j.JobStatus, func(t time.Time) string { return stamp(t.In(now.Location())) }) {
		notes = append(notes, text(fact))
	}
	c.Note = strings.Join(append(notes, report.KeptCopies(fleet.Summarize(j))...), ", ")
	return c
}
