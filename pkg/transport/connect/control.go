package connect

import (
	"context"
	"slices"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
)

// smallSize is the largest estimate in bytes of a small stream.
const smallSize = 96 << 10

// MaxSmall is the number of small streams that can be on their way to or from a host.
const MaxSmall = mux.MaxOpened

// Small returns the link for a small stream of about that many bytes, 0 = unknown. It moves the stream in the control
// connection, and needs no path. It returns false if the stream is not small or takes longer than a second at the
// bandwidth limit, or if the user requested something about the data connection.
func (l Link) Small(bytes uint64) (Link, bool) {
	w := l.requested
	free := w.Wire == "" || w.Wire == transport.Auto || w.Wire == transport.SSH
	connection := w.Streams != 0 || w.Dial != "" && w.Dial != transport.Auto || w.DataAddress != "" || w.Ports != transport.Ports{} || w.Socket != transport.Socket{}
	limit := w.BandwidthAt(time.Now())
	if bytes == 0 || bytes > smallSize || limit > 0 && bytes > uint64(limit) || !free || connection || l.source.Local() == l.target.Local() || l.agentless() != nil {
		return l, false
	}
	l.Wire, l.carrier, l.Streams = transport.SSH, controlCarrier{}, 0
	l.why, l.dial, l.address, l.last = "small: within the control connection", "", "", false
	return l, true
}

// controlCarrier moves a stream in the control connection.
type controlCarrier struct{}

func (controlCarrier) choose(*Link, Side, Side) error { return nil }

func (controlCarrier) mode(*Link) tcp.Mode { return tcp.Signed }

func (controlCarrier) limit(_ *session, limit string) string { return limit }

func (controlCarrier) run(ctx context.Context, m *session) error {
	remote := m.to.Host
	if m.to.Host.Local() {
		remote = m.from.Host
	}
	err := remote.Do(ctx, func(h hosts.Host) error {
		end, err := hosts.Attach(ctx, h)
		if err != nil {
			return err
		}
		defer end.Stream.Close()
		send := half{hosts.By(m.from.Host.Do), hosts.Task{From: m.from.What, To: end}}
		receive := half{hosts.By(m.to.Host.Do), hosts.Task{From: end, To: m.to.What}}
		if remote == m.from.Host {
			send.on = h
		} else {
			receive.on = h
		}
		return m.runBothEnds(ctx, send, receive)
	})
	// Each end also wrote to or read from the control connection.
	m.sent.Stages = withoutStage(m.sent.Stages, transfer.StageWrite)
	m.received.Stages = withoutStage(m.received.Stages, transfer.StageRead)
	return err
}

func withoutStage(all []transfer.Stage, name string) []transfer.Stage {
	return slices.DeleteFunc(all, func(s transfer.Stage) bool { return s.Name == name })
}
