package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport"
)

func TestLossy(t *testing.T) {
	t.Parallel()
	before := Network{Segments: 5000, Retransmits: 900}
	far := Network{Congestion: "cubic", MinRTT: 20 * time.Millisecond, Segments: 11_000, Retransmits: 920}
	require.True(t, far.lossy(before), "20 of 6,000")
	require.False(t, far.lossy(Network{}), "the first segments")
	for name, change := range map[string]func(*Network){
		"19 of 6,000": func(n *Network) { n.Retransmits-- },
		"near":        func(n *Network) { n.MinRTT = time.Millisecond },
		"another set": func(n *Network) { n.Congestion = "bbr" },
	} {
		n := far
		change(&n)
		require.False(t, n.lossy(before), name)
	}
}

// An algorithm that somebody chose stays, and what little was sent is not judged.
func TestMindLosses(t *testing.T) {
	t.Parallel()
	for _, asked := range []string{"", "reno"} {
		l, _ := listen(t, Offer{Mode: Signed, Streams: 2, Socket: transport.Socket{Congestion: asked}})
		d, _ := connect(t, l, l.Ticket())
		require.Equal(t, asked != "", d.chosen)
		was := d.Network().Congestion
		d.WatchLosses()
		require.Equal(t, was, d.Network().Congestion)
		require.Zero(t, d.minded)
	}
}
