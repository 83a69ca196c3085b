package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// The links as reports name them; each is a pair of probe.LinkSend and
// probe.LinkReceive.
const (
	linkOut  = "link"
	linkBack = "link-back"
)

// moreStreams is how many streams a link that a window limits is tried with.
const moreStreams = 4

// measure measures one thing after the other: two at once would measure each
// other.
func (d *doctor) measure(ctx context.Context) error {
	ends := []*end{d.source}
	if d.target != d.source {
		ends = append(ends, d.target)
	}
	for _, e := range ends {
		for _, id := range probe.Local() {
			if err := d.one(ctx, e, probe.Request{ID: id}); err != nil {
				return err
			}
		}
	}
	if d.target != d.source {
		if err := d.links(ctx); err != nil {
			return err
		}
	}
	if !d.req.Planned || d.sender.report.Plan.Steps() == 0 {
		return nil
	}
	spec := d.largest()
	if err := d.one(ctx, d.source, probe.Request{ID: probe.SourceRead, Send: &spec}); err != nil {
		return err
	}
	if at := writable(&d.input.TargetListing); at != "" {
		return d.one(ctx, d.target, probe.Request{ID: probe.TargetWrite, Dataset: at})
	}
	return nil
}

// writable is the existing dataset at or above the target below which a
// scratch dataset can be made, "" for none.
func writable(l *zfs.Listing) string {
	for i := len(l.Ancestors) - 1; i >= 0; i-- {
		if l.Ancestors[i].Type == zfs.Filesystem && l.Ancestors[i].Get("encryption") == "off" {
			return l.Ancestors[i].Name
		}
	}
	return ""
}

// largest is the largest planned stream.
func (d *doctor) largest() (spec zfs.SendSpec) {
	var most uint64
	for _, ds := range d.sender.report.Plan.Datasets {
		for _, st := range ds.Steps {
			if st.Bytes >= most {
				most, spec = st.Bytes, st.Send
			}
		}
	}
	return spec
}

// one makes a measurement of one host and files it. One that fails is a
// ceiling that says so: the others are worth having.
func (d *doctor) one(ctx context.Context, e *end, r probe.Request) error {
	if !d.req.wants(r.ID) {
		return nil
	}
	r.Time = d.req.Time
	d.log(fmt.Sprintf("%s: measuring %s", e.label(), probe.Title(r.ID)))
	var c probe.Ceiling
	err := e.do(ctx, func(st site.Site) (err error) { c, err = st.Measure(ctx, r); return err })
	if ctx.Err() != nil {
		return unchanged(context.Cause(ctx))
	}
	if err != nil {
		c = probe.Ceiling{ID: r.ID, Title: probe.Title(r.ID), Skipped: err.Error()}
	}
	c.Host = e.label()
	d.report.Ceilings = append(d.report.Ceilings, c)
	return nil
}

// links measures the link in both directions, and judges it.
func (d *doctor) links(ctx context.Context) error {
	choice, err := chooseLink(d.req.Send, d.source, d.target, d.sender.facts.source, d.sender.facts.target, d.source.rtt()+d.target.rtt())
	if err != nil {
		return err
	}
	for _, way := range []struct {
		id       string
		from, to *end
	}{{linkOut, d.source, d.target}, {linkBack, d.target, d.source}} {
		if !d.req.wants(way.id) {
			continue
		}
		link, err := d.link(ctx, choice, way.id, way.from, way.to)
		if err != nil {
			return err
		}
		if link == nil {
			continue
		}
		var more *preflight.Link
		if (link.Windowed() || link.Lossy()) && choice.streams < moreStreams {
			c := choice
			c.streams = moreStreams
			if more, err = d.link(ctx, c, way.id+"-streams", way.from, way.to); err != nil {
				return err
			}
		}
		f := link.Finding(more)
		if way.id == linkBack && f.Severity == preflight.Warn {
			f.Severity = preflight.Note // the transfer goes the other way
		}
		d.report.Findings = append(d.report.Findings, f)
	}
	return nil
}

// link measures one direction; nil where it could not be measured.
func (d *doctor) link(ctx context.Context, choice linkChoice, id string, from, to *end) (*preflight.Link, error) {
	d.log(fmt.Sprintf("measuring the link from %s to %s, %d streams", from.label(), to.label(), choice.streams))
	sent, received, err := d.crossing(ctx, choice, from, to)
	if ctx.Err() != nil {
		return nil, unchanged(context.Cause(ctx))
	}
	c := probe.Ceiling{
		ID: id, Host: from.label(), Title: fmt.Sprintf("link %s to %s, %s x %d", from.label(), to.label(), choice.mode(d.encrypted()), choice.streams),
		BytesPerSecond: received.BytesPerSecond, Seconds: received.Seconds, CPU: max(sent.CPU, received.CPU), Network: sent.Network,
		Limit: transfer.LimitedBy(sent.Stages, received.Stages, sent.Network),
	}
	if err != nil {
		c.Skipped = err.Error()
		d.report.Findings = append(d.report.Findings, preflight.Finding{ID: "link", Host: from.label(), Severity: preflight.Fail,
			Summary: "no data connection can be made", Evidence: err.Error(), Remedy: "open a port and name it: --port-range; or let the other end connect: --dial"})
	}
	d.report.Ceilings = append(d.report.Ceilings, c)
	if err != nil || sent.Network == nil {
		return nil, nil
	}
	n := sent.Network
	return &preflight.Link{
		From: from.label(), To: to.label(), BytesPerSecond: c.BytesPerSecond, Streams: choice.streams, Seconds: c.Seconds, Limit: c.Limit,
		RTT: n.RTT, Busy: n.BusyTime, RwndLimited: n.RwndLimited, SndbufLimited: n.SndbufLimited, Retransmits: n.Retransmits, Congestion: n.Congestion,
	}, nil
}

// encrypted tells whether the planned streams are: the wire depends on it.
func (d *doctor) encrypted() bool {
	if d.sender.report.Plan == nil {
		return false
	}
	for _, ds := range d.sender.report.Plan.Datasets {
		if ds.Encrypted {
			return true
		}
	}
	return false
}

// linkGrace is what a measurement of a link may take beyond its time.
const linkGrace = 30 * time.Second

// crossing offers a link and moves noise over it.
func (d *doctor) crossing(ctx context.Context, choice linkChoice, from, to *end) (sent, received probe.Ceiling, err error) {
	if choice.wire == wireSSH {
		return sent, received, errors.New("wire ssh is not measured")
	}
	ctx, cancel := context.WithTimeout(ctx, d.req.Time+linkGrace)
	defer cancel()
	var ticket wire.Ticket
	err = choice.listener.do(ctx, func(st site.Site) (err error) {
		ticket, err = st.Offer(ctx, choice.offer(d.encrypted()))
		return err
	})
	if err != nil {
		return sent, received, err
	}
	request := func(e *end, id string) probe.Request {
		r := probe.Request{ID: id, Time: d.req.Time}
		if e == choice.dialer {
			r.Ticket = &ticket
		} else {
			r.Offered = ticket.Session
		}
		return r
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return from.do(gctx, func(st site.Site) (err error) {
			sent, err = st.Measure(gctx, request(from, probe.LinkSend))
			return err
		})
	})
	g.Go(func() error {
		return to.do(gctx, func(st site.Site) (err error) {
			received, err = st.Measure(gctx, request(to, probe.LinkReceive))
			return err
		})
	})
	return sent, received, g.Wait()
}

// stages are the measurements that a transfer passes, and what its meters
// would name.
func stages(c probe.Ceiling) (limit string, ok bool) {
	switch c.ID {
	case linkOut:
		return c.Limit, true
	case probe.SourceRead:
		return transfer.LimitSource, true
	case probe.TargetWrite:
		return transfer.LimitTarget, true
	}
	return "", false
}

// expect foretells a transfer's rate: that of its slowest stage. Stages of
// one host also share its processors: at a rate r a stage that was measured
// at R with C processors busy takes C × r/R of them.
func expect(ceilings []probe.Ceiling, bytes uint64, cpus map[string]int) *Expected {
	var e *Expected
	cost := map[string]float64{} // processor seconds per byte, by host
	for _, c := range ceilings {
		limit, ok := stages(c)
		if !ok || c.BytesPerSecond == 0 {
			continue
		}
		cost[c.Host] += c.CPU / float64(c.BytesPerSecond)
		if e == nil || c.BytesPerSecond < e.BytesPerSecond {
			e = &Expected{BytesPerSecond: c.BytesPerSecond, LimitedBy: limit, Host: c.Host}
		}
	}
	if e == nil {
		return localExpected(ceilings)
	}
	for host, per := range cost {
		if rate := float64(cpus[host]) / per; cpus[host] > 0 && per > 0 && rate < float64(e.BytesPerSecond) {
			e.BytesPerSecond, e.LimitedBy, e.Host = uint64(rate), transfer.LimitSenderCPU, host
		}
	}
	if e.Bytes = bytes; bytes > 0 && e.BytesPerSecond > 0 {
		e.Seconds = float64(bytes) / float64(e.BytesPerSecond)
	}
	return e
}

// localExpected is what this host could move by itself at best: the loopback
// with the default wire.
func localExpected(ceilings []probe.Ceiling) *Expected {
	for _, c := range ceilings {
		if c.ID == probe.LoopbackTLS && c.BytesPerSecond > 0 {
			return &Expected{BytesPerSecond: c.BytesPerSecond, LimitedBy: c.ID, Host: c.Host}
		}
	}
	return nil
}
