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
	"zxfer/pkg/size"
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
				require.NoError(t, c.control(func(fd int) error {
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
	_, err := Listen(t.Context(), Kernel{}, Offer{Mode: Signed, Streams: 1, Address: "127.0.0.1", Deadline: time.Second, Socket: lacking}, nil)
	refused(err)
	l, _ := listen(t, Offer{Mode: Signed})
	ticket := l.Ticket()
	ticket.Socket = lacking
	_, err = Dial(t.Context(), Kernel{}, ticket)
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

// TestLossesCallForSwitch expects a switch after many losses, and after few ones that are not due to
// a queue. Each step is a later state of one link.
func TestLossesCallForSwitch(t *testing.T) {
	t.Parallel()
	const far, queue = 20 * time.Millisecond, 50 * time.Millisecond
	type step struct {
		rtt            time.Duration
		sent, lost     uint64
		callsForSwitch bool
	}
	for name, tt := range map[string]struct {
		congestion string
		minRTT     time.Duration
		steps      []step
	}{
		"many":                 {"cubic", far, []step{{queue, 4600, 900, false}, {queue, 9000, 914, false}, {queue, 9100, 915, true}}},
		"many in few segments": {"cubic", far, []step{{queue, 4600, 0, false}, {queue, 8600, 900, false}}},
		"the first segments":   {"cubic", far, []step{{far, 20_000, 9000, false}}},
		"the next ones":        {"cubic", far, []step{{far, 600, 0, false}, {queue, 4600, 900, false}, {queue, 9000, 905, false}}},
		"many on a LAN":        {"cubic", time.Millisecond, []step{{far, 4600, 0, false}, {queue, 9000, 900, false}}},
		"many with bbr":        {"bbr", far, []step{{far, 4600, 0, false}, {queue, 9000, 900, false}}},
		"few":                  {"reno", far, []step{{far, 600, 0, false}, {far, 3600, 3, false}, {far, 4000, 4, false}, {far, 9000, 8, true}}},
		"few with a queue":     {"cubic", far, []step{{far, 4600, 0, false}, {queue, 9000, 4, false}, {queue, 14_000, 8, false}}},
		"few, once":            {"cubic", far, []step{{far, 600, 0, false}, {far, 1200, 5, false}, {far, 14_000, 5, false}, {far, 15_000, 9, false}}},
		"fewer":                {"cubic", far, []step{{far, 4600, 0, false}, {far, 10_700, 4, false}, {far, 16_800, 8, false}}},
		"few in few segments":  {"cubic", far, []step{{far, 600, 0, false}, {far, 1111, 4, false}, {far, 1112, 4, false}, {far, 1623, 8, false}, {far, 1624, 8, true}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w lossWatch
			for i, s := range tt.steps {
				got := w.callForSwitch(Network{Congestion: tt.congestion, MinRTT: tt.minRTT, RTT: s.rtt, Segments: s.sent, Retransmits: s.lost})
				require.Equal(t, s.callsForSwitch, got, "step %d", i)
			}
		})
	}
}

// TestFarLink expects that a link with a long round trip offers a large window and holds little unsent
// data, and that it still moves data. A short round trip and a requested window change nothing.
func TestFarLink(t *testing.T) {
	t.Parallel()
	option := func(l *Link, level, name int) (values []int) {
		for _, c := range l.conns {
			require.NoError(t, c.control(func(fd int) error {
				v, err := unix.GetsockoptInt(fd, level, name)
				values = append(values, v)
				return err
			}))
		}
		return values
	}
	for name, tt := range map[string]struct {
		streams      int
		window       size.Size
		far          bool
		offers, hold bool
	}{
		"far":             {2, 0, true, true, true},
		"near":            {2, 0, false, false, false},
		"one connection":  {1, 0, true, true, false},
		"fixed by a user": {2, 64 << 10, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := listen(t, Offer{Mode: Signed, Streams: tt.streams, Socket: transport.Socket{Window: tt.window}})
			d, a := connect(t, l, l.Ticket())
			before := option(a, unix.SOL_SOCKET, unix.SO_RCVBUF)
			a.setReceiving(tt.far)
			d.setSending(tt.far)
			offered := min(farWindow, int(ReadTCP(os.DirFS("/")).TCPReadMax/2))
			for i, after := range option(a, unix.SOL_SOCKET, unix.SO_RCVBUF) {
				if tt.offers {
					require.GreaterOrEqual(t, after, offered)
				} else {
					require.Equal(t, before[i], after)
				}
			}
			for _, lowat := range option(a, unix.SOL_SOCKET, unix.SO_RCVLOWAT) {
				require.Equal(t, 1, lowat, "a read does not wait for more")
			}
			for _, unsent := range option(d, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) {
				require.Equal(t, tt.hold, unsent == maxUnsent)
			}
			for i := range d.conns {
				require.NoError(t, d.conns[i].WriteControl(Alive, 7, nil))
				h, err := a.conns[i].ReadFrame(NewBlock(MaxControl, 0))
				require.NoError(t, err)
				require.Equal(t, uint64(7), h.Position)
			}
		})
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
		require.Zero(t, d.losses)
	}
}
