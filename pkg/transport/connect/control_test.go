package connect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// TestSmallConditions expects that a stream goes into the control connection only if it is small, one host is local, both run
// zxfer, and the user requested nothing about the data connection.
func TestSmallConditions(t *testing.T) {
	t.Parallel()
	facts := hosts.Facts{SSHLocal: "10.0.0.2", SSHPeer: "10.0.0.1", TCP: tcp.TCP{Congestion: []string{"cubic"}}}
	link := func(w transport.Settings, source, target string) Link {
		return mustChoose(t, w, side(source, facts), side(target, facts))
	}
	for _, w := range []transport.Settings{{}, {Wire: "auto"}, {Wire: "ssh"}, {Compress: "zstd"}, {Buffer: 1 << 20}, {Bandwidth: 1 << 20}, {Dial: "auto"}} {
		for _, ends := range [][2]string{{"", "b"}, {"b", ""}} {
			l, ok := link(w, ends[0], ends[1]).Small(smallSize)
			require.True(t, ok, "%+v", w)
			require.Equal(t, Report{Mode: "ssh", Why: "small: within the control connection"}, l.Report(true, true))
		}
	}
	for _, bytes := range []uint64{0, smallSize + 1} {
		_, ok := link(transport.Settings{}, "", "b").Small(bytes)
		require.False(t, ok, bytes)
	}
	_, ok := link(transport.Settings{}, "a", "b").Small(1)
	require.False(t, ok, "between two remote hosts")
	for _, w := range []transport.Settings{{Wire: "tls"}, {Wire: "signed"}, {Wire: "plain", TrustedLink: true}, {Streams: 2}, {Dial: "source"}, {Bandwidth: 1000}, {DataAddress: "10.0.0.2"},
		{Ports: transport.Ports{Low: 7000, High: 7001}}, {Socket: transport.Socket{Window: 1 << 20}}, {Socket: transport.Socket{Congestion: "cubic"}}} {
		_, ok := link(w, "", "b").Small(1001)
		require.False(t, ok, "%+v", w)
	}
	none := facts
	none.NoAgent = "its system is FreeBSD"
	_, ok = mustChoose(t, transport.Settings{}, side("", facts), side("b", none)).Small(1)
	require.False(t, ok, "a host without zxfer")
}
