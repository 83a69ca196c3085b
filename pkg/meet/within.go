package meet

import (
	"context"

	"zxfer/pkg/site"
	"zxfer/pkg/wire"
)

// within is within one host: no network, no listener.
type within struct{}

func (within) choose(l *Link, _, _ Side) error {
	l.Streams, l.why = 0, "source and target are on one host"
	return nil
}

func (within) mode(*Link) wire.Mode { return "" }

func (within) limit(_ *meeting, limit string) string { return limit }

func (within) run(ctx context.Context, m *meeting) error {
	return m.from.Host.Do(ctx, site.In(func(st site.Mover) (err error) {
		res, err := st.Transfer(ctx, site.Task{From: m.from.What, To: m.to.What}, m.view.both)
		m.account(res)
		return err
	}))
}
