// Package measure measures the parts of a transfer between two hosts.
//
//   - measurement: one run of a part: reading the source, the link, or writing on the target
//   - round: measurements that run concurrently, because they do not disturb each other
//   - ceiling: the result of a measurement (package probe)
//
// It does not judge the results: packages preflight and job/forecast do.
package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// ReverseLink is the ID of the measurement of the network path from target to source.
const ReverseLink = "link-back"

const (
	// moreStreams is the factor for the number of streams in the next measurement of a link below
	// its capacity, up to mostStreams.
	moreStreams = 4
	mostStreams = 64
	// nothingToSend is the reason to skip measurements without a transfer.
	nothingToSend = "there is nothing to send"
	// linkGrace is the time that a link measurement may take in addition.
	linkGrace = 30 * time.Second
)

// Time is the duration of each measurement of --measure.
const Time = time.Second

// Measurer measures the parts of a transfer between two hosts. If a host cannot measure, or its
// policy refuses, the ceiling holds the reason and the other measurements continue.
type Measurer struct {
	Ends     *ends.Ends
	Link     connect.Link // as the streams use it
	Time     time.Duration
	Reporter ends.Watcher

	Ceilings  []probe.Ceiling
	Links     []preflight.MeasuredLink // measurements of the link
	otherLoad map[string]float64       // CPUs busy with other work, by host
}

// idleTime is how long a host's load is sampled: at least ten ticks of the CPU time counters.
const idleTime = 150 * time.Millisecond

// sampleLoad samples the CPU load of the hosts before the measurements.
func (m *Measurer) sampleLoad(ctx context.Context) error {
	m.otherLoad = map[string]float64{}
	var busy [2]float64
	g, gctx := errgroup.WithContext(ctx)
	for i, e := range m.Ends.All() {
		g.Go(func() error {
			// A host that does not answer counts as idle.
			c, _ := hosts.Call(gctx, e.Conn, hosts.OpMeasure, probe.Request{ID: probe.Idle, Time: idleTime})
			busy[i] = c.CPU
			return gctx.Err()
		})
	}
	err := g.Wait()
	for i, e := range m.Ends.All() {
		m.otherLoad[e.Conn.Label()] = busy[i]
	}
	return err
}

// AddDatasets adds reading the source's largest stream and writing on the target.
func (m *Measurer) AddDatasets(all *Rounds, p *plan.Plan, target *zfs.Listing, wants func(id string) bool) {
	spec := LargestStep(p).Send
	read := m.OnHost(&m.Ends.Source, probe.Request{ID: probe.SourceRead, Send: &spec})
	at := ScratchParent(target)
	write := m.OnHost(&m.Ends.Target, probe.Request{ID: probe.TargetWrite, Dataset: at})
	switch {
	case p.Steps() == 0:
		read, write = m.skippedMeasurement(&m.Ends.Source, probe.SourceRead, nothingToSend), m.skippedMeasurement(&m.Ends.Target, probe.TargetWrite, nothingToSend)
	case at == "":
		write = m.skippedMeasurement(&m.Ends.Target, probe.TargetWrite, "a scratch dataset requires an unencrypted parent")
	}
	switch r, w := wants(probe.SourceRead), wants(probe.TargetWrite); {
	case r && w:
		m.AddPair(all, read, write)
	case r:
		all.Add(read)
	case w:
		all.Add(write)
	}
}

// OnHost returns a measurement of one host.
func (m *Measurer) OnHost(e *ends.End, r probe.Request) Measurement {
	return Measurement{probe.Title(r.ID) + " on " + e.Conn.Label(),
		func(ctx context.Context) (*probe.Ceiling, error) { return m.measureHost(ctx, e, r) }}
}

// skippedMeasurement returns a measurement that is only reported as skipped.
func (m *Measurer) skippedMeasurement(e *ends.End, id, why string) Measurement {
	return Measurement{probe.Title(id) + " on " + e.Conn.Label(),
		func(context.Context) (*probe.Ceiling, error) { return skipped(e, id, why), nil }}
}

// OnLink returns a measurement of the link from one host to the other.
func (m *Measurer) OnLink(id string, from, to *ends.End) Measurement {
	return Measurement{"the link from " + from.Conn.Label() + " to " + to.Conn.Label(),
		func(ctx context.Context) (*probe.Ceiling, error) { return nil, m.measureLink(ctx, id, from, to) }}
}

func (m *Measurer) measureHost(ctx context.Context, e *ends.End, r probe.Request) (*probe.Ceiling, error) {
	if !CanMeasure(m.Link.Wire, e) {
		return skipped(e, r.ID, "zxfer does not run there"), nil
	}
	r.Time = m.Time
	c, err := hosts.Call(ctx, e.Conn, hosts.OpMeasure, r)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if fault.ClassOf(err) == fault.Refused && !errors.Is(err, hosts.ErrForbidden) {
		return nil, err
	}
	if err != nil {
		c = probe.Ceiling{ID: r.ID, Title: probe.Title(r.ID), Skipped: err.Error(), Forbidden: errors.Is(err, hosts.ErrForbidden)}
	}
	c.Host = e.Conn.Label()
	return &c, nil
}

// CanMeasure reports whether zxfer runs on the host.
func CanMeasure(wire string, e *ends.End) bool {
	return e.Conn.Local() || wire != transport.NC && e.Facts.NoAgent == ""
}

func skipped(e *ends.End, id, why string) *probe.Ceiling {
	return &probe.Ceiling{ID: id, Host: e.Conn.Label(), Title: probe.Title(id), Skipped: "not measured: " + why}
}

func (m *Measurer) measureLink(ctx context.Context, id string, from, to *ends.End) error {
	link, err := m.measureStreams(ctx, m.Link, id, from, to)
	if err != nil || link == nil {
		return err
	}
	more, err := m.addStreams(ctx, id, from, to, *link)
	if err != nil {
		return err
	}
	m.Links = append(m.Links, preflight.MeasuredLink{Link: *link, MoreStreams: more, Reverse: id == ReverseLink})
	return nil
}

// addStreams repeats the measurement with more streams until the rate no longer grows. This shows
// whether something other than capacity limited the link.
func (m *Measurer) addStreams(ctx context.Context, id string, from, to *ends.End, last preflight.Link) (more []preflight.Link, err error) {
	for last.MayBeLimited() && last.Streams < mostStreams {
		c := m.Link
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
func (m *Measurer) measureStreams(ctx context.Context, choice connect.Link, id string, from, to *ends.End) (*preflight.Link, error) {
	c := probe.Ceiling{ID: id, Host: from.Conn.Label(), Peer: to.Conn.Label(),
		Title: fmt.Sprintf("link %s to %s, %s x %d", from.Conn.Label(), to.Conn.Label(), choice.Wire, choice.Streams)}
	if choice.Streams != m.Link.Streams {
		defer m.Reporter.Activity("the same with " + english.Plural(choice.Streams, "stream", ""))()
	}
	res, err := m.sendNoise(ctx, choice, from, to)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		c.Skipped, c.Forbidden = err.Error(), errors.Is(err, hosts.ErrForbidden)
	} else {
		sent, received := res.Sent.NoiseRate, res.Received.NoiseRate
		c.Seconds, c.CPU, c.PeerCPU = received.Seconds, sent.CPU, received.CPU
		if received.Seconds > 0 {
			c.BytesPerSecond = uint64(float64(received.Bytes) / received.Seconds)
		}
		c.Network, c.Limit = res.Network, res.LimitedBy
		if choice.Wire == transport.SSH {
			c.Network = nil // it describes only the connection to the local ssh process
		}
	}
	m.Ceilings = append(m.Ceilings, c)
	if err != nil && fault.ClassOf(err) != fault.Refused { // a policy's refusal says nothing about the link
		m.Links = append(m.Links, preflight.MeasuredLink{Link: preflight.Link{From: from.Conn.Label()}, Failed: err.Error()})
	}
	if err != nil || c.Network == nil {
		return nil, nil
	}
	n, peer := c.Network, res.Received.Network
	if peer == nil {
		peer = &tcp.Network{}
	}
	spare := float64(from.Facts.CPUs) - c.CPU
	if c.Limit == transfer.LimitReceiverCPU || c.Limit == transfer.LimitTarget {
		spare = float64(to.Facts.CPUs) - c.PeerCPU
	}
	return &preflight.Link{
		Spare:   spare >= 1,
		PathMTU: n.PathMTU, Interface: n.Interface, MTU: n.InterfaceMTU, PeerInterface: peer.Interface, PeerMTU: peer.InterfaceMTU,
		From: from.Conn.Label(), To: to.Conn.Label(), BytesPerSecond: c.BytesPerSecond, Streams: choice.Streams, Seconds: c.Seconds, Limit: c.Limit,
		Window: int(choice.Window), WriteMax: from.Facts.TCPWriteMax, ReadMax: to.Facts.TCPReadMax,
		RTT: n.RTT, Busy: n.BusyTime, RwndLimited: n.RwndLimited, SndbufLimited: n.SndbufLimited, Retransmits: n.Retransmits, Congestion: n.Congestion,
	}, nil
}

// sendNoise sends generated data over a link.
func (m *Measurer) sendNoise(ctx context.Context, choice connect.Link, from, to *ends.End) (connect.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, m.Time+linkGrace)
	defer cancel()
	return connect.Run(ctx, choice, connect.From{Host: from.Conn, What: hosts.Noise{Time: m.Time}}, connect.To{Host: to.Conn, What: hosts.Nowhere{}}, connect.Count{}, nil)
}

// Expected predicts the transfer rate from the measurements, nil if there are none.
func (m *Measurer) Expected(bytes uint64, bandLimit int64) *forecast.Expected {
	e := forecast.Rate(m.Ceilings, bytes, bandLimit, m.Machines())
	if e == nil {
		return nil
	}
	for _, part := range forecast.Parts() {
		measured := func(c probe.Ceiling) bool { return c.BytesPerSecond > 0 && forecast.PartOf(c) == part }
		if !slices.ContainsFunc(m.Ceilings, measured) && (part != forecast.PartLink || !m.Ends.SameHost()) {
			e.Unmeasured = append(e.Unmeasured, part)
		}
	}
	return e
}

// Machines returns the measured hosts.
func (m *Measurer) Machines() forecast.Machines {
	of := func(e *ends.End) forecast.Machine {
		return forecast.Machine{Host: e.Conn.Label(), CPUs: float64(e.Facts.CPUs), OtherLoad: m.otherLoad[e.Conn.Label()]}
	}
	return forecast.NewMachines(of(&m.Ends.Source), of(&m.Ends.Target), m.Ends.SameMachine())
}

// ScratchParent returns the closest existing ancestor of the target that can hold a scratch
// dataset, "" if there is none.
func ScratchParent(l *zfs.Listing) string {
	for i := len(l.Ancestors) - 1; i >= 0; i-- {
		if l.Ancestors[i].Type == zfs.Filesystem && l.Ancestors[i].Get("encryption") == "off" {
			return l.Ancestors[i].Name
		}
	}
	return ""
}

// LargestStep returns the step of a plan with the most bytes.
func LargestStep(p *plan.Plan) (most plan.Step) {
	for _, st := range p.Streams() {
		if st.Bytes >= most.Bytes {
			most = *st
		}
	}
	return most
}

// LargestStreamLink returns the link with the settings for the largest planned stream.
func LargestStreamLink(e *ends.Ends, p *plan.Plan) connect.Link {
	return e.Search.Link().Resolve(p.Encrypted()).ForSize(LargestStep(p).Bytes)
}

// Measurement measures one part. A link measurement stores its own ceilings and returns nil.
type Measurement struct {
	title string // for messages
	run   func(context.Context) (*probe.Ceiling, error)
}

// Run runs the measurements in order and stores the ceilings.
func (m *Measurer) Run(ctx context.Context, all Rounds) error {
	if err := m.sampleLoad(ctx); err != nil {
		return err
	}
	for i, round := range all {
		title := fmt.Sprintf("measuring %d of %d: %s", i+1, len(all), round[0].title)
		for _, other := range round[1:] {
			title += ", " + other.title
		}
		done := m.Reporter.Activity(title)
		found := make([]*probe.Ceiling, len(round))
		g, gctx := errgroup.WithContext(ctx)
		for i, one := range round {
			g.Go(func() (err error) { found[i], err = one.run(gctx); return err })
		}
		err := g.Wait()
		done()
		for _, c := range found {
			if c != nil {
				m.Ceilings = append(m.Ceilings, *c)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Rounds holds measurements in order. Those of one round run concurrently.
type Rounds [][]Measurement

// AddPair adds a measurement of each end. They run concurrently only on separate machines,
// because otherwise they would disturb each other.
func (m *Measurer) AddPair(r *Rounds, source, target Measurement) {
	if same, known := hosts.SameKernel(m.Ends.Source.Facts, m.Ends.Target.Facts); known && !same {
		*r = append(*r, []Measurement{source, target})
		return
	}
	r.Add(source, target)
}

// Add adds measurements as separate rounds.
func (r *Rounds) Add(all ...Measurement) {
	for _, one := range all {
		*r = append(*r, []Measurement{one})
	}
}
