package hosts

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
)

// running is a Source that is still running, so its cause is not known yet.
type running struct{ transfer.Source }

func (running) Cause(error) error { panic("asked before its end") }

func TestCauseOfWithoutFailure(t *testing.T) {
	t.Parallel()
	require.NoError(t, CauseOf(running{}, nil))
	cut := errors.New("cut")
	require.Equal(t, cut, CauseOf(struct{ transfer.Source }{}, cut))
}

// TestOffersAreBounded expects that the number of listeners is limited. Unused ones are removed
// after their deadline.
func TestOffersAreBounded(t *testing.T) {
	t.Parallel()
	l := NewLocal("test", func(string) {})
	defer l.Close()
	offer := tcp.Offer{Mode: tcp.Plain, Address: "127.0.0.1", Deadline: time.Hour}
	for range maxOffers {
		_, err := l.Offer(t.Context(), offer)
		require.NoError(t, err)
	}
	_, err := l.Offer(t.Context(), offer)
	require.ErrorContains(t, err, "listeners already wait")
	for id := range l.offers { // simulates the deadline
		require.NoError(t, l.offers[id].Close())
		break
	}
	_, err = l.Offer(t.Context(), offer)
	require.NoError(t, err)
	require.Len(t, l.offers, maxOffers)
}

// TestRestrictedHostLimitsMemory expects that a restricted agent refuses a stream whose options and
// connections need more memory than one client may use, before it starts a process.
func TestRestrictedHostLimitsMemory(t *testing.T) {
	t.Parallel()
	l := NewLocal("test", func(string) {})
	defer l.Close()
	l.Restrict([]string{"--allow", "receive=tank"})
	for name, ends := range map[string]func(tcp.Ticket, transfer.Options) Task{
		"receives": func(o tcp.Ticket, options transfer.Options) Task {
			return Task{From: Accept{Session: o.Session}, To: ReceiveStream{Options: options}}
		},
		"sends": func(o tcp.Ticket, options transfer.Options) Task {
			return Task{From: SendStream{Options: options}, To: Accept{Session: o.Session}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ticket, err := l.Offer(t.Context(), tcp.Offer{Mode: tcp.Plain, Address: "127.0.0.1", Streams: tcp.MaxStreams, Deadline: time.Minute})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			peer := make(chan *tcp.Link, 1)
			go func() {
				link, err := tcp.Dial(ctx, l.stack, ticket)
				peer <- link
				if err == nil {
					_, _ = link.Conns()[0].ReadFrame(tcp.NewBlock(tcp.MaxControl, 0))
					_ = link.Close()
				}
			}()
			_, err = l.Transfer(ctx, ends(ticket, transfer.Options{Block: tcp.MaxRaw}), nil)
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, "need more than 1024 MiB of memory")
			require.NotNil(t, <-peer)
		})
	}
}

// TestForwardReachesOnlyListeners expects that a stream of the remote shell reaches a listener of its own agent, and those
// of other agents only without restrictions and only on the loopback interface.
func TestForwardReachesOnlyListeners(t *testing.T) {
	t.Parallel()
	l, other := NewLocal("test", func(string) {}), NewLocal("test", func(string) {})
	defer l.Close()
	defer other.Close()
	streams := func() (client, agent *mux.Stream) {
		up, upWriter := io.Pipe()
		down, downWriter := io.Pipe()
		a, b := mux.New(upWriter, ""), mux.New(downWriter, "")
		accepted := make(chan *mux.Stream, 1)
		b.Accept = func(s *mux.Stream, _ string) { accepted <- s }
		go func() { _ = b.Run(up) }()
		go func() { _ = a.Run(down) }()
		t.Cleanup(func() { _, _, _, _ = up.Close(), upWriter.Close(), down.Close(), downWriter.Close() })
		client, err := a.Open(t.Context(), "x")
		require.NoError(t, err)
		return client, <-accepted
	}
	for name, tt := range map[string]struct {
		at      *Local
		own     bool
		refused bool
	}{
		"own listener":                   {l, true, false},
		"own listener, not restricted":   {l, false, false},
		"other agent":                    {other, false, false},
		"other agent, with a restricted": {other, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			ticket, err := tt.at.Offer(t.Context(), tcp.Offer{Mode: tcp.Signed, Streams: 1, Address: "127.0.0.1", Deadline: time.Minute})
			require.NoError(t, err)
			client, agent := streams()
			forwarded := make(chan error, 1)
			go func() { forwarded <- l.Forward(t.Context(), ticket.Address, agent, tt.own) }()
			if tt.refused {
				require.ErrorContains(t, <-forwarded, "no listener of this agent")
				return
			}
			accepted := make(chan error, 1)
			go func() {
				link, err := tt.at.connect(t.Context(), Accept{Session: ticket.Session})
				if err == nil {
					_, err = link.Conns()[0].ReadFrame(tcp.NewBlock(tcp.MaxControl, 0))
					_ = link.Close()
				}
				accepted <- err
			}()
			link, err := tcp.Dial(t.Context(), through{client}, ticket)
			require.NoError(t, err)
			require.NoError(t, link.Conns()[0].WriteControl(tcp.Abort, 0, []byte("a frame")))
			require.NoError(t, <-accepted)
			require.NoError(t, link.Close())
			require.NoError(t, <-forwarded)
		})
	}
	for _, address := range []string{"", "192.0.2.1:22", "localhost:22", "127.0.0.1", "[2001:db8::1]:22", "0.0.0.0:22", "127.0.0.1:22x"} {
		_, agent := streams()
		require.ErrorContains(t, l.Forward(t.Context(), address, agent, false), "no listener of this agent", address)
	}
}

// through is a stack with one connection.
type through struct{ s *mux.Stream }

func (c through) Dial(context.Context, string, transport.Socket) (tcp.Socket, error) { return c.s, nil }

func (through) Listen(context.Context, tcp.Offer) (tcp.Acceptor, error) {
	return nil, errors.ErrUnsupported
}

// TestUnnamedStreamsAreBounded expects that streams that no task names cost an agent bounded memory, also if the client
// closes them.
func TestUnnamedStreamsAreBounded(t *testing.T) {
	t.Parallel()
	l := NewLocal("test", func(string) {})
	defer l.Close()
	up, upWriter := io.Pipe()
	client, agent := mux.New(upWriter, ""), mux.New(io.Discard, "")
	attached := make(chan *mux.Stream, 1)
	agent.Accept = func(s *mux.Stream, _ string) { l.Attach(s); attached <- s }
	go func() { _ = agent.Run(up) }()
	defer upWriter.Close()
	for range 3 * mux.MaxStreams {
		s, err := client.Open(t.Context(), AttachAddress)
		require.NoError(t, err)
		_, err = s.Write(make([]byte, 1000))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		<-attached
	}
	l.attached.mu.Lock()
	defer l.attached.mu.Unlock()
	require.LessOrEqual(t, len(l.attached.streams), mux.MaxStreams)
}

// TestSilentSender expects a receiver whose sender sends nothing to end.
func TestSilentSender(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		session := mux.New(io.Discard, "")
		defer session.End(io.EOF)
		s, err := session.Open(t.Context(), AttachAddress)
		require.NoError(t, err)
		l := NewLocal("test", func(string) {})
		defer l.Close()
		began := time.Now()
		_, err = l.Transfer(t.Context(), Task{From: Attached{Stream: s}, To: ReceiveStream{}}, nil)
		require.ErrorIs(t, err, transfer.ErrStall)
		require.Equal(t, firstDataTimeout, time.Since(began))
	})
}
