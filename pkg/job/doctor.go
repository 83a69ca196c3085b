package job

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/site"
)

// DoctorSchema is what a doctor's report begins with.
const DoctorSchema = "zxfer.doctor/v1"

// Doctor is a request for `zxfer doctor`.
type Doctor struct {
	// Send is the transfer to judge. Without a plan its source is this host,
	// and its target, if any, only names a host or a path.
	Send Send
	// Planned tells that Send names both ends.
	Planned bool
	// Target tells that there is another host.
	Target bool
	// Path tells that Send.Target names a path, to be read and written.
	Path bool

	Quick bool          // measure nothing
	Time  time.Duration // of each measurement
	Only  []string      // ids of checks and measurements; empty = all
	Skip  []string
}

// wants tells whether a check or measurement was asked for.
func (d *Doctor) wants(id string) bool {
	return (len(d.Only) == 0 || slices.Contains(d.Only, id)) && !slices.Contains(d.Skip, id)
}

// DoctorReport is what `zxfer doctor --json` prints. Fields are only ever
// added.
type DoctorReport struct {
	Schema   string            `json:"schema"` // "zxfer.doctor/v1"
	Findings []finding.Finding `json:"findings"`
	Ceilings []probe.Ceiling   `json:"ceilings"`
	Expected *Expected         `json:"expected"` // null where nothing was measured
	// Allow are the zfs allow lines that a user who is not root needs.
	Allow []string `json:"allow,omitempty"`
	// Plan tells what a planned transfer would do, in zfs command lines.
	Plan []string `json:"plan,omitempty"`

	// Archives are the captured facts by role, source first.
	Archives []Archive `json:"-"`
}

// RunDoctor looks, judges and measures. It changes nothing that lasts. The
// report is returned, as far as it got, with an error too. Findings at fail
// level are no error.
func RunDoctor(ctx context.Context, req Doctor, at *hosts.Set, log func(string)) (*DoctorReport, error) {
	d := &doctor{req: req, log: log, report: &DoctorReport{Schema: DoctorSchema, Findings: []finding.Finding{}, Ceilings: []probe.Ceiling{}}}
	d.sender = &sender{req: req.Send, rep: quietReporter(log), report: &Report{}}
	d.source = at.At(req.Send.Source.Host, &req.Send.Way)
	d.target = d.source
	if req.Target {
		d.target = at.At(req.Send.Target.Host, &req.Send.Way)
	}
	d.sender.source, d.sender.target = d.source, d.target
	err := d.run(ctx)
	return d.report, err
}

// quietReporter is a Reporter of a job that moves nothing.
func quietReporter(log func(string)) Reporter { return &logOnly{log: log} }

type doctor struct {
	req            Doctor
	log            func(string)
	report         *DoctorReport
	sender         *sender
	source, target *hosts.Host
	input          preflight.Input
	paths          bool // at least one end is a path: nothing is planned
}

func (d *doctor) run(ctx context.Context) error {
	if err := d.look(ctx); err != nil {
		return err
	}
	d.paths = d.req.Path
	if d.req.Planned {
		var err error
		if d.paths, err = d.onPaths(ctx); err == nil && !d.paths {
			err = d.plan(ctx)
		}
		if err != nil {
			return err
		}
	}
	if !d.req.Quick {
		if err := d.measure(ctx); err != nil {
			return err
		}
	}
	d.judge()
	return nil
}

// measure measures what every host can do by itself, the link in both
// directions, and what a planned transfer passes.
func (d *doctor) measure(ctx context.Context) error {
	s := d.sender
	m := s.measurer(d.req.Time)
	defer func() {
		d.report.Ceilings = append(d.report.Ceilings, m.ceilings...)
		d.input.Links = m.links
	}()
	if err := m.idle(ctx); err != nil {
		return err
	}
	ends := []*hosts.Host{d.source}
	if d.target != d.source {
		ends = append(ends, d.target)
	}
	for _, e := range ends {
		for _, id := range probe.Local() {
			if !d.req.wants(id) {
				continue
			}
			if err := m.one(ctx, e, probe.Request{ID: id}); err != nil {
				return err
			}
		}
	}
	if d.target != d.source {
		link, err := s.chooseLink()
		if err != nil {
			return err
		}
		m.link = link.As(anyEncrypted(s.report.Plan))
		for _, way := range []struct {
			id       string
			from, to *hosts.Host
		}{{linkOut, d.source, d.target}, {linkBack, d.target, d.source}} {
			if !d.req.wants(way.id) {
				continue
			}
			if err := m.crossing(ctx, way.id, way.from, way.to); err != nil {
				return err
			}
		}
	}
	switch {
	case d.paths:
		if err := d.measurePaths(ctx, m); err != nil {
			return err
		}
	case d.req.Planned:
		if err := s.measureEnds(ctx, m, d.req.wants); err != nil {
			return err
		}
	}
	if d.report.Expected = expect(m.ceilings, planned(s.report.Plan), int64(d.req.Send.Bandwidth), s.machines(m)); d.report.Expected == nil {
		d.report.Expected = localExpected(m.ceilings)
	}
	return nil
}

// look captures both hosts at once.
func (d *doctor) look(ctx context.Context) error {
	ends := []*hosts.Host{d.source}
	if d.target != d.source {
		ends = append(ends, d.target)
	}
	d.report.Archives = make([]Archive, len(ends))
	hosts := make([]preflight.Host, len(ends))
	facts := make([]site.Facts, len(ends))
	g, gctx := errgroup.WithContext(ctx)
	for i, e := range ends {
		g.Go(func() error {
			var text []byte
			err := e.Do(gctx, site.In(func(st site.Full) (err error) {
				// A host without ZFS is what the checks tell.
				if facts[i], err = st.HostFacts(gctx); err == nil {
					text, err = st.Capture(gctx, false)
				}
				return err
			}))
			if err != nil {
				return err
			}
			d.report.Archives[i] = Archive{Role: [2]string{"source", "target"}[i], Host: e.Label(), Text: text}
			hosts[i], err = hostOf(d.report.Archives[i])
			hosts[i].User, hosts[i].Root = facts[i].User, facts[i].Root
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return unchanged(err)
	}
	d.input.Source, d.input.Target = hosts[0], hosts[len(hosts)-1]
	d.sender.facts.source, d.sender.facts.target = facts[0], facts[len(facts)-1]
	d.sender.systems.source, d.sender.systems.target = d.input.Source.System, d.input.Target.System
	return nil
}

// plan surveys and plans as send -n does.
func (d *doctor) plan(ctx context.Context) error {
	s := d.sender
	for _, step := range []func(context.Context) error{
		s.resolve, s.resolveSource, s.look, func(ctx context.Context) error { return s.plan(ctx, true) },
	} {
		if err := step(ctx); err != nil {
			return unchanged(err)
		}
	}
	d.report.Plan = s.report.Commands
	d.input = s.preflightInput(s.report.Plan)
	if d.req.wants("holds") {
		d.input.Holds = s.holds(ctx)
	}
	if ctx.Err() != nil {
		return unchanged(ctx.Err())
	}
	a, err := transferArchive(d.input)
	d.report.Archives = append(d.report.Archives, a)
	return err
}

// judge evaluates the checks.
func (d *doctor) judge() {
	d.report.Findings = findings(d.input, d.req)
	if d.req.Planned && !d.paths {
		d.report.Allow = preflight.Allow(d.input)
	}
}

// findings are those of the checks. What judges one direction of the link
// judges both.
func findings(in preflight.Input, req Doctor) []finding.Finding {
	return preflight.Doctor(in, func(id string) bool { return !req.wants(id) && (id != linkOut || !req.wants(linkBack)) })
}
