package hoststest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

func (s *suite) testNobody(t *testing.T, p testPool) {
	ticket, err := hosts.Call(t.Context(), s.target, hosts.OpOffer, tcp.Offer{Mode: tcp.Signed, Streams: 1, Address: "127.0.0.1", Deadline: 100 * time.Millisecond})
	require.NoError(t, err)
	_, err = hosts.Call(t.Context(), s.target, hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: ticket.Session}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: p.Dataset("b")}}})
	require.ErrorIs(t, err, tcp.ErrNoPeer)
	requireClosed(t, ticket.Address)
	require.False(t, exists(t, p, p.Dataset("b")))

	ds := p.Create("a")
	p.Snapshot(ds, "x")
	_, err = hosts.Call(t.Context(), s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: ds, To: "x"}}, To: hosts.Dial{Ticket: ticket}})
	require.ErrorIs(t, err, tcp.ErrDial)
	require.ErrorContains(t, err, ticket.Address)
	requireEnded(t, p)
}

func (s *suite) testBadTasks(t *testing.T, p testPool) {
	spec := zfs.SendSpec{Dataset: p.Root(), To: "x"}
	send, receive := hosts.SendStream{Spec: spec}, hosts.ReceiveStream{Spec: s.into(t, spec, p.Dataset("b"))}
	into := func(r zfs.ReceiveSpec) hosts.To { return hosts.ReceiveStream{Spec: r} }
	offer := func() tcp.Ticket {
		ticket, err := hosts.Call(t.Context(), s.source, hosts.OpOffer, tcp.Offer{Mode: tcp.Signed, Streams: 1, Address: "127.0.0.1", Deadline: time.Second})
		require.NoError(t, err)
		return ticket
	}
	ticket := offer()
	for name, task := range map[string]hosts.Task{
		"neither source nor target": {},
		"source only":               {From: send},
		"target only":               {To: receive},
		"dials and accepts":         {From: hosts.Accept{Session: ticket.Session}, To: hosts.Dial{Ticket: ticket}},
		"unknown session":           {From: send, To: hosts.Accept{Session: strings.Repeat("0", 32)}},
		"stream to nowhere":         {From: send, To: hosts.Nowhere{}},
		"attached at both ends":     {From: hosts.Attached{Number: 2}, To: hosts.Attached{Number: 3}},
		"attached and dialed":       {From: hosts.Attached{Number: 2}, To: hosts.Dial{Ticket: ticket}},
		"attached to no stream":     {From: hosts.Attached{Number: 2}, To: receive},
		"attached noise":            {From: hosts.Noise{}, To: hosts.Attached{Number: 2}},
		"illegal name":              {From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: "-x", To: "x"}}, To: receive},
		"illegal target":            {From: send, To: into(zfs.ReceiveSpec{Target: p.Root() + "//b"})},
		"read-only property":        {From: send, To: into(zfs.ReceiveSpec{Target: p.Dataset("b"), Set: map[string]string{"origin": "x"}})},
		"option as token":           {From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: p.Root(), To: "x", Token: "-o"}}, To: receive},
	} {
		_, err := hosts.Call(t.Context(), s.source, hosts.OpTransfer, task)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, hosts.ErrLost, name)
	}
	require.Empty(t, running(t, p.Root()))
	require.False(t, exists(t, p, p.Dataset("b")))
	_, err := hosts.Call(t.Context(), s.source, hosts.OpOffer, tcp.Offer{Mode: "loud", Streams: 1, Address: "127.0.0.1"})
	require.Error(t, err)
}

func (s *suite) testDiscard(t *testing.T, p testPool) {
	st := slow(p)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var moved <-chan struct{}
	st.receiving, moved = after(enough)
	ended := s.start(ctx, t, st)
	wait(t, moved)
	cancel()
	ended()
	token := requireResumable(t, p, st.receive.Target, st.send.To)

	l, err := hosts.Call(t.Context(), s.target, hosts.OpList, hosts.ListQuery{Dataset: st.receive.Target, Versions: true})
	require.NoError(t, err)
	require.Len(t, l.Datasets, 1)
	require.Equal(t, token, l.Datasets[0].ResumeToken())
	require.True(t, l.Datasets[0].Inconsistent())

	st.receiving, st.options = nil, transfer.Options{}
	o := s.start(t.Context(), t, st)()
	require.Error(t, o.receiveErr, "the state of another stream is a conflict")
	require.NoError(t, hosts.Run(t.Context(), s.target, hosts.OpDiscardPartial, st.receive.Target))
	require.False(t, exists(t, p, st.receive.Target), "the dataset of a first receive is destroyed")
	requireKind(t, hosts.Run(t.Context(), s.target, hosts.OpDiscardPartial, st.receive.Target), zfs.NotFound)
	require.NoError(t, hosts.Run(t.Context(), s.target, hosts.OpDiscardPartial, st.send.Dataset), "missing state is not an error")
	s.move(t, st)
	s.requireSame(t, p, st.send, st.receive.Target)
}
