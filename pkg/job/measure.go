package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// The links as reports name them.
const (
	linkOut  = "link"
	linkBack = "link-back"
)

const (
	// moreStreams is how many times the streams are tried next on a link that
	// something else than its rate seems to hold back, up to mostStreams.
	moreStreams = 4
	mostStreams = 64
	// measureTime is how long --measure takes for each part.
	measureTime = time.Second
	// nothingToSend is why the ends of a transfer that has none are not measured.
	nothingToSend = "there is nothing to send"
	// linkGrace is what a measurement of a link may take beyond its time.
	linkGrace = 30 * time.Second
)

// measurer measures what a transfer between two ends passes. What the host
// cannot measure, or its policy refuses, is a ceiling that says so: the others
// are worth having.
type measurer struct {
	*ends
	link connect.Link // as the streams cross it
	time time.Duration
	// doing is told what is measured, as Reporter.Doing.
	doing func(what string) (done func())

	ceilings []probe.Ceiling
	others   map[string]float64 // processors that are busy with something else, by host
}

// idleTime is how long a host is watched before it is measured: ten or more
// of the ticks that processors' times are counted in.
const idleTime = 150 * time.Millisecond

// idle finds out what the hosts are busy with besides.
func (m *measurer) idle(ctx context.Context) error {
	m.others = map[string]float64{}
	var busy [2]float64
	g, gctx := errgroup.WithContext(ctx)
	for i, e := range m.all() {
		g.Go(func() error {
			// Of a host that does not say nothing else is known to run.
			_ = e.Do(gctx, hosts.WithRole(func(st hosts.Measurer) error {
				c, err := st.Measure(gctx, probe.Request{ID: probe.Idle, Time: idleTime})
				busy[i] = c.CPU
				return err
			}))
			return gctx.Err()
		})
	}
	err := g.Wait()
	for i, e := range m.all() {
		m.others[e.Label()] = busy[i]
	}
	return unchanged(err)
}

// measures tells a host that zxfer runs on.
func measures(wire string, e *end) bool { return wire != transport.NC || e.Local() }

// one makes a measurement of one host.
func (m *measurer) one(ctx context.Context, e *end, r probe.Request) (*probe.Ceiling, error) {
	if !measures(m.link.Wire, e) {
		return e.skipped(r.ID, "no zxfer runs there"), nil
	}
	r.Time = m.time
	var c probe.Ceiling
	err := e.Do(ctx, hosts.WithRole(func(st hosts.Measurer) (err error) { c, err = st.Measure(ctx, r); return err }))
	if ctx.Err() != nil {
		return nil, unchanged(context.Cause(ctx))
	}
	if fault.ClassOf(err) == fault.Refused && !errors.Is(err, hosts.ErrForbidden) {
		return nil, err
	}
	if err != nil {
		c = probe.Ceiling{ID: r.ID, Title: probe.Title(r.ID), Skipped: err.Error()}
	}
	c.Host = e.Label()
	return &c, nil
}

// skipped is a measurement that is not made.
func (e *end) skipped(id, why string) *probe.Ceiling {
	return &probe.Ceiling{ID: id, Host: e.Label(), Title: probe.Title(id), Skipped: "not measured: " + why}
}

// crossing measures the link in one direction.
func (m *measurer) crossing(ctx context.Context, id string, from, to *end) error {
	link, err := m.try(ctx, m.link, id, from, to)
	if err != nil || link == nil {
		return err
	}
	more, err := m.more(ctx, id, from, to, *link)
	if err != nil {
		return err
	}
	m.links = append(m.links, preflight.Measured{Link: *link, More: more, Back: id == linkBack})
	return nil
}

// more measures with more and more streams a link that is held back, until the
// path is full: it shows whether anything was, and what the path carries.
func (m *measurer) more(ctx context.Context, id string, from, to *end, last preflight.Link) (more []preflight.Link, err error) {
	for last.HeldBack() && last.Streams < mostStreams {
		c := m.link
		c.Streams = min(last.Streams*moreStreams, mostStreams)
		next, err := m.try(ctx, c, id+"-streams", from, to)
		if err != nil || next == nil {
			return more, err
		}
		more = append(more, *next)
		if !next.Grew(last) {
			break
		}
		last = *next
	}
	return more, nil
}

// try measures one direction; nil where it could not be measured.
func (m *measurer) try(ctx context.Context, choice connect.Link, id string, from, to *end) (*preflight.Link, error) {
	c := probe.Ceiling{ID: id, Host: from.Label(), Peer: to.Label(),
		Title: fmt.Sprintf("link %s to %s, %s x %d", from.Label(), to.Label(), choice.Wire, choice.Streams)}
	if choice.Streams != m.link.Streams {
		defer m.doing("the same with " + english.Plural(choice.Streams, "stream", ""))()
	}
	res, err := m.cross(ctx, choice, from, to)
	if ctx.Err() != nil {
		return nil, unchanged(context.Cause(ctx))
	}
	if err != nil {
		c.Skipped = err.Error()
	} else {
		sent, received := res.Sent.Pace, res.Received.Pace
		c.Seconds, c.CPU, c.PeerCPU = received.Seconds, sent.CPU, received.CPU
		if received.Seconds > 0 {
			c.BytesPerSecond = uint64(float64(received.Bytes) / received.Seconds)
		}
		c.Network, c.Limit = res.Sent.Network, res.LimitedBy
		if choice.Wire == transport.SSH {
			c.Network = nil // of the way to ssh on one host, or from it on the other
		}
	}
	m.ceilings = append(m.ceilings, c)
	if err != nil && fault.ClassOf(err) != fault.Refused { // a policy's refusal says nothing of the link
		m.links = append(m.links, preflight.Measured{Link: preflight.Link{From: from.Label()}, Failed: err.Error()})
	}
	if err != nil || c.Network == nil {
		return nil, nil
	}
	n, peer := c.Network, res.Received.Network
	if peer == nil {
		peer = &tcp.Network{}
	}
	spare := float64(from.facts.CPUs) - c.CPU
	if c.Limit == transfer.LimitReceiverCPU || c.Limit == transfer.LimitTarget {
		spare = float64(to.facts.CPUs) - c.PeerCPU
	}
	return &preflight.Link{
		Spare:   spare >= 1,
		PathMTU: n.PathMTU, Interface: n.Interface, MTU: n.InterfaceMTU, PeerInterface: peer.Interface, PeerMTU: peer.InterfaceMTU,
		From: from.Label(), To: to.Label(), BytesPerSecond: c.BytesPerSecond, Streams: choice.Streams, Seconds: c.Seconds, Limit: c.Limit,
		Window: int(choice.Window), WriteMax: from.facts.TCPWriteMax, ReadMax: to.facts.TCPReadMax,
		RTT: n.RTT, Busy: n.BusyTime, RwndLimited: n.RwndLimited, SndbufLimited: n.SndbufLimited, Retransmits: n.Retransmits, Congestion: n.Congestion,
	}, nil
}

// cross moves noise over a link.
func (m *measurer) cross(ctx context.Context, choice connect.Link, from, to *end) (connect.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, m.time+linkGrace)
	defer cancel()
	return connect.Run(ctx, choice, connect.From{Host: from.Conn, What: hosts.Noise{Time: m.time}}, connect.To{Host: to.Conn, What: hosts.Nowhere{}}, connect.Count{}, nil)
}

// measure measures what a planned stream passes: the link, the source's zfs
// send, and the target's writing. The source is left out where its snapshot is
// yet to be taken.
func (t *sendJob) measure(ctx context.Context, taken bool) error {
	p := t.report.Plan
	m := &measurer{ends: t.ends, link: crossed(t.ends, p), time: measureTime, doing: t.rep.Activity}
	if err := m.idle(ctx); err != nil {
		return err
	}
	var all rounds
	if !t.sameHost() {
		all.add(m.crosses(linkOut, &t.source, &t.target))
	}
	m.datasets(&all, p, &t.state.Target, func(id string) bool { return taken || id != probe.SourceRead })
	err := m.run(ctx, all)
	t.report.Ceilings = m.ceilings
	t.judge()
	t.report.Expected = m.expect(p.Bytes(), streamOptions(&t.req).BandLimit)
	return err
}

// crossed is the link as the largest of planned streams crosses it.
func crossed(e *ends, p *plan.Plan) connect.Link {
	return e.link.Resolve(p.Encrypted()).ForSize(largest(p).Bytes)
}

// datasets adds the source's largest stream and the target's writing.
func (m *measurer) datasets(all *rounds, p *plan.Plan, target *zfs.Listing, wants func(id string) bool) {
	spec := largest(p).Send
	read := m.of(&m.source, probe.Request{ID: probe.SourceRead, Send: &spec})
	at := writable(target)
	write := m.of(&m.target, probe.Request{ID: probe.TargetWrite, Dataset: at})
	switch {
	case p.Steps() == 0:
		read, write = m.skips(&m.source, probe.SourceRead, nothingToSend), m.skips(&m.target, probe.TargetWrite, nothingToSend)
	case at == "":
		write = m.skips(&m.target, probe.TargetWrite, "a scratch dataset needs one that is not encrypted above it")
	}
	switch r, w := wants(probe.SourceRead), wants(probe.TargetWrite); {
	case r && w:
		m.both(all, read, write)
	case r:
		all.add(read)
	case w:
		all.add(write)
	}
}
