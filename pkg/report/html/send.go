package html

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/probe"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
	"zxfer/pkg/transport/connect"
)

// Send returns the page of `zxfer send`. r may be incomplete.
func Send(about About, r *send.Report, c history.Recording) ([]byte, error) {
	p := &page{About: about, Verb: verbOf(r.Schema), Title: []string{name(r.Source), name(r.Target)}, Times: times(&c, about.Made),
		Outcome: outcomeBadge(r.Outcome), Errors: problems(r.Error, r.Hint),
		Course: courseOf(&c, r.Expected), Bars: barsOf(about, r.Ceilings), Said: messagesOf(&c, about.Made)}
	limitedBy := p.limitBy(r.LimitedBy)
	if r.Seconds > 0 {
		p.moved(figure{"Moved", size.Text(r.Bytes), ""}, r.Bytes, r.Seconds)
	}
	p.expect(r.Ceilings, r.Expected, r.Seconds > 0)
	if r.Plan != nil {
		done, failed := map[string]bool{}, map[string]bool{}
		for _, s := range r.Results {
			if s.Error == "" {
				done[s.Source] = true
			} else {
				failed[s.Source] = true
			}
		}
		note := ""
		if n := len(r.Plan.Datasets); n != len(done) {
			note = fmt.Sprintf("of %d planned", n)
		}
		p.Figures = append(p.Figures, figure{"Datasets", fmt.Sprint(len(done)), note})
		p.Notes = texts(r.Plan.Notes)
	}
	if v := strings.ReplaceAll(report.Verified(r.Results), "guid", "GUID"); v != "" {
		p.Figures = append(p.Figures, figure{"Verified by", v, "on the target"})
	}
	var all []measurements
	for _, s := range r.Results {
		all = append(all, measurements{s.Stages, s.Network})
	}
	source, target := hostNames(r.Hosts)
	if p.DataPath = dataPathOf(all, p.host(source), p.host(target), limitedBy, false); p.DataPath == nil {
		p.DataPath = p.expectedPath(r.Ceilings, r.Expected)
	}
	var conflicts []finding.Finding
	if r.Plan != nil {
		conflicts = r.Plan.Conflicts
	}
	p.findings("Conflicts", conflicts)
	p.findings("Checks", r.Findings)
	p.add(planTable(r.Plan))
	p.add(p.hostsTable(r.Hosts, r.Wire))
	p.Commands = commands("Equivalent commands", r.Commands)
	return render(p)
}

// verbOf returns the verb of a schema such as "zxfer.send/v1".
func verbOf(schema string) string {
	verb, _, _ := strings.Cut(strings.TrimPrefix(schema, "zxfer."), "/")
	return cmp.Or(verb, "send")
}

// moved adds the amount, time and rate of a transfer.
func (p *page) moved(what figure, bytes uint64, seconds float64) {
	p.Figures = append(p.Figures, what, figure{"Took", report.Seconds(seconds), "while streams ran"},
		figure{"Rate", cmp.Or(rate(float64(bytes), seconds), "none"), "on average"})
}

// expect adds the expected rate and, before a transfer, the expected bottleneck.
func (p *page) expect(ceilings []probe.Ceiling, e *forecast.Expected, moved bool) {
	if e == nil {
		return
	}
	f := expectedFigure(ceilings, e)
	if !e.TooShort() {
		f.Note = strings.TrimPrefix(eta(e)+", "+f.Note, ", ")
	}
	p.Figures = append(p.Figures, f)
	if !moved && p.Limit == nil {
		p.Limit = expectedLimit(ceilings, e)
	}
}

func texts(all []string) (out []string) {
	for _, s := range all[:min(len(all), maxRows)] {
		out = append(out, text(s))
	}
	return out
}

// hostNames returns the names of the hosts.
func hostNames(hosts []ends.HostReport) (source, target string) {
	for _, h := range hosts {
		if h.Role == "source" {
			source = h.Name
		} else {
			target = h.Name
		}
	}
	return source, target
}

func (p *page) hostsTable(hosts []ends.HostReport, w connect.Report) table {
	t := table{Title: "Hosts and wire", Columns: []string{"", "name", "", ""}}
	for _, h := range hosts {
		t.Rows = append(t.Rows, []cell{{Text: h.Role}, {Text: p.host(h.Name)}, {Text: "ZFS " + cmp.Or(name(h.ZFS), "unknown")}, {Text: name(h.Backend)}})
	}
	if w.Mode != "" {
		way := ""
		if w.Dial != "" {
			way = strings.TrimSpace(name(w.Dial) + " dials " + name(w.Address))
		}
		connections := ""
		if w.Streams > 0 {
			connections = english.Plural(w.Streams, "connection", "")
		}
		t.Rows = append(t.Rows, []cell{{Text: "wire"}, {Text: name(w.Mode), Note: text(w.Why)}, {Text: connections}, {Text: way}})
	}
	return t
}

func planTable(p *plan.Plan) table {
	t := table{Title: "Plan", Columns: []string{"source", "target", "streams", "about"}}
	if p == nil {
		return t
	}
	for _, d := range p.Datasets[:min(len(p.Datasets), maxRows)] {
		row := []cell{{Text: name(d.Source)}, {Text: name(d.Target)}, {}, {}}
		if d.Encrypted {
			row[0].Note = "encrypted, sent raw"
		}
		if len(d.Loses) > 0 {
			row[1] = cell{Text: row[1].Text, Note: "loses " + text(strings.Join(d.Loses[:min(len(d.Loses), 8)], " ")), Class: "warn"}
		}
		var kinds []string
		var bytes uint64
		for i := range d.Steps[:min(len(d.Steps), 6)] {
			kinds = append(kinds, clip(report.StepText(&d.Steps[i]), maxName))
		}
		if more := len(d.Steps) - 6; more > 0 {
			kinds = append(kinds, fmt.Sprintf("and %d more", more))
		}
		for _, s := range d.Steps {
			bytes += s.Bytes
		}
		row[2].Text = cmp.Or(strings.Join(kinds, "; "), "up to date at "+name(d.Final.Short()))
		if bytes > 0 {
			row[3].Text = size.Text(bytes)
		}
		t.Rows = append(t.Rows, row)
	}
	if more := len(p.Datasets) - len(t.Rows); more > 0 {
		t.More = fmt.Sprintf("and %d more", more)
	}
	return t
}

// findings adds findings that need attention, and separately the passed checks.
func (p *page) findings(title string, all []finding.Finding) {
	t := table{Title: title, Columns: []string{"", "host", "what", "do"}}
	for _, severity := range []finding.Severity{finding.Fail, finding.Warn, finding.Note} {
		for _, f := range all {
			if f.Severity != severity {
				continue
			}
			what := cell{Text: text(f.Summary), Note: text(f.Evidence)}
			if f.Source != "" {
				what.Note = strings.TrimSpace(name(f.Source) + " to " + name(f.Target) + " " + what.Note)
			}
			t.Rows = append(t.Rows, []cell{{Text: string(severity), Class: severityClass(severity), Note: name(f.ID)}, {Text: p.host(f.Host)}, what,
				{Text: strings.Join(hints(f.Remedy), "\n"), Class: "command"}})
		}
	}
	p.add(t)
	well := table{Columns: []string{"", "host", "what"}, Closed: true}
	for _, f := range all {
		if f.Severity == finding.OK {
			well.Rows = append(well.Rows, []cell{{Text: name(f.ID)}, {Text: p.host(f.Host)}, {Text: text(f.Summary)}})
		}
	}
	well.Title = english.Plural(len(well.Rows), "check", "") + " passed"
	p.add(well)
}

func severityClass(s finding.Severity) string {
	switch s {
	case finding.Note:
		return "plain"
	case finding.Warn:
		return "warn"
	}
	return "bad"
}
