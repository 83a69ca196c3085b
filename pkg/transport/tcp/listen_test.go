package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
)

var modes = []Mode{Signed, TLS, Plain}

// logged collects a listener's log of dropped connections.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, s)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// unlimited is a handshake timeout that no test reaches.
const unlimited = 24 * time.Hour

// listen opens a listener. Unless the offer has a deadline, the listener waits longer than a test
// runs.
func listen(t *testing.T, o Offer) (*Listener, *logged) {
	t.Helper()
	return listenTimed(t, o, unlimited)
}

// listenTimed is listen with a handshake timeout.
func listenTimed(t *testing.T, o Offer, handshake time.Duration) (*Listener, *logged) {
	t.Helper()
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	if o.Deadline == 0 {
		o.Deadline = unlimited
	}
	var log logged
	l, err := listenFor(context.Background(), Kernel{}, o, log.add, (*session).accepter, handshake)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, &log
}

// requireClosed requires that a listener accepts no connections. A connection attempt would not show
// that: another program may use the port by now.
func requireClosed(t *testing.T, l *Listener) {
	t.Helper()
	_, err := l.tcp.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

// connect returns both ends of a link.
func connect(t testing.TB, l *Listener, ticket Ticket) (dialer, listener *Link) {
	t.Helper()
	ctx := context.Background()
	done := make(chan error, 1)
	go func() {
		var err error
		dialer, err = Dial(ctx, Kernel{}, ticket)
		done <- err
	}()
	listener, err := l.Accept(ctx)
	require.NoError(t, err)
	require.NoError(t, <-done)
	t.Cleanup(func() { _ = dialer.Close(); _ = listener.Close() })
	return dialer, listener
}

func TestListenerClosesOnceComplete(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l, log := listen(t, Offer{Mode: mode, Streams: 3})
			d, a := connect(t, l, l.Ticket())
			require.Len(t, d.Conns(), 3)
			require.Len(t, a.Conns(), 3)
			for i := range 3 { // stream i of each end is the same connection
				require.Equal(t, d.Conns()[i].tcp.LocalAddr().String(), a.Conns()[i].tcp.RemoteAddr().String())
			}
			requireClosed(t, l)
			_, err := l.Accept(context.Background())
			require.Error(t, err, "a link cannot be accepted twice")
			require.Empty(t, log.text())
		})
	}
}

// recorder records a dialer's bytes through a relay.
func recorder(t *testing.T, address string) (via string, helloBytes func() []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var mu sync.Mutex
	var buf bytes.Buffer
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = l.Close()
		up, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(c, up) }()
		p := make([]byte, 4096)
		for {
			n, err := c.Read(p)
			if err != nil {
				return
			}
			mu.Lock()
			buf.Write(p[:n])
			mu.Unlock()
			if _, err := up.Write(p[:n]); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String(), func() []byte {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Clone(buf.Bytes())
	}
}

func TestUnauthenticatedClientsAreDropped(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l, log := listen(t, Offer{Mode: mode, Streams: 2})
			ticket := l.Ticket()
			other, _ := listen(t, Offer{Mode: mode, Streams: 2})

			// A silent client keeps its connection open throughout.
			silent, err := net.Dial("tcp", ticket.Address)
			require.NoError(t, err)
			defer silent.Close()
			// A relay records the first stream.
			via, helloBytes := recorder(t, ticket.Address)
			first, err := dialStream(ticket, via, 0)
			require.NoError(t, err)
			defer first.tcp.Close()
			require.Eventually(t, func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.accepted == 1
			}, testenv.Timeout(), time.Millisecond)
			replayed := helloBytes() // all bytes, because the listener has accepted the stream

			for _, garbage := range [][]byte{
				[]byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n" + strings.Repeat("x", 200)),
				bytes.Repeat([]byte{0}, 4096), replayed, replayed[:len(replayed)/2],
			} {
				c, err := net.Dial("tcp", ticket.Address)
				require.NoError(t, err)
				_, _ = c.Write(garbage)
				_ = c.(*net.TCPConn).CloseWrite()
				answer, _ := io.ReadAll(c)
				require.NotContains(t, string(answer), string(ticket.Secret))
				_ = c.Close()
			}
			wrong := ticket
			wrong.Secret = bytes.Repeat([]byte{7}, secretSize)
			_, err = dialStream(wrong, ticket.Address, 1)
			require.ErrorIs(t, err, errImpostor, "a wrong secret")
			_, err = dialStream(other.Ticket(), ticket.Address, 1)
			require.Error(t, err, "a valid handshake for another session")
			wrong = ticket
			wrong.Secret = other.Ticket().Secret
			_, err = dialStream(wrong, ticket.Address, 1)
			require.ErrorIs(t, err, errImpostor, "the secret of another session")
			wrong = ticket
			wrong.Session = other.Ticket().Session
			_, err = dialStream(wrong, ticket.Address, 1)
			require.Error(t, err, "the secret of this session for another one")
			_, err = dialStream(ticket, ticket.Address, 2)
			require.Error(t, err, "a stream that does not exist")
			// A duplicate stream ends at its first use.
			if dup, err := dialStream(ticket, ticket.Address, 0); err == nil {
				_, err = dup.ReadFrame(NewBlock(100, 0))
				require.ErrorIs(t, err, ErrConnectionLost)
			}

			second, err := dialStream(ticket, ticket.Address, 1)
			require.NoError(t, err)
			defer second.tcp.Close()
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
			defer cancel()
			link, err := l.Accept(ctx)
			require.NoError(t, err, "the silent connection must not delay the transfer")
			require.Len(t, link.Conns(), 2)
			defer link.Close()
			reasons := []string{"dropped a connection from 127.0.0.1:", "another session", "stream 0 exists already"}
			if mode != TLS {
				reasons = append(reasons, "does not speak this protocol", "or replays")
			}
			for _, why := range reasons {
				require.Eventually(t, func() bool { return strings.Contains(log.text(), why) }, testenv.Timeout(), time.Millisecond, why)
			}
			require.NotContains(t, log.text(), fmt.Sprintf("%x", ticket.Secret))
		})
	}
}

// dialStream opens one stream of a ticket, without retries.
func dialStream(t Ticket, address string, stream int) (*Conn, error) {
	return dialThrough(t, address, stream, func(c Socket) Socket { return c })
}

// dialThrough is dialStream with a changed connection.
func dialThrough(t Ticket, address string, stream int, change func(Socket) Socket) (*Conn, error) {
	s, err := t.check()
	if err != nil {
		return nil, err
	}
	dial, err := s.handshaker()
	if err != nil {
		return nil, err
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	d := dialer{ticket: t, handshake: dial}
	conn, err := d.authenticate(context.Background(), change(c.(*net.TCPConn)), stream)
	if err != nil {
		_ = c.Close()
	}
	return conn, err
}

func TestSilentFloodDoesNotBlockPeer(t *testing.T) {
	t.Parallel()
	l, log := listen(t, Offer{Mode: Signed, Streams: 4})
	for range 2 * maxPending {
		c, err := net.Dial("tcp", l.Ticket().Address)
		require.NoError(t, err)
		defer c.Close()
	}
	connect(t, l, l.Ticket())
	// The goroutine that logs the last line may overtake others.
	require.Eventually(t, func() bool { return strings.Count(log.text(), "\n") >= maxLogged-1 }, testenv.Timeout(), time.Millisecond)
	require.Contains(t, log.text(), "logs no further ones")
	require.Len(t, strings.Split(log.text(), "\n"), maxLogged)
}

// changed is a connection that passes each message of its owner through write. messages counts them.
type changed struct {
	Socket
	messages int
	write    func(message int, p []byte) ([]byte, error)
}

func (c *changed) Write(p []byte) (int, error) {
	out, err := c.write(c.messages, p)
	c.messages++
	if err == nil {
		_, err = c.Socket.Write(out)
	}
	return len(p), err
}

// firstMessage returns the first message of a dialer.
func firstMessage(t *testing.T, ticket Ticket) (first []byte) {
	t.Helper()
	_, err := dialThrough(ticket, ticket.Address, 0, func(c Socket) Socket {
		return &changed{Socket: c, write: func(_ int, p []byte) ([]byte, error) {
			first = bytes.Clone(p)
			return nil, net.ErrClosed
		}}
	})
	require.ErrorIs(t, err, net.ErrClosed)
	return first
}

// TestFloodKeepsClientsOfSession expects that a flood does not displace a connection that has named the session.
// The listener does not acknowledge the dialer's proof, so the dialer would not notice and not retry.
func TestFloodKeepsClientsOfSession(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l, _ := listen(t, Offer{Mode: mode})
			ticket := l.Ticket()
			flood := func() {
				for range 2 * maxPending {
					stranger, err := net.Dial("tcp", ticket.Address)
					require.NoError(t, err)
					t.Cleanup(func() { _ = stranger.Close() })
				}
				require.Eventually(t, func() bool {
					l.mu.Lock()
					defer l.mu.Unlock()
					return l.dropped >= maxPending-1
				}, testenv.Timeout(), time.Millisecond)
			}
			c, err := dialThrough(ticket, ticket.Address, 0, func(c Socket) Socket {
				return &changed{Socket: c, write: func(message int, p []byte) ([]byte, error) {
					if message == 1 { // the dialer has received the listener's answer
						flood()
					}
					return p, nil
				}}
			})
			require.NoError(t, err)
			defer c.tcp.Close()
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
			defer cancel()
			link, err := l.Accept(ctx)
			require.NoError(t, err)
			_ = link.Close()
		})
	}
}

// TestClientsOfSessionAreBounded expects a limit also for clients that know the session but not
// the secret.
func TestClientsOfSessionAreBounded(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l, log := listen(t, Offer{Mode: mode})
			ticket := l.Ticket()
			first := firstMessage(t, ticket)
			for range 2 * maxPending {
				c, err := net.Dial("tcp", ticket.Address)
				require.NoError(t, err)
				defer c.Close()
				_, err = c.Write(first)
				require.NoError(t, err)
			}
			require.Eventually(t, func() bool { return strings.Contains(log.text(), "logs no further ones") }, testenv.Timeout(), time.Millisecond)
			l.mu.Lock()
			require.LessOrEqual(t, len(l.named), maxPending)
			require.LessOrEqual(t, len(l.unnamed), maxPending)
			l.mu.Unlock()
			connect(t, l, ticket)
		})
	}
}

// TestDialerWaitsForSlowRelay uses a relay that accepts immediately and then logs in, which may
// take longer than a handshake may.
func TestDialerWaitsForSlowRelay(t *testing.T) {
	t.Parallel()
	if !testenv.Long() {
		t.Skip("only at the long level: takes longer than the handshake timeout")
	}
	l, _ := listen(t, Offer{Mode: Signed})
	ticket := l.Ticket()
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = relay.Close() })
	go func() {
		c, err := relay.Accept()
		if err != nil {
			return
		}
		time.Sleep(handshakeTimeout + 500*time.Millisecond)
		far, err := net.Dial("tcp", l.Ticket().Address)
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(far, c) }()
		_, _ = io.Copy(c, far)
	}()
	ticket.Address = relay.Addr().String()
	connect(t, l, ticket)
}

func TestPeerFilter(t *testing.T) {
	t.Parallel()
	l, log := listen(t, Offer{Mode: Signed, Peer: "127.0.0.2"})
	ticket := l.Ticket()
	// Within its deadline, the dialer must have been dropped once.
	for ticket.Deadline = 100 * time.Millisecond; ; ticket.Deadline *= 2 {
		_, err := Dial(context.Background(), Kernel{}, ticket)
		require.ErrorIs(t, err, ErrDial)
		if strings.Contains(err.Error(), "accepted and then dropped") {
			break
		}
		require.Less(t, ticket.Deadline, testenv.Timeout(), "%v", err)
	}
	require.Eventually(t, func() bool { return strings.Contains(log.text(), "only 127.0.0.2 may connect") }, testenv.Timeout(), time.Millisecond)

	for _, o := range []Offer{
		{Mode: Signed, Peer: "127.0.0.1"}, {Mode: Signed, Peer: "::ffff:127.0.0.1"},
		{Mode: Signed, Address: "::1", Peer: "::1%lo"}, // with a zone, as sshd writes link-local addresses
	} {
		if o.Address != "" {
			if probe, err := net.Listen("tcp", "[::1]:0"); err == nil {
				_ = probe.Close()
			} else {
				t.Logf("not tested, as there is no IPv6: %v", err)
				continue
			}
		}
		l, _ = listen(t, o)
		connect(t, l, l.Ticket())
	}
}

func TestListenerEndsWithDeadline(t *testing.T) {
	t.Parallel()
	l, _ := listen(t, Offer{Mode: Signed, Deadline: time.Millisecond})
	_, err := l.Accept(context.Background())
	require.ErrorIs(t, err, ErrNoPeer)
	require.ErrorContains(t, err, "0 of 1 connections")
	require.NotEmpty(t, fault.HintOf(err))
}

// TestHandshakeEndsWithTimeout expects the listener to drop a client that sends nothing, half of its first message, or
// nothing after it.
func TestHandshakeEndsWithTimeout(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		l, log := listenTimed(t, Offer{Mode: mode}, 300*time.Millisecond)
		first := firstMessage(t, l.Ticket())
		for i, sent := range [][]byte{nil, first[:len(first)/2], first} {
			c, err := net.Dial("tcp", l.Ticket().Address)
			require.NoError(t, err)
			_, _ = c.Write(sent)
			_, _ = io.ReadAll(c) // until the listener drops it
			_ = c.Close()
			require.Eventually(t, func() bool { return strings.Count(log.text(), "timeout") == i+1 }, testenv.Timeout(), time.Millisecond)
		}
	}
}

func TestListenerEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(context.Background())
	l, err := Listen(ctx, Kernel{}, Offer{Mode: TLS, Streams: 2, Address: "127.0.0.1"}, nil)
	require.NoError(t, err)
	ticket := l.Ticket()
	half, err := dialStream(ticket, ticket.Address, 0)
	require.NoError(t, err)
	why := errors.New("the control channel is gone")
	cancel(why)
	_, err = l.Accept(context.Background())
	require.ErrorIs(t, err, why)
	requireClosed(t, l)
	_, err = half.ReadFrame(NewBlock(100, 0))
	require.ErrorIs(t, err, ErrConnectionLost, "a connection of an incomplete link must end")
	require.NoError(t, l.Close())
}

func TestAcceptEndsWithContext(t *testing.T) {
	t.Parallel()
	l, _ := listen(t, Offer{Mode: Signed})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := l.Accept(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	connect(t, l, l.Ticket()) // the listener still works
}

func TestListenErrors(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	port := taken.Addr().(*net.TCPAddr).Port
	for name, tc := range map[string]struct {
		offer Offer
		want  []string
		hint  string
	}{
		"no free port":    {Offer{Mode: Signed, Address: "127.0.0.1", PortLow: port, PortHigh: port}, []string{"127.0.0.1", fmt.Sprintf("ports %d-%d", port, port), "in use"}, "{{port-range}}"},
		"foreign address": {Offer{Mode: Signed, Address: "192.0.2.1"}, []string{"192.0.2.1", "no such address"}, "{{data-address}}"},
		"not an address":  {Offer{Mode: Signed, Address: "example"}, []string{`"example"`}, "IP address"},
		"mode":            {Offer{Mode: "carrier pigeon", Address: "127.0.0.1"}, []string{"carrier pigeon"}, ""},
		"streams":         {Offer{Mode: Signed, Address: "127.0.0.1", Streams: 65}, []string{"65"}, ""},
		"range":           {Offer{Mode: Signed, Address: "127.0.0.1", PortLow: 9, PortHigh: 8}, []string{"9-8"}, ""},
		"half a range":    {Offer{Mode: Signed, Address: "127.0.0.1", PortHigh: 8}, []string{"0-8"}, ""},
		"peer":            {Offer{Mode: Signed, Address: "127.0.0.1", Peer: "example"}, []string{"example"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Listen(context.Background(), Kernel{}, tc.offer, nil)
			require.Error(t, err)
			for _, w := range tc.want {
				require.ErrorContains(t, err, w)
			}
			require.Contains(t, fault.HintOf(err), tc.hint)
		})
	}
}

func TestPortRange(t *testing.T) {
	t.Parallel()
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	low := probe.Addr().(*net.TCPAddr).Port
	defer probe.Close() // one port of the range is in use
	high := min(low+50, 65535)
	for range 5 {
		l, _ := listen(t, Offer{Mode: Signed, PortLow: low, PortHigh: high})
		got := l.tcp.Addr().(*net.TCPAddr).Port
		require.GreaterOrEqual(t, got, low)
		require.LessOrEqual(t, got, high)
		require.NotEqual(t, low, got)
	}
}

func TestWindowIsGranted(t *testing.T) {
	t.Parallel()
	l, _ := listen(t, Offer{Mode: Signed, Socket: transport.Socket{Window: 128 << 10}})
	d, a := connect(t, l, l.Ticket())
	for _, link := range []*Link{d, a} {
		n := link.Network()
		require.Equal(t, 256<<10, n.SendBuffer, "the kernel doubles the requested size")
		require.Equal(t, 256<<10, n.ReceiveBuffer)
		_ = link.Close()
		require.Equal(t, n.SendBuffer, link.Network().SendBuffer, "the final statistics of a closed link")
	}
}

func TestDialErrors(t *testing.T) {
	t.Parallel()
	refused := testenv.RefusingAddress(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog, sends nothing
	require.NoError(t, err)
	t.Cleanup(func() { _ = mute.Close() })
	l, _ := listen(t, Offer{Mode: TLS})
	good := l.Ticket()
	with := func(f func(*Ticket)) Ticket { t := good; f(&t); return t }
	for name, tc := range map[string]struct {
		ticket Ticket
		want   []string
		hint   bool
	}{
		"refused":  {with(func(t *Ticket) { t.Address = refused }), []string{refused, "from 127.0.0.1", "connection refused"}, true},
		"silent":   {with(func(t *Ticket) { t.Address = mute.Addr().String(); t.Deadline = 300 * time.Millisecond }), []string{mute.Addr().String(), "from 127.0.0.1:", "timeout"}, true},
		"impostor": {with(func(t *Ticket) { t.Secret = make([]byte, secretSize) }), []string{"the listener does not know the session's secret"}, true},
		"session":  {with(func(t *Ticket) { t.Session = "zz" }), []string{"malformed"}, false},
		"secret":   {with(func(t *Ticket) { t.Secret = t.Secret[1:] }), []string{"malformed"}, false},
		"mode":     {with(func(t *Ticket) { t.Mode = "" }), []string{"malformed"}, false},
		"streams":  {with(func(t *Ticket) { t.Streams = 0 }), []string{"malformed"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Dial(context.Background(), Kernel{}, tc.ticket)
			require.ErrorIs(t, err, ErrDial)
			for _, w := range tc.want {
				require.ErrorContains(t, err, w)
			}
			require.Equal(t, tc.hint, strings.Contains(fault.HintOf(err), "{{data-address"))
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_, err := Dial(ctx, Kernel{}, with(func(t *Ticket) { t.Address = mute.Addr().String() }))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// TestModesCannotBeMixed expects that different modes cannot connect, although both ends know the secret.
func TestModesCannotBeMixed(t *testing.T) {
	t.Parallel()
	for _, lm := range modes {
		for _, dm := range modes {
			if lm == dm {
				continue
			}
			t.Run(fmt.Sprintf("%s-%s", lm, dm), func(t *testing.T) {
				t.Parallel()
				l, log := listen(t, Offer{Mode: lm})
				ticket := l.Ticket()
				ticket.Mode = dm
				_, err := dialStream(ticket, ticket.Address, 0)
				if lm == TLS || dm == TLS {
					require.Error(t, err)
				} else {
					require.ErrorIs(t, err, errImpostor)
				}
				require.Eventually(t, func() bool { return strings.Contains(log.text(), "dropped") }, testenv.Timeout(), time.Millisecond)
				require.Zero(t, l.accepted)
			})
		}
	}
}

// TestReplayIsRefused sends all bytes of a dialer to the same session again.
func TestReplayIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l, _ := listen(t, Offer{Mode: mode})
			ticket := l.Ticket()
			var sent []byte
			c, err := dialThrough(ticket, ticket.Address, 0, func(c Socket) Socket {
				return &changed{Socket: c, write: func(_ int, p []byte) ([]byte, error) {
					sent = append(sent, p...)
					return p, nil
				}}
			})
			require.NoError(t, err)
			defer c.tcp.Close()
			link, err := l.Accept(t.Context())
			require.NoError(t, err)
			defer link.Close()
			s, err := ticket.check()
			require.NoError(t, err)
			accept, err := s.accepter()
			require.NoError(t, err)
			a, b := net.Pipe()
			go func() { _, _ = a.Write(sent) }()
			go func() { _, _ = io.Copy(io.Discard, a) }()
			named := false
			_, err = accept(pipeSocket{b}, func() { named = true })
			_ = b.Close()
			require.True(t, named)
			if mode == TLS {
				require.ErrorContains(t, err, "bad record MAC")
			} else {
				require.ErrorIs(t, err, errNoSecret)
			}
		})
	}
}

// TestStreamNumberCannotBeChanged expects both ends to notice that a network attacker changed the number of a stream.
func TestStreamNumberCannotBeChanged(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l, log := listen(t, Offer{Mode: mode, Streams: 2})
			ticket := l.Ticket()
			_, err := dialThrough(ticket, ticket.Address, 0, func(c Socket) Socket {
				return &changed{Socket: c, write: func(message int, p []byte) ([]byte, error) {
					if message > 0 {
						return p, nil
					}
					p = bytes.Clone(p)
					if mode == TLS {
						name := []byte(ticket.Session + " 0")
						require.Equal(t, 1, bytes.Count(p, name))
						p[bytes.Index(p, name)+len(name)-1] = '1'
					} else {
						p[len(magic)+sessionSize+1] = 1
					}
					return p, nil
				}}
			})
			require.Error(t, err)
			require.Eventually(t, func() bool { return strings.Contains(log.text(), "dropped") }, testenv.Timeout(), time.Millisecond)
			require.NotContains(t, log.text(), "another session", "the changed number exists")
			require.Zero(t, l.accepted)
		})
	}
}
