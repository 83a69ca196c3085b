// Package connect connects two hosts and moves data between them.
//
//   - Host: the local host or a remote one. Side: a host with the facts that it reported.
//   - Link: the chosen path between two hosts: wire, listener, dialer and address.
//   - Path: one direction of connecting, or ssh. [Link.Open] searches one that works.
//   - Carrier: moves data over one kind of wire: within a host, TCP, ssh or nc.
//   - From, To: the two ends. Session: one [Run] between them.
//
// [Choose] returns the link for two hosts. [Run] moves one thing over it.
//
// The package does not plan, does not retry a transfer and does not know its purpose. Package
// tcp defines the bytes on the network.
package connect

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// From is the end that data comes from.
type From struct {
	Host Host
	What hosts.From
	// Encrypted reports that the dataset on the source is encrypted. Its raw stream needs no secrecy.
	Encrypted bool
}

// To is the end that stores it.
type To struct {
	Host Host
	What hosts.To
}

// Count holds the bytes received in earlier attempts and the total in bytes, 0 if unknown.
type Count struct{ Done, Total uint64 }

// Result is the result of both ends.
type Result struct {
	// Sent and Received are the results of the ends. For a transfer within one process, Sent
	// has all stages.
	Sent, Received hosts.Result
	Wire           string // Local, signed, tls, plain, ssh, nc
	Bytes          uint64 // received, as far as known
	Speed
	Bottleneck
}

// Speed is the duration of a transfer and its mean rate. The duration of a small stream that waited for others
// (see Link.Small) counts only the work of both hosts.
type Speed struct {
	Seconds float64 `json:"seconds"`
	Rate    uint64  `json:"bytes_per_second"`
}

// SpeedOf returns the speed of a transfer of that many bytes.
func SpeedOf(bytes uint64, seconds float64) Speed {
	s := Speed{Seconds: seconds}
	if seconds > 0 {
		s.Rate = uint64(float64(bytes) / seconds)
	}
	return s
}

// Bottleneck names what limited a transfer, and holds the measurements of its parts.
type Bottleneck struct {
	LimitedBy string            `json:"limited_by,omitempty"`
	Stages    []transfer.Stage  `json:"stages,omitempty"`  // of both ends
	Network   *transfer.Network `json:"network,omitempty"` // of the sender
}

// session is the state of one Run.
type session struct {
	link           Link
	from           From
	to             To
	bytes          uint64    // bytes to move, 0 = unknown
	through        tcp.Stack // opens the connections at the dialing host, nil = its own
	monitor        *monitor
	sent, received hosts.Result
	failed         failure
}

// failure describes why a transfer failed, for the search of its path.
type failure struct {
	unconnected bool // the path may not work: the ends did not connect, and nothing else explains that
	started     bool // an end may have started its work
}

// Run moves data between two ends over the link chosen for their hosts. On failure it also
// returns the Result so far. The error is the root cause. A retry may help if the error matches
// tcp.ErrConnectionLost or hosts.ErrLost. report may be nil; Run calls it about twice a second.
func Run(ctx context.Context, link Link, from From, to To, count Count, report func(Progress)) (Result, error) {
	r, _, err := run(ctx, link, from, to, count, report)
	return r, err
}

func run(ctx context.Context, link Link, from From, to To, count Count, report func(Progress)) (r Result, failed failure, err error) {
	started := time.Now()
	m := &session{link: link.Resolve(from.secret()), from: from, to: to, bytes: count.Total - min(count.Done, count.Total)}
	_, device := from.What.(hosts.ReadDevice)
	if device && count.Total == 0 {
		m.bytes = unknownSize
	}
	m.monitor = &monitor{count: count, device: device, started: started, report: report,
		limit: func(limit string) string { return m.link.carrier.limit(m, limit) }}
	err = m.link.carrier.run(ctx, m)
	r = Result{Sent: m.sent, Received: m.received, Wire: m.link.Wire, Bytes: uint64(m.received.Bytes)}
	if err != nil {
		r.Bytes = m.monitor.arrived()
	}
	took := time.Since(started)
	if _, ok := m.link.carrier.(controlCarrier); ok { // it also waited for other streams
		took = min(took, m.sent.Elapsed+m.received.Elapsed)
	}
	r.Speed = SpeedOf(r.Bytes, took.Seconds())
	r.Bottleneck = Bottleneck{LimitedBy: m.monitor.limitedBy(m.sent.Progress, m.received.Progress),
		Stages: slices.Concat(m.sent.Stages, m.received.Stages), Network: m.sent.Network}
	return r, m.failed, err
}

// unknownSize is the size in bytes for which the connections of standard input are planned.
const unknownSize = 4 << 40

// secret reports whether the data is a raw stream of an encrypted dataset. zfs send -w of another dataset is
// not secret.
func (f From) secret() bool {
	s, ok := f.What.(hosts.SendStream)
	return ok && s.Spec.Flags.Raw && f.Encrypted
}

// account sets both results after a transfer within one process.
func (m *session) account(res hosts.Result) {
	m.sent, m.received = res, res
	m.received.Stages = nil
}

// rootCause returns the error that explains the other: an end's own failure first, then an
// error that its peer reported, then a cut connection.
func rootCause(send, receive error) error {
	switch {
	case send == nil:
		return receive
	case receive == nil:
		return send
	// The listening host is lost, so the dial failed.
	case errors.Is(send, tcp.ErrDial) && errors.Is(receive, hosts.ErrLost):
		return receive
	case errors.Is(receive, tcp.ErrDial) && errors.Is(send, hosts.ErrLost):
		return send
	case errors.Is(receive, &zfs.Error{Kind: zfs.Unplanned}) && echoRank(send) == 0:
		return hosts.JoinCause(send, receive)
	case echoRank(receive) < echoRank(send):
		return receive
	}
	return send
}

// echoRank returns how likely an error only results from another one.
func echoRank(err error) int {
	switch {
	case errors.Is(err, tcp.ErrTampered):
		return 0
	case errors.Is(err, context.Canceled):
		return 5
	case errors.Is(err, tcp.ErrNoPeer): // the dialing end may know why
		return 4
	case errors.Is(err, tcp.ErrConnectionLost):
		return 3
	case errors.As(err, new(*transfer.PeerError)):
		return 2
	case errors.Is(err, hosts.ErrLost):
		return 1
	}
	return 0
}

// Host is the local host or a remote host. A remote host reconnects if its connection is lost.
type Host interface {
	// Local reports whether this is the local host.
	Local() bool
	// Label returns the host's name for messages.
	Label() string
	// Do calls f with the host's operations.
	Do(ctx context.Context, f func(hosts.Host) error) error
	// RTT returns the round-trip time to the host; 0 if local or unknown.
	RTT() time.Duration
	// Shell returns a stack that connects to listeners of the host through its remote shell.
	Shell() tcp.Stack
}

// Side is a host with the facts that it reported.
type Side struct {
	Host
	Facts hosts.Facts
	// Addresses are the addresses of its interfaces; nil if remote.
	Addresses []netip.Addr
}

// NewSide returns a Side for Choose.
func NewSide(h Host, f hosts.Facts) Side {
	s := Side{Host: h, Facts: f}
	if !h.Local() {
		return s
	}
	all, _ := net.InterfaceAddrs() // none if unknown
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			s.Addresses = append(s.Addresses, p.Addr().Unmap())
		}
	}
	return s
}

// hasAddress reports whether address is known to belong to this host.
func (s *Side) hasAddress(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && slices.Contains(s.Addresses, a.Unmap().WithZone(""))
}
