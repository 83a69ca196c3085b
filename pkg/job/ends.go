package job

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/measure"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/retry"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
)

// end is a host of a job with its facts.
type end struct {
	*hosts.Conn
	facts hosts.Facts
	// system holds facts from system files, nil if unknown.
	system *sysinfo.System
	denied string // why system was refused
	grant  string // permissions of its restricted key
}

// ends holds both hosts of a job and the link between them.
type ends struct {
	source, target end
	chosen         connect.Link // before any search for a path
	link           connect.Link
	links          []preflight.MeasuredLink         // its measurements
	activity       func(title string) (done func()) // nil = none is reported

	opening sync.Mutex // guards link and opened while streams move
	opened  bool       // the search for a path has ended
}

func newEnds(at *hosts.Set, source, target endpoint.Endpoint, w *transport.Settings) *ends {
	return &ends{source: end{Conn: at.Get(source.Host, w)}, target: end{Conn: at.Get(target.Host, w)}}
}

// reach connects to both hosts concurrently and queries their facts.
func (e *ends) reach(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, h := range e.all() {
		g.Go(func() (err error) { h.facts, err = h.Facts(gctx); return })
		if h.system == nil { // doctor captures more
			g.Go(func() error { h.system = h.System(gctx); return nil })
		}
	}
	if err := g.Wait(); err != nil {
		return unchanged(err)
	}
	if e.sameHost() { // the target may have been queried in between
		e.target.facts, e.target.system = e.source.facts, e.source.system
	}
	return nil
}

// choose selects the transport; open then selects the network path.
func (e *ends) choose(w transport.Settings) (err error) {
	e.chosen, err = connect.Choose(w, connect.NewSide(e.source.Conn, e.source.facts), connect.NewSide(e.target.Conn, e.target.facts))
	e.link = e.chosen
	return err
}

// open tests whether the link works and otherwise selects a fallback. If no path works, the
// preflight checks report it.
func (e *ends) open(ctx context.Context, rep Watcher) error {
	e.opening.Lock()
	defer e.opening.Unlock()
	return e.searchPath(ctx, rep)
}

// searchPath is open with the lock held.
func (e *ends) searchPath(ctx context.Context, rep Watcher) error {
	defer rep.Activity("finding a network path for the data")()
	link := e.link
	twice := retry.Loop{
		Try: func(ctx context.Context, _ int) (err error) { link, err = link.Open(ctx, rep.Log); return err },
		// The host may be reachable again.
		Retryable: func(err, _ error) bool { return errors.Is(err, hosts.ErrLost) },
		Pause:     retry.Once(0),
	}
	err := twice.Run(ctx)
	if errors.Is(err, hosts.ErrLost) {
		return fault.Interrupt("", err)
	}
	if err == nil {
		e.link, e.opened = link, true
	}
	return unchanged(err)
}

// release closes the connections that the path search kept and no stream used.
func (e *ends) release() { e.link.Release() }

// input returns the input of the checks for a planned transfer.
func (e *ends) input(state *plan.State, p *plan.Plan) preflight.Input {
	return preflight.Input{
		Source: e.source.checked(), Target: e.target.checked(),
		SourceListing: state.Source, TargetListing: state.Target, Plan: *p,
		RTT: e.rtt(), Streams: e.link.Streams, Links: e.links, Path: e.link.Search(),
	}
}

// deviceFindings evaluates the checks on the hosts and the link.
func (e *ends) deviceFindings() []finding.Finding {
	return preflight.Device(preflight.Input{
		Source: preflight.Host{Name: e.source.Label(), At: e.source.At(), System: e.source.system}, Target: preflight.Host{Name: e.target.Label(), At: e.target.At(), System: e.target.system},
		RTT: e.rtt(), Streams: e.link.Streams, Links: e.links, Path: e.link.Search(),
	})
}

func (e *end) checked() preflight.Host {
	f := e.facts
	var lacking []string
	if f.NoAgent != "" {
		lacking = hosts.Lacking()
	}
	return preflight.Host{Name: e.Label(), At: e.At(), ZFS: f.ZFS, Kernel: f.Kernel, User: f.User, Root: f.Root, System: e.system, NoAgent: f.NoAgent, Lacking: lacking, UnreadReason: e.denied}
}

// HostReport holds the facts of one end that a plan shows.
type HostReport struct {
	Name    string `json:"name"`
	Role    string `json:"role"` // source, target
	ZFS     string `json:"zfs"`
	Backend string `json:"backend"`
	Version string `json:"version"`
}

func (e *end) report(role string) HostReport {
	return HostReport{Name: e.Label(), Role: role, ZFS: e.facts.ZFS, Backend: e.facts.Backend, Version: e.facts.Version}
}

func (e *ends) rtt() time.Duration { return e.source.RTT() + e.target.RTT() }

// remoteNames joins the names of the remote hosts, or returns the local host's name if there are
// none.
func (e *ends) remoteNames() string {
	var names []string
	for _, h := range e.all() {
		if !h.Local() {
			names = append(names, h.Label())
		}
	}
	return cmp.Or(strings.Join(names, " and "), e.source.Label())
}

// all returns the distinct hosts.
func (e *ends) all() []*end {
	if e.sameHost() {
		return []*end{&e.source}
	}
	return []*end{&e.source, &e.target}
}

func (e *ends) sameHost() bool { return e.source.Conn == e.target.Conn }

// sameMachine reports whether both ends have the same pools, although the user may have given the
// host two names. It needs the facts of both hosts.
func (e *ends) sameMachine() bool {
	same, _ := hosts.SameKernel(e.source.facts, e.target.facts)
	return e.sameHost() || same
}

// measureTime is the duration of each measurement of --measure.
const measureTime = time.Second

// measurer returns a measurer of the parts of a transfer. link is as the streams use it.
func (e *ends) measurer(link connect.Link, duration time.Duration, activity func(string) func()) *measure.Measurer {
	return &measure.Measurer{Source: measure.Host{Conn: e.source.Conn, Facts: e.source.facts}, Target: measure.Host{Conn: e.target.Conn, Facts: e.target.facts},
		Link: link, Time: duration, Activity: activity}
}

// largestStreamLink returns the link with the settings for the largest planned stream.
func (e *ends) largestStreamLink(p *plan.Plan) connect.Link {
	return e.link.Resolve(p.Encrypted()).ForSize(measure.LargestStep(p).Bytes)
}
