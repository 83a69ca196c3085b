package job

import (
	"context"
	"path"

	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/site"
)

// measure measures what a copy passes: the link, reading the source, and
// writing next to an image file. A block device is not written to: there is
// nowhere beside it.
func (d *copier) measure(ctx context.Context) error {
	m := &measurer{source: d.source, target: d.target, facts: [2]site.Facts{d.facts.source, d.facts.target}, link: d.link.As(false), time: measureTime, log: d.rep.Log}
	if err := m.idle(ctx); err != nil {
		return err
	}
	if d.target != d.source {
		if err := m.crossing(ctx, linkOut, d.source, d.target); err != nil {
			return err
		}
	}
	if !standard(d.req.Source) {
		if err := m.one(ctx, d.source, probe.Request{ID: probe.PathRead, Dataset: d.task.Source.Path}); err != nil {
			return err
		}
	}
	if !standard(d.req.Target) && d.task.Target.IsFile() {
		if err := m.one(ctx, d.target, probe.Request{ID: probe.PathWrite, Dataset: path.Dir(d.task.Target.Path)}); err != nil {
			return err
		}
	}
	d.report.Ceilings, d.input.Links = m.ceilings, m.links
	d.report.Findings = preflight.Device(d.input)
	d.report.Expected = expect(m.ceilings, d.report.Size, d.task.Options.BandLimit, m.machines(d.facts.source, d.facts.target))
	return nil
}
