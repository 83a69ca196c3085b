package page

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/job"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
)

// Doctor is the page of `zxfer doctor` of what was named, which may be nothing: this
// host. failure is what it ended with before it was done.
func Doctor(about About, of []string, r *job.DoctorReport, failure error) ([]byte, error) {
	p := &page{About: about, Verb: "doctor", Times: times(&history.Course{}, about.Made),
		Bars: barsOf(about, r.Ceilings)}
	p.Way = p.expectedWay(r.Ceilings, r.Expected)
	for _, n := range of {
		p.Title = append(p.Title, name(n))
	}
	if len(p.Title) == 0 {
		p.Title = []string{name(about.Host)}
	}
	if failure != nil {
		p.Error = text(failure.Error())
	}
	if e := r.Expected; e != nil {
		p.Limit = limitOf(e.LimitedBy)
		p.Figures = append(p.Figures, expectedFigure(e))
		if e.Bytes > 0 {
			p.Figures = append(p.Figures, figure{"To move", size.Text(e.Bytes), eta(e)})
		}
	}
	counts := map[finding.Severity]int{}
	for _, f := range r.Findings {
		counts[f.Severity]++
	}
	switch {
	case failure != nil:
		p.Outcome = badge{"not finished", "bad"}
	case counts[finding.Fail] > 0:
		p.Outcome = badge{english.Plural(counts[finding.Fail], "check", "") + " failed", "bad"}
	case counts[finding.Warn] > 0:
		p.Outcome = badge{english.Plural(counts[finding.Warn], "warning", ""), "warn"}
	default:
		p.Outcome = badge{"all well", "good"}
	}
	if n := len(r.Findings); n > 0 {
		p.Figures = append(p.Figures, figure{"Checks", fmt.Sprint(n), fmt.Sprintf("%d failed, %d with a warning", counts[finding.Fail], counts[finding.Warn])})
	}
	if a := r.Advice; a != nil {
		p.Advice = clip(report.Advice(a), maxText)
	}
	p.findings("Checks", r.Findings)
	p.add(p.grantsTable(r.Grants))
	p.Commands = commands("The transfer by hand", r.Plan)
	return render(p)
}

// expectedFigure says what was not measured of the rate to expect.
func expectedFigure(e *job.Expected) figure {
	f := figure{"Expected", size.Rate(e.BytesPerSecond), limitedBy(text(e.LimitedBy))}
	if len(e.Unmeasured) > 0 {
		f.Label, f.Note = "Expected, at most", f.Note+"; not measured: "+text(strings.Join(e.Unmeasured, ", "))
	}
	return f
}

// grantsTable says what restricted keys do not let a doctor see.
func (p *page) grantsTable(grants []job.Grant) table {
	t := table{Title: "What restricted keys do not show", Columns: []string{"host", "the key may", "not seen"}}
	for _, g := range grants {
		t.Rows = append(t.Rows, []cell{{Text: p.host(g.Host)}, {Text: text(g.May)}, {Text: text(strings.Join(g.Unseen, " "))}})
	}
	return t
}
