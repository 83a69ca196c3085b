package authz

import (
	"math"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/size"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// TestOptionsAreBounded expects limits for the stream options of both ends of a transfer.
func TestOptionsAreBounded(t *testing.T) {
	t.Parallel()
	p, err := Parse([]string{"send=vault", "receive=vault"}, nil, true)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		options transfer.Options
		refused string
	}{
		"none":               {},
		"limits":             {options: transfer.Options{Stall: transfer.MaxStall, CompressThreads: math.MaxInt}},
		"negative threads":   {transfer.Options{CompressThreads: -1}, "-1 threads"},
		"negative buffer":    {transfer.Options{Buffer: -1}, "out of bounds"},
		"negative block":     {transfer.Options{Block: -1}, "out of bounds"},
		"negative bandwidth": {transfer.Options{BandLimit: -1}, "out of bounds"},
		"negative stall":     {transfer.Options{Stall: -1}, "out of bounds"},
		"long stall":         {transfer.Options{Stall: transfer.MaxStall + 1}, "out of bounds"},
	} {
		spec := zfs.SendSpec{Dataset: "vault/a", To: "x"}
		for end, task := range map[string]hosts.Task{
			"sends a stream":    {From: hosts.SendStream{Spec: spec, Options: tt.options}, To: hosts.Accept{Session: "s"}},
			"sends files":       {From: hosts.SendFiles{Archive: files.Archive{Snapshot: "vault/a@x"}, Options: tt.options}, To: hosts.Accept{Session: "s"}},
			"receives a stream": {From: hosts.Accept{Session: "s"}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "vault/a"}, Options: tt.options}},
		} {
			t.Run(name+" "+end, func(t *testing.T) {
				t.Parallel()
				err := mayTransfer(t.Context(), NewGuard(p, vault(), func(string) {}), &task)
				if tt.refused != "" {
					require.ErrorContains(t, err, tt.refused)
					return
				}
				require.NoError(t, err)
				var got transfer.Options
				switch e := task.From.(type) {
				case hosts.SendStream:
					got = e.Options
				case hosts.SendFiles:
					got = e.Options
				default:
					got = task.To.(hosts.ReceiveStream).Options
				}
				require.LessOrEqual(t, got.CompressThreads, runtime.NumCPU())
			})
		}
	}
}

// TestOffersAreBounded expects that a restricted agent listens on one address of its host, for
// permitted peers, with limits.
func TestOffersAreBounded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*tcp.Offer)
		refused string
	}{
		"usual":                {func(*tcp.Offer) {}, ""},
		"no peer":              {func(o *tcp.Offer) { o.Peer = "" }, ""},
		"any port":             {func(o *tcp.Offer) { o.PortLow, o.PortHigh = 0, 0 }, ""},
		"first free port":      {func(o *tcp.Offer) { o.PortLow = 1024 }, ""},
		"largest window":       {func(o *tcp.Offer) { o.Window = maxWindow }, ""},
		"longest deadline":     {func(o *tcp.Offer) { o.Deadline = maxDeadline }, ""},
		"any IPv4 address":     {func(o *tcp.Offer) { o.Address = "0.0.0.0" }, "must listen on one address"},
		"any IPv6 address":     {func(o *tcp.Offer) { o.Address = "::" }, "must listen on one address"},
		"multicast":            {func(o *tcp.Offer) { o.Address = "224.0.0.1" }, "must listen on one address"},
		"name":                 {func(o *tcp.Offer) { o.Address = "localhost" }, "must listen on one address"},
		"privileged port":      {func(o *tcp.Offer) { o.PortLow = 1023 }, "port 1023 is privileged"},
		"negative port":        {func(o *tcp.Offer) { o.PortLow = -1 }, "privileged"},
		"peer without a grant": {func(o *tcp.Offer) { o.Peer = "192.0.2.2" }, `"192.0.2.2" are`},
		"large window":         {func(o *tcp.Offer) { o.Window = maxWindow + 1 }, "a window of"},
		"negative window":      {func(o *tcp.Offer) { o.Window = -1 }, "a window of"},
		"long deadline":        {func(o *tcp.Offer) { o.Deadline = maxDeadline + 1 }, "a deadline of"},
		"negative deadline":    {func(o *tcp.Offer) { o.Deadline = -1 }, "a deadline of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewGuard(&Policy{Receive: []string{"vault"}, Peers: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}, emptyVault(), func(string) {})
			o := tcp.Offer{Mode: tcp.TLS, Streams: 1, Address: "192.0.2.9", PortLow: 5000, PortHigh: 5009, Peer: "192.0.2.1", Deadline: time.Second}
			tt.change(&o)
			err := mayOffer(t.Context(), g, &o)
			if tt.refused == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.refused)
			}
		})
	}
}

// TestTicketsAreBounded expects that a connection that a restricted agent opens has the limits of
// an offer.
func TestTicketsAreBounded(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Receive: []string{"vault"}, Peers: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, vault(), func(string) {})
	for name, tt := range map[string]struct {
		address  string
		window   size.Size
		deadline time.Duration
		refused  string
	}{
		"usual":             {"192.0.2.1:7", maxWindow, maxDeadline, ""},
		"no port":           {"192.0.2.1", 0, 0, "connect"},
		"not granted":       {"192.0.3.1:7", 0, 0, "connect"},
		"large window":      {"192.0.2.1:7", maxWindow + 1, 0, "a window of"},
		"long deadline":     {"192.0.2.1:7", 0, maxDeadline + 1, "a deadline of"},
		"negative deadline": {"192.0.2.1:7", 0, -1, "a deadline of"},
	} {
		end := hosts.Dial{Ticket: tcp.Ticket{Address: tt.address, Socket: transport.Socket{Window: tt.window}, Deadline: tt.deadline}}
		task := hosts.Task{From: end, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "vault/a"}}}
		err := mayTransfer(t.Context(), g, &task)
		if tt.refused == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, tt.refused, name)
		}
	}
}

// TestPeers expects peers to be addresses in any notation, or prefixes.
func TestPeers(t *testing.T) {
	t.Parallel()
	p, err := Parse([]string{"send=tank"}, []string{"::ffff:192.0.2.1", "fe80::1%eth0", "198.51.100.7/24"}, false)
	require.NoError(t, err)
	require.Equal(t, "--allow send=tank --peer 192.0.2.1 --peer fe80::1 --peer 198.51.100.0/24", p.String())
	require.True(t, p.isPeer("fe80::1%eth1"))
	require.False(t, p.isPeer(""))
	for _, bad := range []string{"", "localhost", "192.0.2.1/33", "192.0.2"} {
		_, err := Parse([]string{"send=tank"}, []string{bad}, false)
		require.ErrorContains(t, err, "is not an address", bad)
	}
	_, err = Parse(nil, []string{"192.0.2.1"}, false)
	require.ErrorContains(t, err, "--allow is missing")
	p, err = Parse(nil, nil, false)
	require.NoError(t, err, "no policy without an agent")
	require.Empty(t, p.Flags())
}
