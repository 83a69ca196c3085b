package html

import (
	"fmt"
	"slices"

	"zxfer/pkg/device"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
)

// Device returns the page of `zxfer dev`. r may be incomplete.
func Device(about About, r *dev.Report, c history.Recording) ([]byte, error) {
	p := &page{About: about, Verb: "dev", Title: []string{name(r.Source), name(r.Target)}, Times: times(&c, about.Made),
		Outcome: outcomeBadge(r.Outcome), Errors: problems(r.Error, r.Hint),
		Course: courseOf(&c, r.Expected), Bars: barsOf(about, r.Ceilings), Said: messagesOf(&c, about.Made)}
	var all []measurements
	var covered uint64 // bytes sent, zero or already present
	for _, s := range c.Spans {
		covered += s.Bytes
	}
	last := &dev.Result{}
	for _, res := range r.Results {
		all = append(all, measurements{res.Stages, res.Network})
		last = res
	}
	limitedBy := p.limitBy(last.LimitedBy)
	if r.Seconds > 0 {
		p.moved(figure{"Covered", size.Text(covered), "of the device"}, covered, r.Seconds)
	}
	p.expect(r.Ceilings, r.Expected, r.Seconds > 0)
	p.deviceFigures(r, last)
	if p.DataPath = dataPathOf(all, name(r.Source), name(r.Target), limitedBy, true); p.DataPath == nil {
		p.DataPath = p.expectedPath(r.Ceilings, r.Expected)
	}
	p.findings("Checks", slices.Concat(r.Problems, r.Findings))
	p.add(devicesTable(r))
	p.add(rangesTable("Unreadable: zeros in the copy", last.BadRanges))
	p.add(rangesTable("Differs", r.Differ))
	if r.Digest == device.BLAKE3 && last.SourceDigest != "" {
		p.Commands = commands("BLAKE3 of the whole device", []string{last.SourceDigest})
	}
	return render(p)
}

func (p *page) deviceFigures(r *dev.Report, last *dev.Result) {
	if len(r.Results) > 0 && !r.Compare {
		p.Figures = append(p.Figures, figure{"Sent", size.Text(uint64(last.Data)), "as data"})
	}
	if last.Zeros > 0 {
		p.Figures = append(p.Figures, figure{"Zeros", size.Text(uint64(last.Zeros)), "neither sent nor stored"})
	}
	if last.Present > 0 {
		p.Figures = append(p.Figures, figure{"Already present", size.Text(uint64(last.Present)), ""})
	}
	if last.WireBytes > 0 && last.Wire != "local" {
		p.Figures = append(p.Figures, figure{"Over the wire", size.Text(uint64(last.WireBytes)), "wire " + name(last.Wire)})
	}
	if len(r.Results) > 0 && last.Error == "" && !r.Compare {
		verified := figure{"Read back", "no", ""}
		if r.Volume != nil && last.Verified > 0 {
			verified = figure{"Read back", "yes", "all written data"}
		}
		if last.TargetDigest != "" {
			verified = figure{"Read back", "yes", "and compared by " + r.Digest}
		}
		p.Figures = append(p.Figures, verified)
	}
}

func devicesTable(r *dev.Report) table {
	t := table{Title: "Devices", Columns: []string{"", "name", "kind", "size", "holds"}}
	for _, d := range []struct {
		role, name string
		facts      *device.Facts
	}{{"source", r.Source, r.From}, {"target", r.Target, r.To}} {
		if d.facts == nil {
			continue
		}
		holds := ""
		for _, s := range d.facts.Signatures {
			holds += s.Type + " " + s.Label + " on " + s.Device + "; "
		}
		bytes := ""
		if d.facts.Size > 0 {
			bytes = fmt.Sprintf("%s (%d bytes)", size.Text(uint64(d.facts.Size)), d.facts.Size)
		}
		t.Rows = append(t.Rows, []cell{{Text: d.role}, {Text: name(d.name), Note: name(d.facts.Model + " " + d.facts.Serial)},
			{Text: name(d.facts.Kind)}, {Text: bytes}, {Text: text(holds)}})
	}
	return t
}

func rangesTable(title string, ranges []device.Range) table {
	t := table{Title: title, Columns: []string{"from byte", "bytes"}}
	for _, r := range ranges {
		t.Rows = append(t.Rows, []cell{{Text: fmt.Sprint(r.Start)}, {Text: fmt.Sprint(r.Length)}})
	}
	return t
}
