package agent

import (
	"context"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// slowStack connects once connect is closed.
type slowStack struct {
	tcp.Kernel
	connect chan struct{}
}

func (s slowStack) Dial(ctx context.Context, address string, o transport.Socket) (tcp.Socket, error) {
	select {
	case <-s.connect:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return s.Kernel.Dial(ctx, address, o)
}

// TestForwardedDataOutlivesTheSession expects an agent to deliver what its client has written, such as the last
// confirmation of a stream, although the client ended the session right after it.
func TestForwardedDataOutlivesTheSession(t *testing.T) {
	t.Parallel()
	requests, requestsW, err := os.Pipe()
	require.NoError(t, err)
	answers, answersW, err := os.Pipe()
	require.NoError(t, err)
	stack := slowStack{connect: make(chan struct{})}
	local := hosts.NewLocal("test", func(string) {})
	local.SetStack(stack)
	server := &Server{Host: local, Version: "test"}
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(context.Background(), requests, answersW)
		_ = answersW.Close()
	}()
	r, err := NewRemote(t.Context(), "beta", &pipeTransport{answers, requestsW}, func(string) {})
	require.NoError(t, err)
	l, err := tcp.Kernel{}.Listen(t.Context(), tcp.Offer{Address: "127.0.0.1"})
	require.NoError(t, err)
	defer l.Close()
	s, err := r.Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	_, err = s.Write([]byte("confirmed"))
	require.NoError(t, err)
	require.NoError(t, s.CloseWrite())
	require.NoError(t, r.Close())
	require.Eventually(t, func() bool { c := server.session.Load(); c.mu.Lock(); defer c.mu.Unlock(); return c.closing }, testenv.Timeout(), time.Millisecond)
	close(stack.connect)
	c, err := l.Accept()
	require.NoError(t, err)
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "confirmed", string(got))
	require.NoError(t, c.Close())
	require.NoError(t, <-served)
}

// pipeTransport is a Transport over pipes. Its end does not wait for the agent.
type pipeTransport struct {
	*os.File
	requests *os.File
}

func (p *pipeTransport) Write(b []byte) (int, error) { return p.requests.Write(b) }

func (p *pipeTransport) Close() error { return p.requests.Close() }
