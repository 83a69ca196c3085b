package probe

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// TestLink measures a link over loopback, and expects both ends to report the amount and the time
// of each stage. The test does not check rates.
func TestLink(t *testing.T) {
	t.Parallel()
	l, err := tcp.Listen(t.Context(), tcp.Kernel{}, tcp.Offer{Mode: tcp.Signed, Streams: 2, Address: "127.0.0.1", Deadline: testenv.Timeout()}, nil)
	require.NoError(t, err)
	defer l.Close()
	sent := make(chan transfer.Result, 1)
	go func() {
		defer close(sent)
		link, err := tcp.Dial(t.Context(), tcp.Kernel{}, l.Ticket())
		if err != nil {
			return
		}
		defer link.Close()
		// Like SendNoise, but with the minimum for a rate, even on a slow machine.
		c, err := withHost(t.Context(), link, func() (transfer.Result, error) { return sendLink(t.Context(), link, short, loopbackMin) })
		if err == nil {
			sent <- c
		}
	}()
	link, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer link.Close()
	received, err := ReceiveNoise(t.Context(), link)
	require.NoError(t, err)
	require.Positive(t, received.NoiseRate.Bytes)
	require.Positive(t, received.NoiseRate.Seconds)
	c, ok := <-sent
	require.True(t, ok, "the sender failed")
	require.Equal(t, 2, c.Network.Streams)
	require.Equal(t, "lo", c.Network.Interface)
	require.Equal(t, c.Network.InterfaceMTU, received.Network.InterfaceMTU)
	require.Positive(t, c.Network.PathMTU)
	require.NotEmpty(t, c.Stages)
	require.NotEmpty(t, received.Stages)
}

// TestTimedSource reads a source whose time has passed, and expects that it still returns the
// minimum for a rate.
func TestTimedSource(t *testing.T) {
	t.Parallel()
	s := &timedSource{data: noise(block), minBytes: 3 * block}
	n, err := io.Copy(io.Discard, s)
	require.NoError(t, err)
	require.EqualValues(t, 3*block, n)
}

// TestDiscardRate expects that bytes that arrived before the first write do not count.
func TestDiscardRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDiscardRate)
}

func testDiscardRate(t *testing.T) {
	arrived := uint64(300)
	d := &discard{received: func() uint64 { return arrived }}
	bytes, _ := d.rate(0, 0)
	require.Zero(t, bytes)
	_, _ = d.Write(nil)
	arrived = 1200
	time.Sleep(time.Millisecond)
	_, _ = d.Write(nil)
	bytes, seconds := d.rate(1000, arrived)
	require.EqualValues(t, 750, bytes)
	require.InDelta(t, 0.001, seconds, 0)
	bytes, _ = d.rate(1000, 200)
	require.Zero(t, bytes, "the kernel reports an impossible value")
}
