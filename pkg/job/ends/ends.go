// Package ends holds both hosts of a job with their facts and the link between them, and the stages before the
// first change, which every verb that moves or compares data shares: reach, choose, open, prepare. It does not
// decide what a verb does.
package ends

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
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/retry"
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

// Ends holds both hosts of a job and the link between them.
type Ends struct {
	Source, Target End
	Chosen         connect.Link // before any search for a path
	Link           connect.Link
	Links          []preflight.MeasuredLink         // its measurements
	Activity       func(title string) (done func()) // nil = none is reported

	Opening sync.Mutex // guards Link and Opened while streams move
	Opened  bool       // the search for a path has ended
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

// Choose selects the transport; Open then selects the network path.
func (e *Ends) Choose(w transport.Settings) (err error) {
	e.Chosen, err = connect.Choose(w, connect.NewSide(e.Source.Conn, e.Source.Facts), connect.NewSide(e.Target.Conn, e.Target.Facts))
	e.Link = e.Chosen
	return err
}

// Open tests whether the link works and otherwise selects a fallback. If no path works, the
// preflight checks report it.
func (e *Ends) Open(ctx context.Context, rep Watcher) error {
	e.Opening.Lock()
	defer e.Opening.Unlock()
	return e.SearchPath(ctx, rep)
}

// SearchPath is Open with the lock held.
func (e *Ends) SearchPath(ctx context.Context, rep Watcher) error {
	defer rep.Activity("finding a network path for the data")()
	link := e.Link
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
		e.Link, e.Opened = link, true
	}
	return Unchanged(err)
}

// Release closes the connections that the path search kept and no stream used.
func (e *Ends) Release() { e.Link.Release() }

// Input returns the input of the checks for a planned transfer.
func (e *Ends) Input(state *plan.State, p *plan.Plan) preflight.Input {
	return preflight.Input{
		Source: e.Source.Checked(), Target: e.Target.Checked(),
		SourceListing: state.Source, TargetListing: state.Target, Plan: *p,
		RTT: e.RTT(), Streams: e.Link.Streams, Links: e.Links, Path: e.Link.Search(),
	}
}

// DeviceFindings evaluates the checks on the hosts and the link.
func (e *Ends) DeviceFindings() []finding.Finding {
	return preflight.Device(preflight.Input{
		Source: preflight.Host{Name: e.Source.Conn.Label(), At: e.Source.Conn.At(), System: e.Source.System}, Target: preflight.Host{Name: e.Target.Conn.Label(), At: e.Target.Conn.At(), System: e.Target.System},
		RTT: e.RTT(), Streams: e.Link.Streams, Links: e.Links, Path: e.Link.Search(),
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
