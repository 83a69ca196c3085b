package job

import (
	"context"
	"path"

	"zxfer/pkg/probe"
)

// measure measures what a copy passes: the link, reading the source, and
// writing next to an image file. A block device is not written to: there is
// nowhere beside it.
func (d *deviceJob) measure(ctx context.Context) error {
	m := &measurer{ends: d.ends, link: d.link.Resolve(false), time: measureTime, doing: d.rep.Activity}
	if err := m.idle(ctx); err != nil {
		return err
	}
	var all rounds
	if !d.sameHost() {
		all.add(m.crosses(linkOut, &d.source, &d.target))
	}
	if !standard(d.req.Source) {
		all.add(m.of(&d.source, probe.Request{ID: probe.PathRead, Dataset: d.task.Source.Path}))
	}
	if !standard(d.req.Target) && d.task.Target.IsFile() {
		all.add(m.of(&d.target, probe.Request{ID: probe.PathWrite, Dataset: path.Dir(d.task.Target.Path)}))
	}
	if err := m.run(ctx, all); err != nil {
		return err
	}
	d.report.Ceilings, d.report.Findings = m.ceilings, d.findings()
	d.report.Expected = m.expect(d.report.Size, d.task.Options.BandLimit)
	return nil
}
