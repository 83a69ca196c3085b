package html

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/probe"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
)

// Doctor returns the page of `zxfer doctor` for the arguments of, which may be empty for the local
// host. failure is the error that ended it early, or nil.
func Doctor(about About, of []string, r *doctor.Report, failure error) ([]byte, error) {
	p := &page{About: about, Verb: "doctor", Times: times(&history.Recording{}, about.Made),
		Bars: barsOf(about, r.Ceilings)}
	p.DataPath = p.expectedPath(r.Ceilings, r.Expected)
	for _, n := range of {
		p.Title = append(p.Title, name(n))
	}
	if len(p.Title) == 0 {
		p.Title = []string{name(about.Host)}
	}
	p.Errors = failures(failure)
	if e := r.Expected; e != nil {
		p.Limit = expectedLimit(r.Ceilings, e)
		p.Figures = append(p.Figures, expectedFigure(r.Ceilings, e))
		if e.Bytes > 0 && !e.TooShort() {
			p.Figures = append(p.Figures, figure{"To send", size.Text(e.Bytes), eta(e)})
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
		p.Outcome = badge{"all ok", "good"}
	}
	if n := len(r.Findings); n > 0 {
		p.Figures = append(p.Figures, figure{"Checks", fmt.Sprint(n), fmt.Sprintf("%d failed, %d with a warning", counts[finding.Fail], counts[finding.Warn])})
	}
	if a := r.Advice; a != nil {
		p.Advice = clip(report.Advice(a), maxText)
	}
	p.findings("Checks", r.Findings)
	p.add(p.grantsTable(r.Grants))
	p.Commands = commands("Equivalent commands", r.Plan)
	return render(p)
}

// expectedLimit returns the expected bottleneck, or nil if the transfer is too short.
func expectedLimit(ceilings []probe.Ceiling, e *forecast.Expected) *limit {
	l := limitOf(e.LimitedBy)
	if l == nil || e.TooShort() {
		return nil
	}
	l.Name = text(report.LimitText(ceilings, e))
	return l
}

// expectedFigure shows the expected rate and what was not measured.
func expectedFigure(ceilings []probe.Ceiling, e *forecast.Expected) figure {
	if e.TooShort() {
		return figure{"Expected", "below 1 s", "for " + size.Text(e.Bytes) + "; limit: " + report.LimitText(ceilings, e)}
	}
	f := figure{"Expected", size.Rate(e.BytesPerSecond), limitedBy(text(report.LimitText(ceilings, e)))}
	if len(e.Unmeasured) > 0 {
		f.Label, f.Note = "Expected, at most", f.Note+"; not measured: "+text(strings.Join(e.Unmeasured, ", "))
	}
	return f
}

// grantsTable lists what restricted keys hide.
func (p *page) grantsTable(grants []doctor.Grant) table {
	t := table{Title: "Hidden by restricted keys", Columns: []string{"host", "the key permits", "hidden"}}
	for _, g := range grants {
		t.Rows = append(t.Rows, []cell{{Text: p.host(g.Host)}, {Text: text(g.Permissions)}, {Text: text(strings.Join(g.Forbidden, " "))}})
	}
	return t
}
