// Package ends holds both hosts of a job with their facts and the link between them, and the stages before the
// first change, which every verb that moves or compares data shares: reach, choose, open, prepare. It does not
// decide what a verb does.
package ends

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
)

// End is a host of a job with its facts.
type End struct {
	Conn  *hosts.Conn
	Facts hosts.Facts
	// System holds facts from system files, nil if unknown.
	System *sysinfo.System
	Denied string // why System was refused
	Grant  string // permissions of its restricted key
}

// Ends holds both hosts of a job and the search for the path between them.
type Ends struct {
	Source, Target End
	Search         *connect.Search                  // for the path of the data; nil before Choose
	Links          []preflight.MeasuredLink         // its measurements
	Activity       func(title string) (done func()) // nil = none is reported
}

// New returns the ends of a job, without any query.
func New(at *hosts.Set, source, target endpoint.Endpoint, w *transport.Settings) *Ends {
	return &Ends{Source: End{Conn: at.Get(source.Host, w)}, Target: End{Conn: at.Get(target.Host, w)}}
}

// Reach connects to both hosts concurrently and queries their facts.
func (e *Ends) Reach(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, h := range e.All() {
		g.Go(func() (err error) { h.Facts, err = h.Conn.Facts(gctx); return })
		if h.System == nil { // doctor captures more
			g.Go(func() error { h.System = h.Conn.System(gctx); return nil })
		}
	}
	if err := g.Wait(); err != nil {
		return Unchanged(err)
	}
	if e.SameHost() { // the target may have been queried in between
		e.Target.Facts, e.Target.System = e.Source.Facts, e.Source.System
	}
	return nil
}

// Choose selects the transport. The search finds the path when data is moved.
func (e *Ends) Choose(w transport.Settings, log func(string)) (err error) {
	e.Search, err = connect.NewSearch(w, connect.NewSide(e.Source.Conn, e.Source.Facts), connect.NewSide(e.Target.Conn, e.Target.Facts), log)
	return err
}

// Open tests whether a path works before the first change. If none does, the preflight checks report it.
func (e *Ends) Open(ctx context.Context, rep Watcher) error {
	defer rep.Activity("finding a network path for the data")()
	err := e.Search.Probe(ctx)
	if errors.Is(err, hosts.ErrLost) {
		return fault.Interrupt("", err)
	}
	return Unchanged(err)
}

// PathChanged reports whether the data did not take the first path, so that the checks of the path have something to say.
func (e *Ends) PathChanged() bool {
	_, found := e.link()
	return len(found.Rejected) > 0
}

// link returns the link of the search, a zero one before Choose.
func (e *Ends) link() (l connect.Link, found transport.PathSearch) {
	if e.Search == nil {
		return l, found
	}
	return e.Search.Link(), e.Search.Result()
}

// Input returns the input of the checks for a planned transfer.
func (e *Ends) Input(state *plan.State, p *plan.Plan) preflight.Input {
	link, found := e.link()
	return preflight.Input{
		Source: e.Source.Checked(), Target: e.Target.Checked(),
		SourceListing: state.Source, TargetListing: state.Target, Plan: *p,
		RTT: e.RTT(), Streams: link.Streams, Links: e.Links, Path: found,
	}
}

// DeviceFindings evaluates the checks on the hosts and the link.
func (e *Ends) DeviceFindings() []finding.Finding {
	link, found := e.link()
	return preflight.Device(preflight.Input{
		Source: preflight.Host{Name: e.Source.Conn.Label(), At: e.Source.Conn.At(), System: e.Source.System}, Target: preflight.Host{Name: e.Target.Conn.Label(), At: e.Target.Conn.At(), System: e.Target.System},
		RTT: e.RTT(), Streams: link.Streams, Links: e.Links, Path: found,
	})
}

// Checked returns the host as input of the checks.
func (e *End) Checked() preflight.Host {
	f := e.Facts
	var lacking []string
	if f.NoAgent != "" {
		lacking = hosts.Lacking()
	}
	return preflight.Host{Name: e.Conn.Label(), At: e.Conn.At(), ZFS: f.ZFS, Kernel: f.Kernel, User: f.User, Root: f.Root, System: e.System, NoAgent: f.NoAgent, Lacking: lacking, UnreadReason: e.Denied}
}

// HostReport holds the facts of one end that a plan shows.
type HostReport struct {
	Name    string `json:"name"`
	Role    string `json:"role"` // source, target
	ZFS     string `json:"zfs"`
	Backend string `json:"backend"`
	Version string `json:"version"`
}

// Report returns the facts of the host for a report.
func (e *End) Report(role string) HostReport {
	return HostReport{Name: e.Conn.Label(), Role: role, ZFS: e.Facts.ZFS, Backend: e.Facts.Backend, Version: e.Facts.Version}
}

// RTT returns the sum of the round-trip times to both hosts.
func (e *Ends) RTT() time.Duration { return e.Source.Conn.RTT() + e.Target.Conn.RTT() }

// RemoteNames joins the names of the remote hosts, or returns the local host's name if there are
// none.
func (e *Ends) RemoteNames() string {
	var names []string
	for _, h := range e.All() {
		if !h.Conn.Local() {
			names = append(names, h.Conn.Label())
		}
	}
	return cmp.Or(strings.Join(names, " and "), e.Source.Conn.Label())
}

// All returns the distinct hosts.
func (e *Ends) All() []*End {
	if e.SameHost() {
		return []*End{&e.Source}
	}
	return []*End{&e.Source, &e.Target}
}

// SameHost reports whether both ends are one connection.
func (e *Ends) SameHost() bool { return e.Source.Conn == e.Target.Conn }

// SameMachine reports whether both ends have the same pools, although the user may have given the
// host two names. It needs the facts of both hosts.
func (e *Ends) SameMachine() bool {
	same, _ := hosts.SameKernel(e.Source.Facts, e.Target.Facts)
	return e.SameHost() || same
}
