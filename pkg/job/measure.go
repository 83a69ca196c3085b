package job

import (
	"context"
	"errors"
	"fmt"
	"path"
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

// The IDs of the link measurements.
const (
	linkOut  = "link"
	linkBack = "link-back"
)

const (
	// moreStreams is the factor for the number of streams in the next measurement of a link below
	// its capacity, up to mostStreams.
	moreStreams = 4
	mostStreams = 64
	// measureTime is the duration of each measurement of --measure.
	measureTime = time.Second
	// nothingToSend is the reason to skip measurements without a transfer.
	nothingToSend = "there is nothing to send"
	// linkGrace is the time that a link measurement may take in addition.
	linkGrace = 30 * time.Second
)

// measure measures the parts of a planned transfer: the link, zfs send on the source, and writing
// on the target. The source is skipped if its snapshot is not taken yet.
func (t *sendJob) measure(ctx context.Context, taken bool) error {
	p := t.report.Plan
	m := &measurer{ends: t.ends, link: largestStreamLink(t.ends, p), time: measureTime, activity: t.rep.Activity}
	if err := m.measureOtherLoad(ctx); err != nil {
		return err
	}
	var all rounds
	if !t.sameHost() {
		all.add(m.linkMeasurement(linkOut, &t.source, &t.target))
	}
	m.addDatasets(&all, p, &t.state.Target, func(id string) bool { return taken || id != probe.SourceRead })
	err := m.run(ctx, all)
	t.report.Ceilings = m.ceilings
	t.evaluate()
	t.report.Expected = m.expectedRate(p.Bytes(), streamOptions(&t.req).BandLimit)
	return err
}

// measure measures the parts of a device copy: the link, reading the source, and writing next to
// an image file. It does not write to block devices.
func (d *deviceJob) measure(ctx context.Context) error {
	m := &measurer{ends: d.ends, link: d.link.Resolve(false), time: measureTime, activity: d.rep.Activity}
	if err := m.measureOtherLoad(ctx); err != nil {
		return err
	}
	var all rounds
	if !d.sameHost() {
		all.add(m.linkMeasurement(linkOut, &d.source, &d.target))
	}
	if !isStandard(d.req.Source) {
		all.add(m.hostMeasurement(&d.source, probe.Request{ID: probe.PathRead, Dataset: d.task.Source.Path}))
	}
	if !isStandard(d.req.Target) && d.task.Target.IsFile() {
		all.add(m.hostMeasurement(&d.target, probe.Request{ID: probe.PathWrite, Dataset: path.Dir(d.task.Target.Path)}))
	}
	if err := m.run(ctx, all); err != nil {
		return err
	}
	d.report.Ceilings, d.report.Findings = m.ceilings, d.findings()
	d.report.Expected = m.expectedRate(d.report.Size, d.task.Options.BandLimit)
	return nil
}

// largestStreamLink returns the link with the settings for the largest planned stream.
func largestStreamLink(e *ends, p *plan.Plan) connect.Link {
	return e.link.Resolve(p.Encrypted()).ForSize(largestStep(p).Bytes)
}

// measurer measures the parts of a transfer between two ends. If a host cannot measure, or its
// policy refuses, the ceiling holds the reason and the other measurements continue.
type measurer struct {
	*ends
	link connect.Link // as the streams use it
	time time.Duration
	// activity reports the current measurement, like Watcher.Activity.
	activity func(title string) (done func())

	ceilings  []probe.Ceiling
	otherLoad map[string]float64 // CPUs busy with other work, by host
}

// idleTime is how long a host's load is sampled: at least ten ticks of the CPU time counters.
const idleTime = 150 * time.Millisecond

// measureOtherLoad samples the CPU load of the hosts before the measurements.
func (m *measurer) measureOtherLoad(ctx context.Context) error {
	m.otherLoad = map[string]float64{}
	var busy [2]float64
	g, gctx := errgroup.WithContext(ctx)
	for i, e := range m.all() {
		g.Go(func() error {
			// A host that does not answer counts as idle.
			c, _ := hosts.Call(gctx, e.Conn, hosts.OpMeasure, probe.Request{ID: probe.Idle, Time: idleTime})
			busy[i] = c.CPU
			return gctx.Err()
		})
	}
	err := g.Wait()
	for i, e := range m.all() {
		m.otherLoad[e.Label()] = busy[i]
	}
	return unchanged(err)
}

// addDatasets adds reading the source's largest stream and writing on the target.
func (m *measurer) addDatasets(all *rounds, p *plan.Plan, target *zfs.Listing, wants func(id string) bool) {
	spec := largestStep(p).Send
	read := m.hostMeasurement(&m.source, probe.Request{ID: probe.SourceRead, Send: &spec})
	at := scratchParent(target)
	write := m.hostMeasurement(&m.target, probe.Request{ID: probe.TargetWrite, Dataset: at})
	switch {
	case p.Steps() == 0:
		read, write = m.skippedMeasurement(&m.source, probe.SourceRead, nothingToSend), m.skippedMeasurement(&m.target, probe.TargetWrite, nothingToSend)
	case at == "":
		write = m.skippedMeasurement(&m.target, probe.TargetWrite, "a scratch dataset needs one that is not encrypted above it")
	}
	switch r, w := wants(probe.SourceRead), wants(probe.TargetWrite); {
	case r && w:
		m.addPair(all, read, write)
	case r:
		all.add(read)
	case w:
		all.add(write)
	}
}

func (m *measurer) measureHost(ctx context.Context, e *end, r probe.Request) (*probe.Ceiling, error) {
	if !canMeasure(m.link.Wire, e) {
		return e.skipped(r.ID, "no zxfer runs there"), nil
	}
	r.Time = m.time
	c, err := hosts.Call(ctx, e.Conn, hosts.OpMeasure, r)
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

// canMeasure reports whether zxfer runs on the host.
func canMeasure(wire string, e *end) bool { return wire != transport.NC || e.Local() }

func (e *end) skipped(id, why string) *probe.Ceiling {
	return &probe.Ceiling{ID: id, Host: e.Label(), Title: probe.Title(id), Skipped: "not measured: " + why}
}

func (m *measurer) measureLink(ctx context.Context, id string, from, to *end) error {
	link, err := m.measureStreams(ctx, m.link, id, from, to)
	if err != nil || link == nil {
		return err
	}
	more, err := m.addStreams(ctx, id, from, to, *link)
	if err != nil {
		return err
	}
	m.links = append(m.links, preflight.Measured{Link: *link, More: more, Back: id == linkBack})
	return nil
}

// addStreams repeats the measurement with more streams until the rate no longer grows. This shows
// whether something other than capacity limited the link.
func (m *measurer) addStreams(ctx context.Context, id string, from, to *end, last preflight.Link) (more []preflight.Link, err error) {
	for last.MayBeLimited() && last.Streams < mostStreams {
		c := m.link
		c.Streams = min(last.Streams*moreStreams, mostStreams)
		next, err := m.measureStreams(ctx, c, id+"-streams", from, to)
		if err != nil || next == nil {
			return more, err
		}
		more = append(more, *next)
		if !next.ScaledFrom(last) {
			break
		}
		last = *next
	}
	return more, nil
}

// measureStreams measures one direction. It returns nil if that failed.
func (m *measurer) measureStreams(ctx context.Context, choice connect.Link, id string, from, to *end) (*preflight.Link, error) {
	c := probe.Ceiling{ID: id, Host: from.Label(), Peer: to.Label(),
		Title: fmt.Sprintf("link %s to %s, %s x %d", from.Label(), to.Label(), choice.Wire, choice.Streams)}
	if choice.Streams != m.link.Streams {
		defer m.activity("the same with " + english.Plural(choice.Streams, "stream", ""))()
	}
	res, err := m.sendNoise(ctx, choice, from, to)
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
			c.Network = nil // it describes only the connection to the local ssh process
		}
	}
	m.ceilings = append(m.ceilings, c)
	if err != nil && fault.ClassOf(err) != fault.Refused { // a policy's refusal says nothing about the link
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

// sendNoise sends generated data over a link.
func (m *measurer) sendNoise(ctx context.Context, choice connect.Link, from, to *end) (connect.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, m.time+linkGrace)
	defer cancel()
	return connect.Run(ctx, choice, connect.From{Host: from.Conn, What: hosts.Noise{Time: m.time}}, connect.To{Host: to.Conn, What: hosts.Nowhere{}}, connect.Count{}, nil)
}
