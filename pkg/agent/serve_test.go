package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/mux"
)

// raw is an agent whose client is the test.
type raw struct {
	t        *testing.T
	host     *host
	pipe     *io.PipeWriter // to the agent
	out      *bufio.Reader
	streams  *mux.Session // valid after greet
	messages io.Reader    // valid after hello
	server   *Server
	served   chan error
}

func serveRaw(ctx context.Context, t *testing.T, s *host) *raw {
	t.Helper()
	return serveGuarded(ctx, t, s, nil)
}

func serveGuarded(ctx context.Context, t *testing.T, s *host, guard *authz.Guard) *raw {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	r := &raw{t: t, host: s, pipe: inW, out: bufio.NewReader(outR), server: &Server{Host: s, Version: "v", Guard: guard}, served: make(chan error, 1)}
	go func() { r.served <- r.server.Serve(ctx, inR, outW) }()
	t.Cleanup(func() { _ = inW.Close(); _ = outR.Close() })
	return r
}

// greet reads the hello, and nothing more.
func (r *raw) greet() {
	_, err := readHello(r.out)
	require.NoError(r.t, err)
	r.streams = mux.New(r.pipe, "")
	r.t.Cleanup(func() { r.streams.End(io.EOF) })
}

// hello reads the hello, and then all messages.
func (r *raw) hello() {
	r.greet()
	go func() { _ = r.streams.Run(r.out) }()
	var err error
	r.messages, err = newDecompressor(r.streams.Control())
	require.NoError(r.t, err)
}

func (r *raw) send(m *message) {
	b, err := encode(m, hosts.MaxRequest)
	require.NoError(r.t, err)
	_, err = r.streams.Control().Write(b)
	require.NoError(r.t, err)
}

// receive returns the next message of the agent that is no sign of life.
func (r *raw) receive() *message {
	for {
		m, err := readMessage(r.messages, hosts.MaxAnswer, unlimitedCost)
		require.NoError(r.t, err)
		if m.Kind != alive {
			return m
		}
	}
}

func TestBadInputEndsAgent(t *testing.T) {
	call1, err := encode(&message{Kind: call, ID: 1, Op: hosts.OpSnapshot.Name(), Body: json.RawMessage(`[]`)}, hosts.MaxRequest)
	require.NoError(t, err)
	for name, c := range map[string]struct{ in, want string }{
		"garbage":         {"SSH-2.0-OpenSSH_9.2\r\n", "message of 1397966893 bytes, more than 16777216"},
		"not JSON":        {"\x00\x00\x00\x01x", "malformed message"},
		"unknown kind":    {"\x00\x00\x00\x02{}", `unexpected message ""`},
		"an answer":       {"\x00\x00\x00\x11{\"kind\":\"result\"}", `unexpected message "result"`},
		"same call twice": {string(call1) + "|" + string(call1), "call 1 is already running"},
		"truncated":       {"\x00\x00\x00\x09{", "the input ended within a message"},
		"end of input":    {"", ""},
		"end after call":  {string(call1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				cancelled := false
				s := newHost(func(ctx context.Context) error { <-ctx.Done(); cancelled = true; return ctx.Err() })
				r := serveRaw(t.Context(), t, s)
				r.hello()
				for part := range strings.SplitSeq(c.in, "|") {
					_, err := io.WriteString(r.streams.Control(), part)
					require.NoError(t, err)
					synctest.Wait()
				}
				_ = r.pipe.Close()
				err := <-r.served
				if c.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.want)
				}
				require.True(t, s.closed.Load())
				require.Equal(t, strings.Contains(c.in, "call"), cancelled, "calls end with the agent")
			})
		})
	}
}

func TestBadCallsDoNotEndAgent(t *testing.T) {
	for name, c := range map[string]struct{ op, body, want string }{
		"unknown operation":          {"format-disk", `{}`, `unknown operation "format-disk"`},
		"unknown argument":           {hosts.OpTransfer.Name(), `{"from":{},"force":true}`, `malformed arguments: json: unknown field "force"`},
		"unknown nested":             {hosts.OpTransfer.Name(), `{"from":{"accept":{}},"to":{"stream":{"spec":{"target":"a","wipe":true}}}}`, `malformed arguments: to: json: unknown field "wipe"`},
		"argument of the wrong type": {hosts.OpSnapshot.Name(), `{"a":1}`, "malformed arguments"},
		"no arguments":               {hosts.OpSnapshot.Name(), ``, "malformed arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := serveRaw(t.Context(), t, newHost(nil))
				r.hello()
				r.send(&message{Kind: call, ID: 5, Op: c.op, Body: json.RawMessage(c.body)})
				m := r.receive()
				require.Equal(t, result, m.Kind)
				require.Equal(t, uint64(5), m.ID)
				require.NotNil(t, m.Error)
				require.Contains(t, m.Error.Text, c.want)
				require.Nil(t, r.host.asked, "nothing was done")
				r.send(&message{Kind: call, ID: 6, Op: hosts.OpFacts.Name(), Body: json.RawMessage(`{}`)})
				require.Nil(t, r.receive().Error)
				_ = r.pipe.Close()
				require.NoError(t, <-r.served)
			})
		})
	}
}

func TestOversizedAnswerIsAnError(t *testing.T) {
	if testing.Short() {
		t.Skip("not at the quick level: encodes messages of the maximum size")
	}
	inBubble(t, func(t *testing.T) {
		g := start(t, transferringHost(func(context.Context, hosts.Task, func(transfer.Progress)) (hosts.Result, error) {
			return hosts.Result{Result: transfer.Result{Digest: strings.Repeat("x", hosts.MaxAnswer)}}, nil
		}))
		_, err := hosts.Call(t.Context(), g, hosts.OpTransfer, receiving("s"))
		require.ErrorContains(t, err, "beta: answer of transfer: message of")
		g.host.do = func(context.Context) error { return errors.New(strings.Repeat("x", hosts.MaxAnswer)) }
		err = hosts.Run(t.Context(), g, hosts.OpSnapshot, nil)
		require.ErrorContains(t, err, "beta: xxx", "the start of a long error")
		require.Less(t, len(err.Error()), budget.MinLimit)
		err = hosts.Run(t.Context(), g, hosts.OpSnapshot, []string{strings.Repeat("x", hosts.MaxRequest)})
		require.ErrorContains(t, err, "beta: snapshot: message of")
		g.host.do = nil
		require.NoError(t, hosts.Run(t.Context(), g, hosts.OpSnapshot, nil), "the connection still works")
	})
}

func TestBlockedClientAllowsCancelAndEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		started, ended := make(chan struct{}), make(chan struct{})
		r := serveRaw(t.Context(), t, newHost(func(ctx context.Context) error {
			close(started)
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}))
		r.greet()
		r.send(&message{Kind: call, ID: 1, Op: hosts.OpSnapshot.Name(), Body: json.RawMessage(`[]`)})
		<-started
		for i := range 1000 { // far more than the queue can hold
			r.send(&message{Kind: ping, ID: uint64(i)})
			r.server.Log("x")
		}
		r.send(&message{Kind: cancel, ID: 1})
		<-ended
		_ = r.pipe.Close()
		require.NoError(t, <-r.served)
	})
}

func TestSilentClientEndsAgent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := serveRaw(t.Context(), t, newHost(nil))
		r.hello()
		time.Sleep(29 * time.Second)
		r.send(&message{Kind: ping})
		began := time.Now()
		require.EqualError(t, <-r.served, "no message for 30s: connection lost")
		require.Equal(t, silenceTimeout, time.Since(began))
	})
}

func TestUnreadHelloEndsAgent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := serveRaw(t.Context(), t, newHost(nil))
		require.ErrorContains(t, <-r.served, "no message")
	})
}

func TestSignalledAgentSendsNoAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := serveRaw(ctx, t, newHost(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
		r.hello()
		r.send(&message{Kind: call, ID: 1, Op: hosts.OpSnapshot.Name(), Body: json.RawMessage(`[]`)})
		synctest.Wait()
		cancel()
		require.NoError(t, <-r.served)
		// "Cancelled" would look like a cancellation by the client.
		_ = r.pipe.Close()
		got := make(chan error, 1)
		go func() { _, err := readMessage(r.messages, hosts.MaxAnswer, unlimitedCost); got <- err }()
		synctest.Wait()
		require.Empty(t, got)
	})
}

func TestStuckOperationDoesNotKeepAgent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		stuck := make(chan struct{})
		r := serveRaw(t.Context(), t, newHost(func(context.Context) error { <-stuck; return nil }))
		r.hello()
		r.send(&message{Kind: call, ID: 1, Op: hosts.OpSnapshot.Name(), Body: json.RawMessage(`[]`)})
		synctest.Wait()
		began := time.Now()
		_ = r.pipe.Close()
		require.NoError(t, <-r.served)
		require.Equal(t, shutdownGrace, time.Since(began))
		close(stuck)
	})
}

// deaf is a Transport that only sends.
type deaf struct {
	io.Reader
	why error
}

func (d *deaf) Write(b []byte) (int, error) { return len(b), nil }
func (d *deaf) Close() error                { return d.why }

func TestErrorQuotesOutputOfNonAgent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says  string
		why   error
		want  string
		class fault.Class
	}{
		"no shell":       {"This account is currently not available.\n", nil, "beta: no agent answered: its message: This account is currently not available.", fault.Failed},
		"nothing":        {"", nil, "beta: no agent answered: EOF", fault.Failed},
		"ssh failed":     {"motd\n", fault.Failf("h", "ssh: no route"), "beta: ssh: no route", fault.Failed},
		"other protocol": {"zxfer-agent 9 8.8\n", nil, "beta: zxfer there is 8.8 and speaks protocol 9, the local one speaks 6", fault.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := NewRemote(t.Context(), "beta", &deaf{strings.NewReader(c.says), c.why}, func(string) {})
			require.EqualError(t, err, c.want)
			require.Equal(t, c.class, fault.ClassOf(err))
			if c.class == fault.Refused {
				require.NotEmpty(t, fault.HintOf(err))
			}
		})
	}
}

func TestMalformedAnswerEndsConnection(t *testing.T) {
	t.Parallel()
	half := compressed(t, strings.Repeat("x", 100))
	for name, c := range map[string]struct{ says, want string }{
		"garbage":        {framed(compressed(t, "\x00\x00\x00\x03{-}")), "malformed message: invalid character"},
		"too long":       {framed(compressed(t, "\xff\xff\xff\xff")), "message of 4294967295 bytes, more than"},
		"not compressed": {framed("\x00\x00\x00\x02{}"), "read its messages: invalid input: magic number mismatch"},
		"half a block":   {framed(half[:len(half)-1]), "the agent ended"},
		"large window":   {framed("\x28\xb5\x2f\xfd\x00\x68"), "read its messages: window size exceeded"}, // 8 MiB
		"not a frame":    {"SSH-2.0-OpenSSH_9.2\r\n", "malformed frame"},
		"half a frame":   {framed(half)[:14], "the agent ended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := NewRemote(t.Context(), "beta", &deaf{strings.NewReader(hello("v") + c.says), nil}, func(string) {})
			require.NoError(t, err)
			_, err = hosts.Call(t.Context(), r, hosts.OpFacts, hosts.None{})
			require.ErrorIs(t, err, hosts.ErrLost)
			require.ErrorContains(t, err, c.want)
			require.NoError(t, r.Close())
		})
	}
}

// framed returns data of the control stream.
func framed(text string) string {
	h := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 1), 1<<24|uint32(len(text)))
	return string(h) + text
}

// TestInputWithoutFramesEndsAgent expects an agent to end if its client does not speak the protocol.
func TestInputWithoutFramesEndsAgent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := serveRaw(t.Context(), t, newHost(nil))
		r.hello()
		_, err := io.WriteString(r.pipe, "SSH-2.0-OpenSSH_9.2\r\n")
		require.NoError(t, err)
		require.ErrorContains(t, <-r.served, "malformed frame")
	})
}

func TestHelloWaitCanBeCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		pr, pw := io.Pipe()
		defer pw.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := NewRemote(ctx, "beta", &closer{deaf{Reader: pr}, pr}, func(string) {})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "beta")
	})
}

type closer struct {
	deaf
	r *io.PipeReader
}

func (c *closer) Close() error { return c.r.Close() }

// writes receives the data of each call of Write.
type writes chan string

func (w writes) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// TestQueuedMessagesAreWrittenTogether expects that queued messages are written together, because each write
// through a remote shell is a packet.
func TestQueuedMessagesAreWrittenTogether(t *testing.T) {
	t.Parallel()
	c := newSession(t.Context(), nil, nil)
	for _, m := range []string{"progress", "result", "pong"} {
		c.queue <- []byte(m)
	}
	out := make(writes, 3)
	go c.write(out)
	require.Equal(t, "progressresultpong", <-out)
	close(c.ended)
}
