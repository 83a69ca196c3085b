package connect

import (
	"context"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/tcp"
)

// localCarrier is within one host: no network, no listener.
type localCarrier struct{}

func (localCarrier) choose(l *Link, _, _ Side) error {
	l.Streams, l.why = 0, "source and target are on one host"
	return nil
}

func (localCarrier) mode(*Link) tcp.Mode { return "" }

func (localCarrier) limit(_ *session, limit string) string { return limit }

func (localCarrier) run(ctx context.Context, m *session) error {
	return m.from.Host.Do(ctx, hosts.WithRole(func(st hosts.Mover) (err error) {
		res, err := st.Transfer(ctx, hosts.Task{From: m.from.What, To: m.to.What}, m.monitor.both)
		m.account(res)
		return err
	}))
}
