package connect

import (
	"context"
	"strings"
	"sync/atomic"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// sshCarrier moves data through the ssh connection. The local host dials a relay on its
// loopback, which leads to the remote loopback.
type sshCarrier struct{}

func (sshCarrier) choose(l *Link, source, target Side) error {
	listener, dialer := l.chooseDialer(source, target)
	l.chooseStreams(listener, dialer)
	l.why = "slower: all data passes ssh's own cipher, on one processor at each end (zxfer doctor tells the rate)"
	l.address = "127.0.0.1"
	return nil
}

// mode returns signed. ssh encrypts the bytes; the tags bind them to this job.
func (sshCarrier) mode(*Link) tcp.Mode { return tcp.Signed }

// LimitShell replaces a network bottleneck for transfers through ssh, because meters cannot
// distinguish the two.
const LimitShell = "ssh or network"

func (sshCarrier) limit(_ *session, limit string) string {
	if strings.HasPrefix(limit, transfer.LimitNetwork) {
		return LimitShell
	}
	return limit
}

func (sshCarrier) run(ctx context.Context, m *session) error {
	ticket, err := m.offer(ctx)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var refusal atomic.Pointer[error]
	refused := func(err error) { refusal.Store(&err); stop(err) }
	if ticket.Address, err = m.link.listener.Relay(ctx, ticket.Address, refused); err != nil {
		return err
	}
	err = m.runBothEnds(ctx, ticket)
	if why := refusal.Load(); err != nil && why != nil {
		return *why
	}
	return err
}
