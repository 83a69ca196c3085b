package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer/transfertest"
)

// newLine creates a link between two new network namespaces.
func newLine(t *testing.T, s lineShape) (*delayLine, lineEnd, lineEnd) {
	t.Helper()
	testenv.NeedsRoot(t, "to make network namespaces")
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs TUN devices: %v", err)
	}
	host := func(name, address string) lineEnd {
		return lineEnd{Namespace: fmt.Sprintf("zxline-%d-%s", os.Getpid(), name), Device: fmt.Sprintf("zxline%x%s", os.Getpid(), name), Address: netip.MustParsePrefix(address)}
	}
	a, b := host("a", "10.79.0.1/24"), host("b", "10.79.0.2/24")
	l, err := newDelayLine(a, b, s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, a, b
}

// dialLine opens a TCP connection from a to b.
func dialLine(t *testing.T, a, b lineEnd) (client, server net.Conn) {
	t.Helper()
	var l net.Listener
	require.NoError(t, inNetns(b.Namespace, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(b.Address.Addr(), 0).String())
		return err
	}))
	defer l.Close()
	require.NoError(t, inNetns(a.Namespace, func() (err error) {
		client, err = net.Dial("tcp", l.Addr().String())
		return err
	}))
	t.Cleanup(func() { _ = client.Close() })
	server, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

// TestDelayLine sends bytes over a link and back. It expects round trips of at least twice the
// delay, and all bytes.
func TestDelayLine(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	shape := lineShape{Rate: 1e9, Delay: 10 * time.Millisecond, Queue: 5 << 20}
	l, a, b := newLine(t, shape)
	client, server := dialLine(t, a, b)
	for range 3 {
		start, p := time.Now(), make([]byte, 1)
		for _, step := range []func([]byte) (int, error){client.Write, server.Read, server.Write, client.Read} {
			_, err := step(p)
			require.NoError(t, err)
		}
		require.GreaterOrEqual(t, time.Since(start), 2*shape.Delay)
	}
	l.Record()
	want := transfertest.Random(size)
	go func() {
		_, _ = client.Write(want) // a failure shows in the received data
		_ = client.Close()
	}()
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	forward, _ := l.Record()
	require.GreaterOrEqual(t, forward.Bytes, int64(size))
}

// TestDelayLineQueue expects a packet to wait for earlier ones. If the queue is full, the
// packet is dropped.
func TestDelayLineQueue(t *testing.T) {
	t.Parallel()
	w := newLineDirection(nil, nil, lineShape{Rate: 8e6, Delay: time.Second, Queue: 1500})
	now := time.Now()
	p := linePacket{data: make([]byte, tunHeader+1000)} // takes 1 ms at that rate
	for i := 1; i <= 2; i++ {
		require.True(t, w.admit(&p, now))
		require.Equal(t, time.Second+time.Duration(i)*time.Millisecond, p.due.Sub(now))
	}
	require.False(t, w.admit(&p, now), "the queue is full")
	require.True(t, w.admit(&p, now.Add(time.Millisecond)), "the queue has space")
	require.EqualValues(t, 1, w.take().Dropped)
	require.Zero(t, w.take().Dropped)
	w.set(lineShape{Rate: 8e9, Queue: 1})
	require.True(t, w.admit(&p, now))
	require.Equal(t, time.Microsecond, p.due.Sub(now))
}

func TestDelayLineOnWire(t *testing.T) {
	t.Parallel()
	p := make([]byte, tunHeader+54+3*1448)
	require.EqualValues(t, 54+3*1448, onWire(p))
	p[1], p[2], p[4], p[5] = 1, 54, 1448&255, 1448>>8 // little-endian, like all machines that run these tests
	require.EqualValues(t, 3*(54+1448), onWire(p))
	p = append(p, 0) // a fourth segment with one byte
	require.EqualValues(t, 3*(54+1448)+55, onWire(p))
}

func TestDelayLineErrors(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, inNetns("zxline-nosuch", func() error { return nil }), os.ErrNotExist)
	_, err := openTun("a-name-of-more-than-15-bytes")
	require.Error(t, err)
}
