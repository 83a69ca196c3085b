package preflight

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/transport"
)

// TestNetworkPath expects that a network path other than the first choice is reported, and that the job
// stops without a path.
func TestNetworkPath(t *testing.T) {
	t.Parallel()
	shut := []string{"from alpha to beta: timeout"}
	for _, tt := range []struct {
		name            string
		way             transport.PathSearch
		severity        finding.Severity
		summary, remedy string
	}{
		{"no search", transport.PathSearch{}, "", "", ""},
		{"the first", transport.PathSearch{Path: "from alpha to beta"}, finding.OK, "data passes from alpha to beta", ""},
		{"the other direction", transport.PathSearch{Path: "from beta to alpha", Rejected: shut, Listen: "beta", Option: "{{dial target}}"}, finding.Note, "the connection is made from beta to alpha, because the other direction failed", "open ports for the other host and name them: {{port-range LOW-HIGH}}\nor skip the search: {{dial target}}"},
		{"the other direction, unreachable address", transport.PathSearch{Path: "from beta to alpha", Rejected: shut, Unroutable: true, Listen: "beta", Option: "{{dial target}}"}, finding.Note, "the connection is made from beta to alpha", "name an address that the other host can reach: {{data-address ADDRESS}}\nor skip the search: {{dial target}}"},
		{"ssh", transport.PathSearch{Path: "through ssh", Rejected: shut, OverSSH: true, Option: "{{wire ssh}}"}, finding.Warn, "only ssh gets through", "{{wire ssh}}"},
		{"none", transport.PathSearch{Path: "from alpha to beta", Rejected: shut, NoPath: true, Untried: []string{"{{dial target}}"}}, finding.Fail, "from alpha to beta: timeout", "{{dial target}}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := validInput()
			in.Path = tt.way
			var got finding.Finding
			for _, f := range Doctor(in, func(id string) bool { return id != PathID }) {
				got = f
			}
			require.Equal(t, tt.severity, got.Severity)
			require.Contains(t, got.Summary, tt.summary)
			require.Contains(t, got.Remedy, tt.remedy)
			require.False(t, got.Evidence != "" && strings.Contains(got.Summary, got.Evidence), "repeated: %s", got.Evidence)
			told := tt.severity.Compare(finding.Note) >= 0
			for _, checks := range []func(Input) []finding.Finding{Send, Device} {
				found := checks(in)
				require.Equal(t, told, len(found) == 1, "%v", found)
				require.Equal(t, tt.way.NoPath, len(Blocking(found, nil)) == 1)
				require.Empty(t, Blocking(found, []string{PathID}))
			}
		})
	}
}

func TestMTU(t *testing.T) {
	t.Parallel()
	judged := func(l MeasuredLink) []finding.Finding {
		return Doctor(Input{Links: []MeasuredLink{l}}, func(id string) bool { return id != "mtu" })
	}
	l := MeasuredLink{Link: Link{From: "alpha", To: "beta", PathMTU: 1500, Interface: "eth0", MTU: 1500, PeerInterface: "eth1", PeerMTU: 1500}}
	require.Equal(t, []string{"ok mtu@alpha"}, ids(judged(l)))
	tunnel := l
	tunnel.PathMTU = 1420
	require.Equal(t, []string{"note mtu@alpha"}, ids(judged(tunnel)))
	require.Contains(t, judged(tunnel)[0].Remedy, "ip link set dev eth0 mtu 1420")
	jumbo := l
	jumbo.PathMTU, jumbo.MTU = 9000, 9000
	require.Contains(t, judged(jumbo)[0].Remedy, "on beta: ip link set dev eth1 mtu 9000")
	back := tunnel
	back.Reverse = true
	require.Empty(t, judged(back), "one direction suffices")
	require.Empty(t, judged(MeasuredLink{Link: Link{PathMTU: 1500}}))
}

// TestMeasuredLinks expects that the table's limits apply to measured links. A send reports only
// problems, and a problem of the opposite direction does not prevent it.
func TestMeasuredLinks(t *testing.T) {
	t.Parallel()
	short := MeasuredLink{Link: Link{From: "alpha", To: "beta", BytesPerSecond: 1, Streams: 1, Limit: "network (receiver window)"}}
	back := short
	back.From, back.To, back.Reverse = "beta", "alpha", true
	fast := MeasuredLink{Link: Link{From: "alpha", To: "beta", BytesPerSecond: 1, Streams: 1, Limit: "network"}}
	failed := MeasuredLink{Link: Link{From: "alpha"}, Failed: "connection refused"}
	in := validInput()
	in.Links = []MeasuredLink{short, back, fast, failed}
	want := []string{"warn link@alpha", "note link@beta", "fail link@alpha"}
	require.Equal(t, want, ids(Send(in)))
	require.Equal(t, want, ids(Device(in)))
	require.Equal(t, []string{"fail link@alpha"}, ids(Blocking(Device(in), nil)))
	require.Empty(t, Blocking(Device(in), []string{"link"}))
	require.Subset(t, ids(Doctor(in, func(string) bool { return false })), append(want, "ok link@alpha"))
}

// TestLink expects that measurements with more streams show whether something limits each stream.
func TestLink(t *testing.T) {
	t.Parallel()
	const mb = 1_000_000
	base := Link{From: "alpha", To: "beta", BytesPerSecond: 10 * mb, Streams: 1, Seconds: 1, Limit: "network", RTT: 20 * time.Millisecond,
		WriteMax: 4 << 20, ReadMax: 6 << 20}
	with := func(f func(*Link)) Link {
		l := base
		f(&l)
		return l
	}
	tried := func(l Link, streams int, rate uint64) Link {
		l.Streams, l.BytesPerSecond = streams, rate
		return l
	}
	window := with(func(l *Link) { l.Limit = "network (receiver window)" })
	buffer := with(func(l *Link) { l.Limit = "network (send buffer)" })
	losses := with(func(l *Link) { l.Retransmits = 500 })
	spare := with(func(l *Link) { l.Limit, l.Spare = "sender cpu", true })
	for _, tt := range []struct {
		name    string
		link    Link
		more    []Link
		summary string
		remedy  string
	}{
		{"as fast as the path", base, nil, "the capacity of the network path", ""},
		{"a processor", with(func(l *Link) { l.Limit = "sender cpu" }), nil, "limited by the sender cpu, not by the network", ""},
		{"a processor of several", spare, []Link{tried(spare, 4, 38*mb)}, "limited by the sender cpu, one per stream", "{{streams 4}} (measured: 36 MiB/s)"},
		{"a processor of several, and the network", spare, []Link{tried(base, 4, 11*mb)}, "limited by the sender cpu, not by the network", ""},
		{"a processor of several, not tried", spare, nil, "limited by the sender cpu, not by the network", ""},
		{"window", window, []Link{tried(window, 4, 40*mb), tried(window, 16, 120*mb)}, "limited by the receiver's window",
			"{{streams 16}} (measured: 114 MiB/s); or for the same rate or more, on beta: sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216'"},
		{"window, then a full path", window, []Link{tried(window, 4, 40*mb), tried(window, 16, 42*mb)}, "limited by the receiver's window",
			"{{streams 4}} (measured: 38 MiB/s); or for the same rate, on beta: sysctl -w net.ipv4.tcp_rmem='4096 131072 8388608'"},
		{"memory", with(func(l *Link) { l.Limit = "target" }), nil, "limited by the receiver cpu, not by the network", ""},
		{"window, then a processor", window, []Link{with(func(l *Link) { l.Limit, l.Streams = "source", 4 })},
			"and little more with 4 streams, limited by the sender cpu", ""},
		{"window of a full path", window, []Link{tried(window, 4, 11*mb)}, "the capacity of the network path", ""},
		{"window, not tried", window, nil, "limited by the receiver's window", "on beta: sysctl -w net.ipv4.tcp_rmem='4096 131072 8388608'"},
		{"window, and the other is next", window, []Link{tried(window, 4, 200*mb)}, "limited by the receiver's window",
			"{{streams 4}} (measured: 191 MiB/s); or for the same rate or more, on beta: sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216', and on alpha: sysctl -w net.ipv4.tcp_wmem='4096 16384 16777216'"},
		{"requested window", with(func(l *Link) { l.Limit, l.Window = window.Limit, 65536 }), []Link{tried(window, 4, 20*mb)}, "limited by the receiver's window",
			"{{streams 4}} (measured: 19 MiB/s); or for the same rate, omit {{window}}, which fixes both buffers"},
		{"send buffer", buffer, []Link{tried(buffer, 4, 40*mb)}, "limited by the sender's buffer",
			"{{streams 4}} (measured: 38 MiB/s); or for the same rate or more, on alpha: sysctl -w net.ipv4.tcp_wmem='4096 16384 8388608'"},
		{"send buffer, not tried", buffer, nil, "limited by the sender's buffer",
			"on alpha: sysctl -w net.ipv4.tcp_wmem='4096 16384 8388608'"},
		{"losses", losses, []Link{tried(losses, 4, 35*mb)}, "500 segments were lost",
			"{{streams 4}} (measured: 33 MiB/s); or on alpha: modprobe tcp_bbr && sysctl -w net.ipv4.tcp_congestion_control=bbr"},
		{"losses with bbr", with(func(l *Link) { l.Retransmits, l.Congestion = 500, "bbr" }), nil, "500 segments were lost", "check for a bad cable, a duplex mismatch, or a traffic policer"},
		{"losses of a full path", losses, []Link{tried(losses, 4, 11*mb)}, "the capacity of the network path", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := checkRate(&MeasuredLink{Link: tt.link, MoreStreams: tt.more})[0]
			require.Equal(t, tt.remedy, f.Remedy)
			require.Contains(t, f.Summary, ", "+tt.summary)
			require.Equal(t, map[bool]finding.Severity{true: finding.OK, false: finding.Warn}[tt.remedy == ""], f.Severity)
		})
	}
}
