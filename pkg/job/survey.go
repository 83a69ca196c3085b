package job

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/site"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// survey lists both sides at once, one scoped listing each: of the source all
// versions, of the target the newest snapshots, which are what most plans need.
func (s *sender) survey(ctx context.Context, req plan.Request) (plan.State, error) {
	state := plan.State{SourceHost: s.source.Label(), TargetHost: s.target.Label(), SameHost: s.source == s.target}
	target, err := plan.TargetName(req.Source, req.Target)
	if err != nil {
		return state, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		state.Source, err = s.source.List(gctx, site.ListQuery{Dataset: req.Source, Recursive: req.Recursive, Versions: true})
		err = noPool(err)
		if err == nil && req.CarryProperties {
			state.Source, err = s.localProperties(gctx, state.Source)
		}
		return err
	})
	g.Go(func() (err error) {
		state.Target, err = s.target.List(gctx, site.ListQuery{Dataset: target, Recursive: req.Recursive, Newest: true})
		return noPool(err)
	})
	if err := g.Wait(); err != nil {
		return state, err
	}
	if len(state.Source.Datasets) == 0 {
		return state, fault.Refusef("list what there is: zfs list -r "+zfs.PoolOf(req.Source),
			"%s: no such dataset: %s", s.source.Label(), req.Source)
	}
	return state, s.surveyOrigins(ctx, req, &state)
}

// noPool adds a remedy to the error of a pool that is not there.
func noPool(err error) error {
	if errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return fault.Failf("list the pools there: zpool list", "%w", err)
	}
	return err
}

// resolveSource turns a mounted path into its dataset.
func (s *sender) resolveSource(ctx context.Context) error {
	if !s.req.Source.Path() || s.req.Plan.Source != s.req.Source.Name {
		return nil
	}
	var dataset string
	err := s.source.Do(ctx, func(st site.Site) (err error) {
		dataset, err = st.DatasetOf(ctx, s.req.Source.Name)
		return err
	})
	if errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return fault.Refusef("name a dataset, or a path on a mounted ZFS filesystem; zxfer dev copies devices and image files",
			"%s is not on a ZFS filesystem", s.req.Source)
	}
	if err != nil {
		return err
	}
	s.rep.Log(fmt.Sprintf("%s is dataset %s", s.req.Source, dataset))
	s.req.Plan.Source = dataset
	return nil
}

// localProperties returns a listing with the surveyed properties and all that
// were set locally, so that the planner can carry them.
func (s *sender) localProperties(ctx context.Context, l zfs.Listing) (zfs.Listing, error) {
	var names []string
	for _, d := range l.Datasets {
		names = append(names, d.Name)
	}
	m, err := s.source.Properties(ctx, names, nil)
	if err != nil {
		return l, err
	}
	own := make([]*zfs.Dataset, len(l.Datasets)) // those of a batch are others' too
	for i, d := range l.Datasets {
		c := *d
		c.Properties = maps.Clone(d.Properties)
		maps.Copy(c.Properties, m[d.Name])
		own[i] = &c
	}
	l.Datasets = own
	return l, nil
}

// surveyOrigins finds clones' origins outside the listings: their GUIDs on
// the source, and whether the target has them where this job would put them.
func (s *sender) surveyOrigins(ctx context.Context, req plan.Request, state *plan.State) error {
	source, target := plan.NeedOrigins(req, *state)
	if len(source) == 0 {
		return nil
	}
	guids := func(e *hosts.Host, names []string) (map[string]uint64, error) {
		m, err := e.Properties(ctx, names, []string{"guid"})
		if err != nil {
			return nil, err
		}
		out := make(map[string]uint64, len(m))
		for name, props := range m {
			if out[name], err = zfs.ParseGUID(props["guid"].Value); err != nil {
				return nil, fmt.Errorf("%s: guid of %s: %w", e.Label(), name, err)
			}
		}
		return out, nil
	}
	var err error
	if state.SourceOrigins, err = guids(s.source, source); err != nil {
		return err
	}
	state.TargetOrigins, err = guids(s.target, target)
	return err
}

// pretendSnapshot adds the snapshot that --snapshot is about to take, so that
// the plan is complete before anything is changed.
func pretendSnapshot(l *zfs.Listing, name string) {
	for i, d := range l.Datasets {
		v := zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: ^uint64(i), CreateTXG: 1}
		for _, have := range d.Versions {
			v.CreateTXG = max(v.CreateTXG, have.CreateTXG+1)
		}
		d.Versions = append(d.Versions, v)
	}
}

// implausible is more than any stream has: 2^60 bytes.
const implausible = 1 << 60

// estimate asks the source for the size of every stream. With each, one whose
// snapshots are gone by now stays unknown, and does not keep the others.
func (s *sender) estimate(ctx context.Context, p *plan.Plan, each bool) error {
	var specs []zfs.SendSpec
	var steps []*plan.Step
	for _, d := range p.Datasets {
		for i := range d.Steps {
			specs = append(specs, d.Steps[i].Send)
			steps = append(steps, &d.Steps[i])
		}
	}
	if len(specs) == 0 {
		return nil
	}
	sizes, err := s.sizes(ctx, specs, each)
	if err != nil {
		return fmt.Errorf("estimate: %w", err)
	}
	for i, st := range steps {
		// ZFS may answer with a difference that went below zero
		// (openzfs#16691): such a size is unknown.
		if st.Bytes = sizes[i]; st.Bytes > implausible {
			st.Bytes = 0
		}
	}
	return nil
}

// sizes finds what cannot be estimated by halves.
func (s *sender) sizes(ctx context.Context, specs []zfs.SendSpec, each bool) (sizes []uint64, err error) {
	err = s.source.Do(ctx, func(st site.Site) (err error) {
		sizes, err = st.Estimate(ctx, specs)
		return err
	})
	if err == nil || !each || !vanished(err) {
		return sizes, err
	}
	if len(specs) == 1 {
		return []uint64{0}, nil // its stream will say why
	}
	half := len(specs) / 2
	a, err := s.sizes(ctx, specs[:half], each)
	if err != nil {
		return nil, err
	}
	b, err := s.sizes(ctx, specs[half:], each)
	return append(a, b...), err
}

// vanished tells whether a failure may be that a dataset, a snapshot or a base
// was destroyed or renamed since the survey.
func vanished(err error) bool {
	for _, kind := range []zfs.Kind{zfs.NotFound, zfs.NoBase, zfs.BadToken} {
		if errors.Is(err, &zfs.Error{Kind: kind}) {
			return true
		}
	}
	return false
}

func (s *sender) preflightInput(p *plan.Plan) preflight.Input {
	host := func(e *hosts.Host, f site.Facts, system *sysinfo.System) preflight.Host {
		return preflight.Host{Name: e.Label(), ZFS: f.ZFS, Kernel: f.Kernel, User: f.User, Root: f.Root, System: system}
	}
	return preflight.Input{
		Source: host(s.source, s.facts.source, s.systems.source), Target: host(s.target, s.facts.target, s.systems.target),
		SourceListing: s.state.Source, TargetListing: s.state.Target, Plan: *p,
		RTT: s.source.RTT() + s.target.RTT(), Streams: s.link.Streams, Links: s.links,
	}
}

// askedHolds bounds how many snapshots are asked for their holds.
const askedHolds = 2000

// holds returns the tags of the holds on the source's snapshots, of many the
// oldest; nil where they cannot be read.
func (s *sender) holds(ctx context.Context) map[string][]string {
	var names []string
	for _, d := range s.state.Source.Datasets {
		for _, v := range d.Snapshots() {
			names = append(names, v.In(d.Name))
		}
	}
	tags, err := s.source.Holds(ctx, names[:min(len(names), askedHolds)])
	if err != nil {
		s.rep.Log(fmt.Sprintf("%s: holds: %v", s.source.Label(), err))
		return nil
	}
	return tags
}

// commands are the zfs command lines that would do the same by hand.
func commands(p *plan.Plan) []string {
	var out []string
	for _, d := range p.Datasets {
		if d.Discard != "" {
			out = append(out, zfs.CommandLine([]string{"zfs", "receive", "-A", d.Target}))
		}
		for _, name := range d.Clears {
			out = append(out, zfs.CommandLine([]string{"zfs", "destroy", name}))
		}
		for _, st := range d.Steps {
			send, err := zfs.SendArgs(st.Send)
			if err != nil {
				continue // a spec that the planner made is legal; nothing to show otherwise
			}
			receive, err := zfs.ReceiveArgs(st.Receive)
			if err != nil {
				continue
			}
			out = append(out, zfs.CommandLine(append([]string{"zfs"}, send...))+" | "+
				zfs.CommandLine(append([]string{"zfs"}, receive...)))
		}
	}
	return out
}
