// Package doctor runs `zxfer doctor`: it captures facts, measures, plans a send without a change, and evaluates the
// checks.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/job/measure"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// Schema is the schema of the doctor's report.
const Schema = "zxfer.doctor/v1"

// Request is a request for `zxfer doctor`.
type Request struct {
	// Send is the transfer to check. Without a plan its source is the local host. Its target, if
	// any, names only a host or a path.
	Send send.Request
	// Planned means that Send names both ends.
	Planned bool
	// Target means that a second host is checked.
	Target bool
	// Path means that Send.Target names a path to read and write.
	Path bool

	// Copies are the copies of the job file.
	Copies []heal.Copy

	Quick bool          // measure nothing
	Full  bool          // also run measurements that do not affect the expected rate
	Time  time.Duration // per measurement
	Only  []string      // IDs of checks and measurements; empty = all
	Skip  []string
}

// Report is the JSON report of `zxfer doctor`. Later versions only add fields.
type Report struct {
	Schema   string             `json:"schema"` // "zxfer.doctor/v1"
	Findings []finding.Finding  `json:"findings"`
	Ceilings []probe.Ceiling    `json:"ceilings"`
	Expected *forecast.Expected `json:"expected"` // null if nothing was measured
	Advice   *forecast.Advice   `json:"advice,omitempty"`
	// Grants lists the checks that restricted keys permitted.
	Grants []Grant `json:"grants,omitempty"`
	// Allow lists the zfs allow commands that a user other than root needs.
	Allow []string `json:"allow,omitempty"`
	// Plan lists the zfs commands of the planned transfer.
	Plan []string `json:"plan,omitempty"`

	// Archives holds the captured facts, source first.
	Archives []Capture `json:"-"`
}

// Grant lists the checks that a host's restricted key permits.
type Grant struct {
	Host        string `json:"host"`
	Permissions string `json:"may,omitempty"` // the key's permissions in authorized_keys
	// Permitted and Forbidden hold IDs of checks and measurements.
	Permitted []string `json:"seen"`
	Forbidden []string `json:"unseen"`
}

// Run captures facts, measures, and evaluates the checks. It leaves no permanent changes.
// It returns the report also with an error. Findings at fail level are not an error.
func Run(ctx context.Context, req Request, at *hosts.Set, watch ends.Watcher) (*Report, error) {
	target := req.Send.Target
	if !req.Target {
		target = req.Send.Source
	}
	d := &doctor{req: req, watch: watch, ends: ends.New(at, req.Send.Source, target, &req.Send.Settings),
		report: &Report{Schema: Schema, Findings: []finding.Finding{}, Ceilings: []probe.Ceiling{}}}
	err := ends.Unchanged(d.run(ctx))
	return d.report, err
}

type doctor struct {
	ends   *ends.Ends
	req    Request
	watch  ends.Watcher
	report *Report
	input  preflight.Input
	paths  bool // at least one end is a path, so nothing is planned
	// machines holds the measured hosts.
	machines forecast.Machines
	// state and planned belong to a planned transfer.
	state   plan.State
	planned plan.Plan
}

func (d *doctor) run(ctx context.Context) error {
	if err := d.capture(ctx); err != nil {
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
	d.evaluate()
	return nil
}

// capture captures the facts of both hosts concurrently.
func (d *doctor) capture(ctx context.Context) error {
	all := d.ends.All()
	defer d.watch.Activity("inspecting " + strings.Join(labels(all), " and "))()
	d.report.Archives = make([]Capture, len(all))
	g, gctx := errgroup.WithContext(ctx)
	for i, e := range all {
		g.Go(func() error {
			var text string
			err := e.Conn.Do(gctx, func(on hosts.Host) (err error) {
				// The checks report a host without ZFS.
				e.Facts, err = hosts.Call(gctx, on, hosts.OpHostFacts, hosts.None{})
				if err == nil && on.Supports(hosts.OpCapture) {
					text, err = hosts.Call(gctx, on, hosts.OpCapture, false)
				}
				if errors.Is(err, hosts.ErrForbidden) { // each affected check reports it
					e.Denied, e.Grant, err = err.Error(), fault.HintOf(err), nil
				}
				return err
			})
			if err != nil || text == "" { // a host without zxfer captures nothing
				return err
			}
			d.report.Archives[i] = Capture{Role: [2]string{"source", "target"}[i], Host: e.Conn.Label(), Text: []byte(text)}
			h, err := hostOf(d.report.Archives[i])
			if e.System = h.System; err == nil {
				d.req.markKnownPools(h.System.Pools, [2]string{d.req.Send.Source.Host, d.req.Send.Target.Host}[i])
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if d.ends.SameHost() {
		d.ends.Target = d.ends.Source
	}
	d.report.Archives = slices.DeleteFunc(d.report.Archives, func(a Capture) bool { return a.Text == nil })
	d.input.Source, d.input.Target = captured(&d.ends.Source), captured(&d.ends.Target)
	return nil
}

// markKnownPools sets Known for the pools on host that contain a job's source or copy. It holds
// the name that `zxfer heal` accepts.
func (d *Request) markKnownPools(pools []sysinfo.Pool, host string) {
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

func labels(all []*ends.End) (names []string) {
	for _, e := range all {
		names = append(names, e.Conn.Label())
	}
	return names
}

// captured returns a host as check input, with its captured facts.
func captured(e *ends.End) preflight.Host {
	h := e.Checked()
	if s := e.System; s != nil { // nil for a host without zxfer
		h.ZFS, h.Kernel = s.ZFS, s.Kernel
	}
	return h
}

// plan surveys and plans like `zxfer send -n`.
func (d *doctor) plan(ctx context.Context) error {
	req := &d.req.Send
	state, p, err := send.Preview(ctx, req, d.ends, d.watch.Log)
	d.state = state
	if err != nil {
		return err
	}
	d.planned, d.report.Plan = p, plan.Commands(&p)
	d.input = d.ends.Input(&d.state, &p)
	d.readPermissions(ctx)
	if d.req.wants("holds") {
		d.input.Holds = holds(ctx, &d.ends.Source, &d.state.Source, d.watch.Log)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a, err := transferArchive(d.input)
	d.report.Archives = append(d.report.Archives, a)
	return err
}

// readPermissions reads the permissions of users other than root. On failure, they are unknown.
func (d *doctor) readPermissions(ctx context.Context) {
	at := d.input.Grantees()
	for i, e := range []*ends.End{&d.ends.Source, &d.ends.Target} {
		h := []*preflight.Host{&d.input.Source, &d.input.Target}[i]
		if h.Root || h.User == "" || d.input.Plan.Steps() == 0 {
			continue
		}
		p, err := hosts.Call(ctx, hosts.By(e.Conn.Retry), hosts.OpPermitted, at[i])
		if err != nil {
			d.watch.Log(fmt.Sprintf("%s: the permissions of %s are unknown: %v", e.Conn.Label(), h.User, err))
			continue
		}
		h.Permitted = &p
	}
}

// maxHoldQueries limits the number of snapshots whose holds are queried.
const maxHoldQueries = 2000

// holds returns the hold tags of the source's oldest snapshots, nil if they cannot be read.
func holds(ctx context.Context, source *ends.End, l *zfs.Listing, log func(string)) map[string][]string {
	names := l.SnapshotNames()
	tags, err := source.Conn.Holds(ctx, names[:min(len(names), maxHoldQueries)])
	if err != nil {
		log(fmt.Sprintf("%s: holds: %v", source.Conn.Label(), err))
		return nil
	}
	return tags
}

// measure measures each host, the link in both directions, and the parts of a planned transfer.
func (d *doctor) measure(ctx context.Context) error {
	m := &measure.Measurer{Ends: d.ends, Time: d.req.Time, Reporter: d.watch}
	defer func() {
		d.report.Ceilings = append(d.report.Ceilings, m.Ceilings...)
		d.input.Links, d.machines = m.Links, m.Machines()
	}()
	var all measure.Rounds
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
		m.AddDatasets(&all, &d.planned, &d.state.Target, d.req.wants)
	}
	if err := m.Run(ctx, all); err != nil {
		return err
	}
	if d.input.Path.NoPath {
		return nil
	}
	d.report.Expected = m.Expected(d.planned.Bytes(), int64(d.req.Send.Bandwidth))
	if d.localOnly() {
		d.report.Expected = forecast.Local(m.Ceilings)
	}
	return nil
}

func (d *doctor) measureHosts(m *measure.Measurer, all *measure.Rounds) {
	for _, id := range probe.Local() {
		if !d.wantsExtra(id) && !(d.localOnly() && id == probe.LoopbackTLS && d.req.wants(id)) {
			continue
		}
		var each []measure.Measurement
		for _, e := range d.ends.All() {
			if measure.CanMeasure(d.req.Send.Wire, e) {
				each = append(each, m.OnHost(e, probe.Request{ID: id}))
			}
		}
		if len(each) == 2 {
			m.AddPair(all, each[0], each[1])
			continue
		}
		all.Add(each...)
	}
}

// measureLink adds the measurements of the link in both directions.
func (d *doctor) measureLink(ctx context.Context, m *measure.Measurer, all *measure.Rounds) error {
	if d.ends.SameHost() {
		return nil
	}
	if err := d.ends.Choose(d.req.Send.Settings, d.watch.Log); err != nil {
		return err
	}
	if !d.req.wantsPath() {
		return nil
	}
	if err := d.ends.Open(ctx, d.watch); err != nil {
		return err
	}
	if d.input.Path = d.ends.Search.Result(); d.input.Path.NoPath {
		return nil
	}
	m.Link = measure.LargestStreamLink(d.ends, &d.planned)
	if d.req.wants(forecast.Link) {
		all.Add(m.OnLink(forecast.Link, &d.ends.Source, &d.ends.Target))
	}
	if d.wantsExtra(measure.ReverseLink) {
		all.Add(m.OnLink(measure.ReverseLink, &d.ends.Target, &d.ends.Source))
	}
	return nil
}

func (d *doctor) evaluate() {
	d.report.Findings = findings(d.input, d.req)
	d.report.Grants = d.grants()
	d.report.Advice = d.advise()
	if d.req.Planned && !d.paths {
		d.report.Allow = preflight.Allow(d.input)
	}
}

// findings evaluates the requested checks. The link check covers both directions, and either
// direction includes the path check.
func findings(in preflight.Input, req Request) []finding.Finding {
	return preflight.Doctor(in, func(id string) bool {
		switch id {
		case forecast.Link:
			return !req.wants(forecast.Link) && !req.wants(measure.ReverseLink)
		case preflight.PathID:
			return !req.wantsPath()
		}
		return !req.wants(id)
	})
}

// grants returns a Grant for every host whose key refused part of the checks.
func (d *doctor) grants() (all []Grant) {
	for _, e := range d.ends.All() {
		if e.Denied == "" {
			continue
		}
		// A remote host's hint starts with its name.
		_, may, _ := strings.Cut(strings.TrimPrefix(e.Grant, e.Conn.Label()+": "), ": ")
		g := Grant{Host: e.Conn.Label(), Permissions: may, Permitted: []string{}, Forbidden: []string{}}
		sort := func(id string, unseen bool) {
			list := &g.Permitted
			if unseen {
				list = &g.Forbidden
			}
			if !slices.Contains(*list, id) {
				*list = append(*list, id)
			}
		}
		for _, f := range d.report.Findings {
			if f.Host == g.Host {
				sort(f.ID, f.Unchecked)
			}
		}
		for _, c := range d.report.Ceilings {
			if c.Host == g.Host || c.Peer == g.Host {
				sort(c.ID, c.Forbidden)
			}
		}
		all = append(all, g)
	}
	return all
}

func (d *doctor) advise() *forecast.Advice {
	a := &forecast.Adviser{Findings: d.report.Findings, Ceilings: d.report.Ceilings, Expected: d.report.Expected, Machines: d.machines,
		Transport: d.req.Send.Settings, Decrypt: d.req.Send.Plan.Decrypt, Pools: map[string]string{}}
	for _, s := range d.state.Source.Datasets {
		a.Encrypted = a.Encrypted || s.Encrypted()
	}
	if len(d.planned.Datasets) > 0 {
		a.Pools[d.ends.Source.Conn.Label()] = zfs.PoolOf(d.planned.Datasets[0].Source)
		a.Pools[d.ends.Target.Conn.Label()] = zfs.PoolOf(d.planned.Datasets[0].Target)
	}
	for _, g := range d.report.Grants {
		a.Hidden = a.Hidden || slices.Contains(g.Forbidden, forecast.Link)
	}
	return a.Advice()
}

// localOnly reports whether only the local host is checked.
func (d *doctor) localOnly() bool { return !d.req.Target && !d.req.Path }

// wantsExtra reports whether a measurement that the expected rate does not need was requested.
func (d *doctor) wantsExtra(id string) bool {
	return d.req.wants(id) && (d.req.Full || slices.Contains(d.req.Only, id))
}

// wantsPath reports whether a requested check or measurement needs a network path.
func (d *Request) wantsPath() bool {
	return d.wants(preflight.PathID) || d.wants(forecast.Link) || d.wants(measure.ReverseLink)
}

func (d *Request) wants(id string) bool {
	return (len(d.Only) == 0 || slices.Contains(d.Only, id)) && !slices.Contains(d.Skip, id)
}
