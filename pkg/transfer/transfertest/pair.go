package transfertest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/tcp"
)

// Random returns n incompressible bytes, the same for each n.
func Random(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(p)
	return p
}

// Links returns both ends of a link over loopback. via, if not nil, returns the address of a
// proxy for the listener's address.
func Links(t testing.TB, mode tcp.Mode, streams int, via func(address string) string) (sender, receiver *tcp.Link) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Timeout())
	defer cancel()
	l, err := tcp.Listen(ctx, tcp.Offer{Mode: mode, Streams: streams, Address: "127.0.0.1", Deadline: testenv.Timeout()}, nil)
	require.NoError(t, err)
	ticket := l.Ticket()
	if via != nil {
		ticket.Address = via(ticket.Address)
	}
	type dialled struct {
		link *tcp.Link
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		link, err := tcp.Dial(ctx, ticket)
		done <- dialled{link, err}
	}()
	receiver, err = l.Accept(ctx)
	d := <-done
	require.NoError(t, d.err)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	t.Cleanup(func() { _ = d.link.Close(); _ = receiver.Close() })
	return d.link, receiver
}

// Text returns n bytes that compress well.
func Text(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "block %d of the dataset has %d bytes of nothing much\n", i, i%77)
	}
	return b.Bytes()[:n]
}

// CPUTime returns the processor time that this process has used.
func CPUTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
