package job

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
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

	// Copies are those that a job file names.
	Copies []Copy

	Quick bool          // measure nothing
	Full  bool          // measure also what the rate of a transfer does not need
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
	Advice   *Advice           `json:"advice,omitempty"`
	// Grants are what restricted keys let a doctor see.
	Grants []Grant `json:"grants,omitempty"`
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
func RunDoctor(ctx context.Context, req Doctor, at *hosts.Set, watch Watcher) (*DoctorReport, error) {
	target := req.Send.Target
	if !req.Target {
		target = req.Send.Source
	}
	d := &doctor{req: req, watch: watch, ends: newEnds(at, req.Send.Source, target, &req.Send.Settings),
		report: &DoctorReport{Schema: DoctorSchema, Findings: []finding.Finding{}, Ceilings: []probe.Ceiling{}}}
	err := d.run(ctx)
	return d.report, err
}

type doctor struct {
	*ends
	req    Doctor
	watch  Watcher
	report *DoctorReport
	input  preflight.Input
	paths  bool // at least one end is a path: nothing is planned
	// machines are those that were measured.
	machines machines
	// state and planned are of a planned transfer.
	state   plan.State
	planned plan.Plan
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
	m := &measurer{ends: d.ends, time: d.req.Time, doing: d.watch.Activity}
	defer func() {
		d.report.Ceilings = append(d.report.Ceilings, m.ceilings...)
		d.input.Links, d.machines = d.links, m.machines()
	}()
	if err := m.idle(ctx); err != nil {
		return err
	}
	var all rounds
	d.measureHosts(m, &all)
	if err := d.measureLink(ctx, m, &all); err != nil {
		return err
	}
	switch {
	case d.paths:
		if err := d.measurePaths(ctx, m, &all); err != nil {
			return err
		}
	case d.req.Planned:
		m.datasets(&all, &d.planned, &d.state.Target, d.req.wants)
	}
	if err := m.run(ctx, all); err != nil {
		return err
	}
	if d.input.Way.NoPath { // nothing can be expected
		return nil
	}
	d.report.Expected = m.expect(d.planned.Bytes(), int64(d.req.Send.Bandwidth))
	if d.alone() {
		d.report.Expected = localExpected(m.ceilings)
	}
	return nil
}

// alone tells that nothing but this host is looked at.
func (d *doctor) alone() bool { return !d.req.Target && !d.req.Path }

// extra tells the measurements that the answer does not need: they were asked for.
func (d *doctor) extra(id string) bool {
	return d.req.wants(id) && (d.req.Full || slices.Contains(d.req.Only, id))
}

// measureHosts adds what every host does by itself.
func (d *doctor) measureHosts(m *measurer, all *rounds) {
	for _, id := range probe.Local() {
		if !d.extra(id) && !(d.alone() && id == probe.LoopbackTLS && d.req.wants(id)) {
			continue
		}
		var each []measurement
		for _, e := range d.all() {
			if measures(d.req.Send.Wire, e) {
				each = append(each, m.of(e, probe.Request{ID: id}))
			}
		}
		if len(each) == 2 {
			m.both(all, each[0], each[1])
			continue
		}
		all.add(each...)
	}
}

// measureLink adds the link between two hosts, there and back.
func (d *doctor) measureLink(ctx context.Context, m *measurer, all *rounds) error {
	if d.sameHost() {
		return nil
	}
	if err := d.choose(d.req.Send.Settings); err != nil {
		return err
	}
	if !d.req.wantsWay() {
		return nil
	}
	if err := d.open(ctx, d.watch); err != nil {
		return err
	}
	if d.input.Way = d.link.Search(); d.input.Way.NoPath {
		return nil
	}
	m.link = crossed(d.ends, &d.planned)
	if d.req.wants(linkOut) {
		all.add(m.crosses(linkOut, &d.source, &d.target))
	}
	if d.extra(linkBack) {
		all.add(m.crosses(linkBack, &d.target, &d.source))
	}
	return nil
}

// look captures both hosts at once.
func (d *doctor) look(ctx context.Context) error {
	all := d.all()
	defer d.watch.Activity("looking at " + strings.Join(labels(all), " and "))()
	d.report.Archives = make([]Archive, len(all))
	g, gctx := errgroup.WithContext(ctx)
	for i, e := range all {
		g.Go(func() error {
			var text []byte
			err := e.Do(gctx, func(st hosts.Host) (err error) {
				// A host without ZFS is what the checks tell.
				e.facts, err = st.HostFacts(gctx)
				if p, ok := st.(hosts.Measurer); ok && err == nil {
					text, err = p.Capture(gctx, false)
				}
				if errors.Is(err, hosts.ErrForbidden) { // each check that needs it says so
					e.unseen, e.grant, err = err.Error(), fault.HintOf(err), nil
				}
				return err
			})
			if err != nil || text == nil { // of a host without zxfer nothing more is known
				return err
			}
			d.report.Archives[i] = Archive{Role: [2]string{"source", "target"}[i], Host: e.Label(), Text: text}
			h, err := hostOf(d.report.Archives[i])
			if e.system = h.System; err == nil {
				d.req.known(h.System.Pools, [2]string{d.req.Send.Source.Host, d.req.Send.Target.Host}[i])
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return unchanged(err)
	}
	if d.sameHost() {
		d.target = d.source
	}
	d.report.Archives = slices.DeleteFunc(d.report.Archives, func(a Archive) bool { return a.Text == nil })
	d.input.Source, d.input.Target = d.source.captured(), d.target.captured()
	return nil
}

// known notes of a host's pools what zxfer heal calls those that it knows copies of: what
// a job names, as source or as copy.
func (d *Doctor) known(pools []sysinfo.Pool, host string) {
	for _, c := range d.Copies {
		for _, at := range []endpoint.Endpoint{c.Source, c.Target} {
			pool := zfs.PoolOf(at.Name)
			i := slices.IndexFunc(pools, func(p sysinfo.Pool) bool { return p.Name == pool })
			if at.Host == host && i >= 0 {
				pools[i].Known = endpoint.Endpoint{Host: at.Host, Name: pool}.String()
			}
		}
	}
}

func labels(all []*end) (names []string) {
	for _, e := range all {
		names = append(names, e.Label())
	}
	return names
}

// captured is a host as the checks look at what was captured of it.
func (e *end) captured() preflight.Host {
	h := e.checked()
	if s := e.system; s != nil { // of a host without zxfer nothing was captured
		h.ZFS, h.Kernel = s.ZFS, s.Kernel
	}
	return h
}

// plan surveys and plans as send -n does.
func (d *doctor) plan(ctx context.Context) error {
	req := &d.req.Send
	p, err := d.makePlan(ctx, req)
	if err != nil {
		return unchanged(err)
	}
	d.planned, d.report.Plan = p, commands(&p)
	d.input = d.ends.input(&d.state, &p)
	if d.req.wants("holds") {
		d.input.Holds = holds(ctx, &d.source, &d.state.Source, d.watch.Log)
	}
	if ctx.Err() != nil {
		return unchanged(ctx.Err())
	}
	a, err := transferArchive(d.input)
	d.report.Archives = append(d.report.Archives, a)
	return err
}

func (d *doctor) makePlan(ctx context.Context, req *Send) (p plan.Plan, err error) {
	if err = d.reach(ctx); err != nil {
		return p, err
	}
	if err = d.choose(req.Settings); err != nil {
		return p, err
	}
	if err = resolve(ctx, d.ends, req, d.watch.Log); err != nil {
		return p, err
	}
	if d.state, err = survey(ctx, d.ends, req.Plan); err != nil {
		return p, err
	}
	if p, err = makePlan(ctx, d.ends, req.Plan, &d.state, nil); err != nil || len(p.Conflicts) > 0 {
		return p, err
	}
	return p, estimate(ctx, &d.source, &p, &d.state.Source, false)
}

// judge evaluates the checks, and makes the answer of all that was found.
func (d *doctor) judge() {
	d.report.Findings = findings(d.input, d.req)
	d.report.Grants = d.grants()
	d.report.Advice = d.advise()
	if d.req.Planned && !d.paths {
		d.report.Allow = preflight.Allow(d.input)
	}
}

// wantsWay tells whether anything was asked for that takes a way between the hosts.
func (d *Doctor) wantsWay() bool {
	return d.wants(preflight.WayID) || d.wants(linkOut) || d.wants(linkBack)
}

// findings are those of the checks. What judges one direction of the link
// judges both, and the way is theirs.
func findings(in preflight.Input, req Doctor) []finding.Finding {
	return preflight.Doctor(in, func(id string) bool {
		switch id {
		case linkOut:
			return !req.wants(linkOut) && !req.wants(linkBack)
		case preflight.WayID:
			return !req.wantsWay()
		}
		return !req.wants(id)
	})
}
