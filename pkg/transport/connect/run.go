package connect

import (
	"context"
	"errors"
	"slices"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// From is the end that something comes from.
type From struct {
	Host Host
	What hosts.From
}

// To is the end that it goes to.
type To struct {
	Host Host
	What hosts.To
}

// Count is how many bytes arrived in earlier tries, and are to arrive in all; a
// Total of 0 is unknown.
type Count struct{ Done, Total uint64 }

// Result is the account of both ends.
type Result struct {
	// Sent and Received are the ends' own accounts; of what never left this
	// process, all stages are those of Sent.
	Sent, Received hosts.Result
	Wire           string // Local, signed, tls, plain, ssh, nc
	Bytes          uint64 // that arrived, as far as was seen
	Elapsed        time.Duration
	Stages         []transfer.Stage // of both ends
	LimitedBy      string
}

// Rate is in bytes per second.
func (r *Result) Rate() uint64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return uint64(float64(r.Bytes) / r.Elapsed.Seconds())
}

// session is the state of one Run.
type session struct {
	link           Link
	from           From
	to             To
	bytes          uint64 // that are to cross, 0 = unknown
	monitor        *monitor
	sent, received hosts.Result
}

// Run moves what is at the one end to the other, over a link that was chosen
// for their hosts. The Result is returned, as far as it got, with an error too.
// The error is the cause, not its echo at the other end; what its class is, and
// whether it matches wire.ErrCut or site.ErrLost, tells whether another try may
// help. report may be nil; it is called about twice a second.
func Run(ctx context.Context, link Link, from From, to To, count Count, report func(Progress)) (Result, error) {
	started := time.Now()
	m := &session{link: link.Resolve(isRawEncrypted(from.What)), from: from, to: to, bytes: count.Total - min(count.Done, count.Total)}
	_, device := from.What.(hosts.ReadDevice)
	m.monitor = &monitor{count: count, device: device, started: started, report: report,
		limit: func(limit string) string { return m.link.carrier.limit(m, limit) }}
	err := m.link.carrier.run(ctx, m)
	r := Result{Sent: m.sent, Received: m.received, Wire: m.link.Wire, Bytes: uint64(m.received.Bytes), Elapsed: time.Since(started)}
	r.Stages = slices.Concat(m.sent.Stages, m.received.Stages)
	r.LimitedBy = m.monitor.limitedBy(m.sent.Progress, m.received.Progress)
	if err != nil {
		r.Bytes = m.monitor.arrived()
	}
	return r, err
}

// isRawEncrypted tells a raw stream of encrypted data.
func isRawEncrypted(from hosts.From) bool {
	s, ok := from.(hosts.SendStream)
	return ok && s.Spec.Flags.Raw
}

// account is for what one process moved: it is both ends.
func (m *session) account(res hosts.Result) {
	m.sent, m.received = res, res
	m.received.Stages = nil
}

// rootCause picks, of both ends' errors, the one that explains the other: an
// end's own failure before what it heard from its peer, before a cut.
func rootCause(send, receive error) error {
	switch {
	case send == nil:
		return receive
	case receive == nil:
		return send
	// Who listened is gone: that is why it could not be dialled.
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

// echoRank ranks errors: the higher, the more likely it only mirrors another.
func echoRank(err error) int {
	switch {
	case errors.Is(err, tcp.ErrTampered):
		return 0
	case errors.Is(err, context.Canceled):
		return 5
	case errors.Is(err, tcp.ErrCut):
		return 3
	case errors.As(err, new(*transfer.PeerError)):
		return 2
	case errors.Is(err, hosts.ErrLost):
		return 1
	}
	return 0
}
