package job

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
)

// end is a host of a job with what it says about itself.
type end struct {
	*hosts.Conn
	facts hosts.Facts
	// system is what its files tell; nil where that is not known.
	system *sysinfo.System
	unseen string // why, where that was asked for
	grant  string // what its restricted key may do
}

// ends are the two hosts of a job, and the link between them.
type ends struct {
	source, target end
	link           connect.Link
	links          []preflight.Measured // what was measured of it
}

func newEnds(at *hosts.Set, source, target endpoint.Endpoint, w *transport.Settings) *ends {
	return &ends{source: end{Conn: at.Get(source.Host, w)}, target: end{Conn: at.Get(target.Host, w)}}
}

// sameHost tells that both are one host.
func (e *ends) sameHost() bool { return e.source.Conn == e.target.Conn }

// all are the hosts, each once.
func (e *ends) all() []*end {
	if e.sameHost() {
		return []*end{&e.source}
	}
	return []*end{&e.source, &e.target}
}

// others are the names of the hosts that are not this one, or of this one.
func (e *ends) others() string {
	var names []string
	for _, h := range e.all() {
		if !h.Local() {
			names = append(names, h.Label())
		}
	}
	return cmp.Or(strings.Join(names, " and "), e.source.Label())
}

// reach opens both hosts at once and asks them for their facts.
func (e *ends) reach(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, h := range e.all() {
		g.Go(func() (err error) { h.facts, err = h.Facts(gctx); return })
		if h.system == nil { // what doctor captured tells more
			g.Go(func() error { h.system = h.System(gctx); return nil })
		}
	}
	if err := g.Wait(); err != nil {
		return unchanged(err)
	}
	if e.sameHost() { // which may be asked by its name meanwhile
		e.target.facts, e.target.system = e.source.facts, e.source.system
	}
	return nil
}

// choose decides how bytes are to cross; open, once for all that a job moves, which
// way they take: the one that was chosen if it passes, or else what package meet has
// instead.
func (e *ends) choose(w transport.Settings) (err error) {
	e.link, err = connect.Choose(w, connect.NewSide(e.source.Conn, e.source.facts), connect.NewSide(e.target.Conn, e.target.facts))
	return err
}

// open finds out whether the link passes. That none does is for the checks to tell.
func (e *ends) open(ctx context.Context, rep Watcher) error {
	defer rep.Activity("finding out which way data can take")()
	link, err := e.link.Open(ctx, rep.Log)
	if errors.Is(err, hosts.ErrLost) { // the host may be there again
		link, err = link.Open(ctx, rep.Log)
	}
	if errors.Is(err, hosts.ErrLost) {
		return fault.Interrupt("", err)
	}
	if err == nil {
		e.link = link
	}
	return unchanged(err)
}

func (e *ends) rtt() time.Duration { return e.source.RTT() + e.target.RTT() }

func (e *end) report(role string) HostReport {
	return HostReport{Name: e.Label(), Role: role, ZFS: e.facts.ZFS, Backend: e.facts.Backend, Version: e.facts.Version}
}

// checked is a host as the checks look at it.
func (e *end) checked() preflight.Host {
	f := e.facts
	return preflight.Host{Name: e.Label(), ZFS: f.ZFS, Kernel: f.Kernel, User: f.User, Root: f.Root, System: e.system, Unseen: e.unseen}
}

// input is what the checks of a planned transfer look at.
func (e *ends) input(state *plan.State, p *plan.Plan) preflight.Input {
	return preflight.Input{
		Source: e.source.checked(), Target: e.target.checked(),
		SourceListing: state.Source, TargetListing: state.Target, Plan: *p,
		RTT: e.rtt(), Streams: e.link.Streams, Links: e.links, Way: e.link.Search(),
	}
}

// warm lets this host's libzfs_core, which takes a while, start while the other
// is reached. One stream alone does not need it. What goes wrong the estimate
// tells. The function that it returns waits for the end of that.
func (e *ends) warm(ctx context.Context, req *Send) (done func()) {
	if !req.Plan.Recursive || !e.source.Local() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = e.source.Do(ctx, func(st hosts.Host) error {
			_, err := st.Estimate(ctx, nil)
			return err
		})
	}()
	return func() { cancel(); <-over }
}
