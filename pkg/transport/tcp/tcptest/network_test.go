package tcptest_test

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/transport/tcp/tcptest"
)

const oneWay = 50 * time.Millisecond

// connect returns a network, a listener of beta, and both ends of a connection to it.
func connect(t *testing.T) (n *tcptest.Network, l tcp.Acceptor, near, far tcp.Socket) {
	n = &tcptest.Network{OneWay: oneWay}
	l, err := n.Host("10.0.0.2").Listen(t.Context(), tcp.Offer{Address: "10.0.0.2"})
	require.NoError(t, err)
	near, err = n.Host("10.0.0.1").Dial(t.Context(), l.Addr().String(), transport.Socket{})
	require.NoError(t, err)
	far, err = l.Accept()
	require.NoError(t, err)
	return n, l, near, far
}

// TestDelay expects a dial to take a round trip, and bytes and the end to take half of one.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, _, near, far := connect(t)
		require.Equal(t, 2*oneWay, time.Since(began))
		for _, text := range []string{"a", "bc"} {
			_, err := near.Write([]byte(text))
			require.NoError(t, err)
		}
		require.NoError(t, near.CloseWrite())
		_, err := near.Write([]byte("d"))
		require.ErrorIs(t, err, net.ErrClosed)
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Equal(t, "abc", string(got))
		require.Equal(t, 3*oneWay, time.Since(began))
		_, err = far.Write([]byte("e"))
		require.NoError(t, err, "the other direction is open")
	})
}

// TestRefusedDial expects an error after a round trip if no listener exists, and an immediate one if the
// context ends.
func TestRefusedDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, l, near, far := connect(t)
		began := time.Now()
		dial := func(ctx context.Context) error {
			_, err := n.Host("10.0.0.1").Dial(ctx, l.Addr().String(), transport.Socket{})
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*oneWay/2)
		defer cancel()
		require.ErrorIs(t, dial(ctx), context.DeadlineExceeded)
		n.Refuses = true
		require.ErrorIs(t, dial(t.Context()), syscall.ECONNREFUSED)
		n.Refuses = false
		require.NoError(t, l.Close())
		require.ErrorIs(t, dial(t.Context()), syscall.ECONNREFUSED)
		require.Equal(t, 3*oneWay/2+4*oneWay, time.Since(began))
		_, err := l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		require.Equal(t, 1, n.Open("10.0.0.1"))
		require.Equal(t, 1, n.Open("10.0.0.2"), "the listener dropped the connection that nobody accepted")
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
		require.Zero(t, n.Open("10.0.0.1")+n.Open("10.0.0.2"))
	})
}

// TestDeadline expects reads to end at their deadline and at Close.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, near, far := connect(t)
		require.NoError(t, far.SetDeadline(time.Now().Add(time.Second)))
		_, err := far.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, far.SetDeadline(time.Time{}))
		time.AfterFunc(time.Second, func() { _ = near.Close() })
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = far.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

// TestHandshakeRoundTrips expects that in each mode the dialer may send data after two round trips, one for TCP and
// one for the handshake, and that the listener then reads it after half of one.
func TestHandshakeRoundTrips(t *testing.T) {
	for _, mode := range []tcp.Mode{tcp.Signed, tcp.TLS, tcp.Plain} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &tcptest.Network{OneWay: oneWay}
				l, err := tcp.Listen(t.Context(), n.Host("10.0.0.2"), tcp.Offer{Mode: mode, Streams: 3, Address: "10.0.0.2"}, nil)
				require.NoError(t, err)
				defer l.Close()
				began := time.Now()
				near, err := tcp.Dial(t.Context(), n.Host("10.0.0.1"), l.Ticket())
				require.NoError(t, err)
				defer near.Close()
				require.Equal(t, 2*n.RTT(), time.Since(began))
				require.NoError(t, near.Conns()[2].WriteControl(tcp.Alive, 7, nil))
				far, err := l.Accept(t.Context())
				require.NoError(t, err)
				defer far.Close()
				h, err := far.Conns()[2].ReadFrame(tcp.NewBlock(1, 0))
				require.NoError(t, err)
				require.EqualValues(t, 7, h.Position)
				require.Equal(t, 2*n.RTT()+oneWay, time.Since(began))
			})
		})
	}
}
