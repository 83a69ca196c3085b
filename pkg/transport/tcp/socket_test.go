package tcp

import (
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
)

// TestCongestionIsSetOnBothHosts expects the kernel to report the requested algorithm for the
// sockets of both hosts.
func TestCongestionIsSetOnBothHosts(t *testing.T) {
	t.Parallel()
	offered := ReadTCP(os.DirFS("/")).Congestion
	require.NotEmpty(t, offered)
	for _, name := range offered {
		l, _ := listen(t, Offer{Mode: Signed, Streams: 2, Socket: transport.Socket{Congestion: name}})
		d, a := connect(t, l, l.Ticket())
		for _, link := range []*Link{d, a} {
			for _, c := range link.conns {
				raw, err := c.tcp.SyscallConn()
				require.NoError(t, err)
				require.NoError(t, control(raw, func(fd int) error {
					got, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
					require.Equal(t, name, got)
					return err
				}))
			}
			require.Equal(t, name, link.Network().Congestion)
			_ = link.Close()
		}
	}
}

// TestUnavailableCongestion expects that if a kernel lacks the algorithm, its host refuses
// the transfer and lists the available ones.
func TestUnavailableCongestion(t *testing.T) {
	t.Parallel()
	lacking := transport.Socket{Congestion: "carrier_pigeon"}
	refused := func(err error) {
		t.Helper()
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, "{{congestion carrier_pigeon}}: the kernel offers "+strings.Join(ReadTCP(os.DirFS("/")).Congestion, ", "))
		require.Contains(t, fault.HintOf(err), "modprobe tcp_carrier_pigeon")
	}
	_, err := Listen(t.Context(), Offer{Mode: Signed, Streams: 1, Address: "127.0.0.1", Deadline: time.Second, Socket: lacking}, nil)
	refused(err)
	l, _ := listen(t, Offer{Mode: Signed})
	ticket := l.Ticket()
	ticket.Socket = lacking
	_, err = Dial(t.Context(), ticket)
	refused(err)
}

func TestTakes(t *testing.T) {
	t.Parallel()
	bbr := transport.Socket{Congestion: "bbr"}
	require.NoError(t, (&TCP{Congestion: []string{"cubic", "bbr"}}).Supports(bbr))
	require.NoError(t, new(TCP).Supports(transport.Socket{Window: 1 << 20}), "nothing new is requested of an older zxfer")
	require.ErrorContains(t, (&TCP{Congestion: []string{"reno", "cubic"}}).Supports(bbr), "{{congestion bbr}}: the kernel offers reno, cubic")
	var older, unreadable TCP
	require.NoError(t, json.Unmarshal([]byte(`{"tcp_read_max":5}`), &older))
	require.ErrorContains(t, older.Supports(bbr), "zxfer there is older and does not support it")
	unreadable = ReadTCP(fstest.MapFS{})
	require.ErrorContains(t, unreadable.Supports(bbr), "the kernel offers none by name")
	text, err := json.Marshal(Offer{Mode: Signed, Socket: transport.Socket{Window: 5}})
	require.NoError(t, err)
	require.Contains(t, string(text), `"window":5`)
	require.NotContains(t, string(text), "congestion", "an older zxfer gets no new field")
}

// TestRootWithoutCapabilities expects that root without CAP_NET_ADMIN, as in zxfer's own units, may
// request the same algorithms as other users.
func TestRootWithoutCapabilities(t *testing.T) {
	t.Parallel()
	testenv.NeedsRoot(t, "to give up capabilities")
	if !administersNetwork() {
		t.Skip("needs CAP_NET_ADMIN, to give it up")
	}
	root := fstest.MapFS{
		"proc/sys/net/ipv4/tcp_available_congestion_control": {Data: []byte("reno cubic bbr\n")},
		"proc/sys/net/ipv4/tcp_allowed_congestion_control":   {Data: []byte("reno cubic\n")},
		"proc/sys/net/ipv4/tcp_congestion_control":           {Data: []byte("cubic\n")},
	}
	require.Equal(t, []string{"reno", "cubic", "bbr"}, ReadTCP(root).Congestion)
	got := make(chan TCP)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread exits with its reduced capabilities
		var data [2]unix.CapUserData
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		assert.NoError(t, unix.Capget(&header, &data[0]))
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		assert.NoError(t, unix.Capset(&header, &data[0]))
		got <- ReadTCP(root)
	}()
	require.Equal(t, TCP{Congestion: []string{"reno", "cubic"}}, <-got)
}

func TestLossy(t *testing.T) {
	t.Parallel()
	previous := Network{Segments: 5000, Retransmits: 900}
	far := Network{Congestion: "cubic", MinRTT: 20 * time.Millisecond, Segments: 11_000, Retransmits: 920}
	require.True(t, far.lossy(previous), "20 of 6,000")
	require.False(t, far.lossy(Network{}), "the first segments")
	for name, change := range map[string]func(*Network){
		"19 of 6,000": func(n *Network) { n.Retransmits-- },
		"near":        func(n *Network) { n.MinRTT = time.Millisecond },
		"another set": func(n *Network) { n.Congestion = "bbr" },
	} {
		n := far
		change(&n)
		require.False(t, n.lossy(previous), name)
	}
}

// TestWatchLosses expects that WatchLosses keeps a requested algorithm, and draws no conclusion from
// few segments.
func TestWatchLosses(t *testing.T) {
	t.Parallel()
	for _, asked := range []string{"", "reno"} {
		l, _ := listen(t, Offer{Mode: Signed, Streams: 2, Socket: transport.Socket{Congestion: asked}})
		d, _ := connect(t, l, l.Ticket())
		require.Equal(t, asked != "", d.congestionFixed)
		was := d.Network().Congestion
		d.WatchLosses()
		require.Equal(t, was, d.Network().Congestion)
		require.Zero(t, d.lastChecked)
	}
}
