package connect

import (
	"cmp"
	"context"
	"slices"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// inlineSize is the largest estimate in bytes of an inline stream. The stream may be larger, up to
// hosts.MaxInline.
const inlineSize = 96 << 10

// Inline returns the link for a small stream of about that many bytes, 0 = unknown. It moves the stream
// in messages of the control connection, and needs no path. It returns false if the stream is not small or
// takes longer than a second at the bandwidth limit, or if the user requested something about the data
// connection.
func (l Link) Inline(bytes uint64) (Link, bool) {
	w := l.requested
	free := w.Wire == "" || w.Wire == transport.Auto || w.Wire == transport.SSH
	connection := w.Streams != 0 || w.Dial != "" && w.Dial != transport.Auto || w.DataAddress != "" || w.Ports != transport.Ports{} || w.Socket != transport.Socket{}
	limit := w.BandwidthAt(time.Now())
	if bytes == 0 || bytes > inlineSize || limit > 0 && bytes > uint64(limit) || !free || connection || l.source.Local() == l.target.Local() || l.agentless() != nil {
		return l, false
	}
	l.Wire, l.carrier, l.Streams = transport.SSH, inlineCarrier{}, 0
	l.why, l.dial, l.address, l.rejected, l.noPath = "small: within the control connection", "", "", nil, false
	return l, true
}

// WithRemote returns the link for an inline stream whose end on the remote host run runs: a request that
// moves about that many bytes.
func (l Link) WithRemote(run func(ctx context.Context, r *hosts.Request, bytes int) error) Link {
	l.remote = run
	return l
}

// inlineCarrier moves a small stream in messages of the control connection: the source's host returns
// it, and the target's host gets it with the request to store it.
type inlineCarrier struct{}

func (inlineCarrier) choose(*Link, Side, Side) error { return nil }

func (inlineCarrier) mode(*Link) tcp.Mode { return tcp.Signed }

func (inlineCarrier) limit(_ *session, limit string) string { return limit }

func (inlineCarrier) run(ctx context.Context, m *session) (err error) {
	m.sent, err = m.runInline(ctx, m.from.Host, hosts.Task{From: m.from.What, To: hosts.Collect{}}, int(m.bytes), m.monitor.sent)
	if err != nil {
		return err
	}
	stored := hosts.Task{From: hosts.Inline{Data: m.sent.Data}, To: m.to.What}
	m.received, err = m.runInline(ctx, m.to.Host, stored, len(m.sent.Data), m.monitor.received)
	// Each end also wrote to or read from memory.
	m.sent.Data, m.sent.Stages = nil, withoutStage(m.sent.Stages, transfer.StageWrite)
	m.received.Stages = withoutStage(m.received.Stages, transfer.StageRead)
	return cmp.Or(err, m.compareDigests())
}

// runInline runs one end of an inline stream of about that many bytes.
func (m *session) runInline(ctx context.Context, h Host, t hosts.Task, bytes int, progress func(transfer.Progress)) (res hosts.Result, err error) {
	if m.link.remote == nil || h.Local() {
		return hosts.Watch(ctx, hosts.By(h.Do), hosts.OpTransfer, t, progress)
	}
	err = m.link.remote(ctx, &hosts.Request{Op: hosts.OpTransfer, Args: t, Answer: &res, Progress: progress}, bytes)
	return res, err
}

func withoutStage(all []transfer.Stage, name string) []transfer.Stage {
	return slices.DeleteFunc(all, func(s transfer.Stage) bool { return s.Name == name })
}
