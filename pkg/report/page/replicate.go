package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
)

// jobTable is how the datasets of a job stand at its targets.
type jobTable struct {
	Name, Source string
	Facts        []string
	State        badge
	Error        string
	Hints        []string
	Targets      []string
	Rows         []jobRow
	More         string
}

type jobRow struct {
	Dataset string
	Cells   []jobCell
}

// jobCell is a dataset at one target.
type jobCell struct {
	Target string
	Age    string
	State  badge
	Note   string
	Error  string
	Hints  []string
}

// Status is the page of `zxfer replicate status`.
func Status(about About, s *runner.Status) ([]byte, error) {
	p := &page{About: about, Verb: "replicate status", Times: stamp(about.Made)}
	p.standing(s, about.Made)
	p.Title = []string{fmt.Sprintf("%s, %s", english.Plural(len(s.Jobs), "job", ""), p.Outcome.Text)}
	return render(p)
}

// Run is the page of `zxfer replicate run`: what the runs did, and how their jobs
// stand now. failure is what the command ended with.
func Run(about About, runs []*record.Run, s *runner.Status, c history.Course, failure error) ([]byte, error) {
	p := &page{About: about, Verb: "replicate run", Times: times(&c, about.Made), Course: courseOf(&c, nil), Said: saidOf(&c, about.Made)}
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
		p.standing(s, about.Made)
	}
	p.Title, p.Outcome = []string{cmp.Or(strings.Join(names[:min(len(names), 6)], ", "), "no job ran")}, badge{}
	if len(outcomes) > 0 {
		p.Outcome = outcomeBadge(outcome.Worst(outcomes...))
	}
	if failure != nil && len(runs) == 0 {
		p.Error, p.Outcome = text(failure.Error()), outcomeBadge(outcome.Of(failure))
	}
	p.Figures = []figure{{"Moved", size.Text(bytes), ""}, {"Took", report.Seconds(seconds), ""},
		{"Datasets sent", fmt.Sprint(sent), fmt.Sprintf("%d unchanged, %d failed", unchanged, failed)},
		{"Snapshots taken", fmt.Sprint(taken), fmt.Sprintf("%d removed", removed)}}
	return render(p)
}

// runTables show what a run did at each target.
func (p *page) runTables(r *record.Run) {
	t := table{Title: "Run of " + name(r.Job), Columns: []string{"target", "outcome", "sent", "moved", "took"}}
	for _, x := range r.Targets {
		b := outcomeBadge(x.Outcome)
		t.Rows = append(t.Rows, []cell{{Text: name(x.Target), Note: name(x.To)}, {Text: cmp.Or(b.Text, "not begun"), Class: b.Class, Note: text(x.Error)},
			{Text: fmt.Sprint(x.Sent), Note: fmt.Sprintf("%d unchanged, %d failed, %d removed", x.Unchanged, x.Failed, x.Pruned)},
			{Text: size.Text(x.Bytes)}, {Text: report.Seconds(x.Seconds)}})
	}
	p.add(t)
	for _, n := range r.Notes {
		if len(p.Notes) < maxRows {
			p.Notes = append(p.Notes, name(r.Job)+": "+text(n))
		}
	}
	if r.Error != "" {
		p.Error, p.Hints = text(r.Job+": "+r.Error), append(p.Hints, hints(r.Hint)...)
	}
}

// standing shows how jobs stand at a time.
func (p *page) standing(s *runner.Status, now time.Time) {
	late, failed, datasets := 0, 0, 0
	room := maxCells
	for _, j := range s.Jobs {
		t := jobTableOf(j, now, &room)
		p.Jobs = append(p.Jobs, t)
		for _, d := range j.Datasets {
			datasets++
			if d.Late {
				late++
			}
			if d.Error != "" {
				failed++
			}
		}
	}
	switch {
	case failed > 0:
		p.Outcome = badge{fmt.Sprintf("%d failed, %d late", failed, late), "bad"}
	case s.Late:
		p.Outcome = badge{"late", "bad"}
	default:
		p.Outcome = badge{"all on time", "good"}
	}
	p.Figures = append(p.Figures, figure{"Jobs", fmt.Sprint(len(s.Jobs)), ""}, figure{"Copies", fmt.Sprint(datasets), "of datasets at targets"},
		figure{"Late", fmt.Sprint(late), ""}, figure{"Failed", fmt.Sprint(failed), "in the last run"})
}

// jobTableOf shows those that are late or failed first, as far as there is room.
func jobTableOf(j *runner.JobStatus, now time.Time, room *int) jobTable {
	t := jobTable{Name: name(j.Job), Source: name(j.Source), Error: text(j.Error), Hints: hints(j.Hint), State: outcomeBadge(j.Outcome)}
	switch {
	case j.Late:
		t.State = badge{"late", "bad"}
	case j.LastRun.IsZero():
		t.State = badge{"never ran", "plain"}
	}
	if !j.LastRun.IsZero() {
		t.Facts = append(t.Facts, fmt.Sprintf("last run %s, %s, in %s", stamp(j.LastRun.In(now.Location())), name(j.Outcome), report.Seconds(j.Seconds)))
	}
	if j.Next.IsZero() {
		t.Facts = append(t.Facts, "no schedule")
	} else {
		t.Facts = append(t.Facts, "next run "+stamp(j.Next.In(now.Location())))
	}
	rows := map[string]map[string]*runner.DatasetStatus{}
	var order []string
	bad := map[string]bool{}
	for _, d := range j.Datasets {
		if rows[d.Source] == nil {
			rows[d.Source] = map[string]*runner.DatasetStatus{}
			order = append(order, d.Source)
		}
		rows[d.Source][d.To] = d
		bad[d.Source] = bad[d.Source] || d.Late || d.Error != ""
		if !slices.Contains(t.Targets, d.To) {
			t.Targets = append(t.Targets, d.To)
		}
	}
	slices.Sort(t.Targets)
	slices.SortStableFunc(order, func(a, b string) int {
		switch {
		case bad[a] == bad[b]:
			return 0
		case bad[a]:
			return -1
		}
		return 1
	})
	for i, source := range order {
		if *room -= len(t.Targets); *room < 0 {
			t.More = fmt.Sprintf("and %d more datasets", len(order)-i)
			break
		}
		row := jobRow{Dataset: name(source)}
		for _, to := range t.Targets {
			row.Cells = append(row.Cells, cellOf(to, rows[source][to], j, now))
		}
		t.Rows = append(t.Rows, row)
	}
	for i, to := range t.Targets {
		t.Targets[i] = cmp.Or(name(to), "on the source")
	}
	return t
}

// age is a duration without seconds or hours that are none: "1 d".
func age(d time.Duration) string {
	text := report.Seconds(max(0, d).Seconds())
	for _, none := range []string{" 0 s", " 0 min", " 0 h"} {
		text = strings.TrimSuffix(text, none)
	}
	return text
}

// cellOf shows the age of what is there, and whether that is well.
func cellOf(to string, d *runner.DatasetStatus, j *runner.JobStatus, now time.Time) jobCell {
	c := jobCell{Target: cmp.Or(name(to), "on the source")}
	if d == nil {
		c.Age = "–"
		return c
	}
	c.Age = "never"
	if !d.Success.IsZero() {
		c.Age = age(now.Sub(d.Success)) + " old"
	}
	switch {
	case d.Error != "":
		c.State = badge{"failed", "bad"}
	case d.Late:
		c.State = badge{"late", "bad"}
	case j.Schedule == "":
	case d.Lag > 0:
		c.State = badge{"due", "plain"}
	default:
		c.State = badge{"on time", "good"}
	}
	if d.Lag > 0 {
		c.Note = "due for " + age(time.Duration(d.Lag*float64(time.Second)))
	}
	snapshot := cmp.Or(d.Snapshot, d.Base)
	if snapshot != "" {
		c.Note = strings.TrimPrefix(c.Note+", @"+name(snapshot), ", ")
	}
	if d.Error != "" && d.Error != j.Error {
		c.Error, c.Hints = text(d.Error), hints(d.Hint)
	}
	return c
}
