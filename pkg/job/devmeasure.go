package job

import (
	"context"
	"path"

	"zxfer/pkg/probe"
)

// measure measures what a copy passes: the link, reading the source, and
// writing next to an image file. A block device is not written to: there is
// nowhere beside it.
func (d *copier) measure(ctx context.Context) error {
	m := &measurer{ends: d.ends, link: d.link.As(false), time: measureTime, log: d.rep.Log}
	if err := m.idle(ctx); err != nil {
		return err
	}
	if !d.sameHost() {
		if err := m.crossing(ctx, linkOut, &d.source, &d.target); err != nil {
			return err
		}
	}
	if !standard(d.req.Source) {
		if err := m.one(ctx, &d.source, probe.Request{ID: probe.PathRead, Dataset: d.task.Source.Path}); err != nil {
			return err
		}
	}
	if !standard(d.req.Target) && d.task.Target.IsFile() {
		if err := m.one(ctx, &d.target, probe.Request{ID: probe.PathWrite, Dataset: path.Dir(d.task.Target.Path)}); err != nil {
			return err
		}
	}
	d.report.Ceilings, d.report.Findings = m.ceilings, d.findings()
	d.report.Expected = expect(m.ceilings, d.report.Size, d.task.Options.BandLimit, m.machines())
	return nil
}
