package preflight

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// hosts gives both ends of an input what their files tell.
func hosts(in *Input, change func(source, target *sysinfo.System)) {
	usual := func() *sysinfo.System {
		return &sysinfo.System{Platform: "linux/amd64", ZFS: "2.3.9-1", Userland: "2.3.9-1", DevZFS: "ok",
			TCP: sysinfo.TCP{ReadMax: 6 << 20, WriteMax: 4 << 20, Scaling: "1"}}
	}
	in.Source.System, in.Target.System = usual(), usual()
	change(in.Source.System, in.Target.System)
}

// What is wrong with a host is told of a transfer too; what is well, or only
// of interest, is not.
func TestHostsOfATransfer(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		change       func(source, target *sysinfo.System)
		send, device []string
	}{
		{"all is well", func(_, _ *sysinfo.System) {}, nil, nil},
		{"an old ZFS without vector registers", func(_, b *sysinfo.System) { b.ZFS, b.Userland, b.Kernel = "0.8.1", "0.8.1", "5.4.0" },
			[]string{"fail fpu@beta"}, nil},
		{"no ZFS where a device is copied", func(a, _ *sysinfo.System) { a.ZFS, a.Tools.Paths = "", map[string]string{"zfs": "/sbin/zfs"} },
			[]string{"fail zfs-module@alpha"}, nil},
		{"half duplex", func(a, _ *sysinfo.System) { a.Links = []sysinfo.Link{{Name: "eth0", Duplex: "half"}} },
			[]string{"warn nic@alpha"}, []string{"warn nic@alpha"}},
		{"no window scaling", func(_, b *sysinfo.System) { b.TCP.Scaling = "0" },
			[]string{"warn tcp-scaling@beta"}, []string{"warn tcp-scaling@beta"}},
		{"FreeBSD", func(_, b *sysinfo.System) { b.Platform = "freebsd/amd64" },
			[]string{"fail platform@beta"}, []string{"fail platform@beta"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := sound()
			hosts(&in, tt.change)
			require.Equal(t, tt.send, ids(Send(in)))
			require.Equal(t, tt.device, ids(Device(in)))
		})
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		rtt     time.Duration
		streams int
		change  func(source, target *sysinfo.System)
		want    string // "" = nothing to find
	}{
		{"near", time.Millisecond, 1, func(_, _ *sysinfo.System) {}, ""},
		{"unknown round trip", 0, 1, func(_, _ *sysinfo.System) {}, ""},
		{"far, enough for 1 Gbit/s", 20 * time.Millisecond, 1, func(_, _ *sysinfo.System) {}, ""},
		{"far, one stream", 100 * time.Millisecond, 1, func(_, _ *sysinfo.System) {}, "windows of 4.0 MiB allow at most 40 MiB/s over a round trip of 100ms with {{streams 1}}"},
		{"far, enough streams", 100 * time.Millisecond, 8, func(_, _ *sysinfo.System) {}, ""},
		{"a faster network", 20 * time.Millisecond, 4, func(a, b *sysinfo.System) {
			a.Links, b.Links = []sysinfo.Link{{Name: "e", Speed: 25000}}, []sysinfo.Link{{Name: "e", Speed: 10000}}
		}, "800 MiB/s"},
		{"the receiver's limit", 20 * time.Millisecond, 1, func(_, b *sysinfo.System) { b.TCP.ReadMax = 128 << 10 }, "windows of 128 KiB allow at most 6.3 MiB/s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := sound()
			hosts(&in, tt.change)
			in.RTT, in.Streams = tt.rtt, tt.streams
			found := window(&in)
			if tt.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Contains(t, found[0].Summary, tt.want)
			require.Contains(t, found[0].Remedy, "sysctl -w net.ipv4.tcp_rmem")
		})
	}
	in := sound()
	in.RTT, in.Streams = time.Second, 1
	require.Empty(t, window(&in), "hosts that do not tell")
}

func TestHolds(t *testing.T) {
	t.Parallel()
	snapshot := func(name string, guid uint64) zfs.Version {
		return zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: guid, CreateTXG: guid}
	}
	in := sound()
	in.SourceListing.Datasets[0].Versions = []zfs.Version{snapshot("a", 1), snapshot("b", 2), snapshot("c", 3), snapshot("d", 4)}
	there := filesystem("vault/a")
	there.Versions = []zfs.Version{snapshot("a", 1), snapshot("c", 3)}
	in.TargetListing.Datasets = []*zfs.Dataset{there}
	tests := []struct {
		name  string
		holds map[string][]string
		want  string
		also  string // in summary and remedy
	}{
		{"not asked", nil, "", ""},
		{"the base", map[string][]string{"tank/a@c": {"zxfer:home:vault"}}, "", ""},
		{"newer than the base", map[string][]string{"tank/a@d": {"zxfer:home:vault"}}, "", ""},
		{"a user's own", map[string][]string{"tank/a@a": {"keep", "zrepl_x"}}, "", ""},
		{"left behind", map[string][]string{"tank/a@a": {"zxfer:home:vault"}, "tank/a@c": {"zxfer:home:vault"}},
			"holds of zxfer's jobs keep what this target does not need: tank/a@a", "zfs release zxfer:home:vault tank/a@a"},
		{"another target's, perhaps", map[string][]string{"tank/a@b": {"zxfer:home:other"}, "tank/a@c": {"zxfer:home:vault"}},
			"tank/a@b; another target may", "zfs release zxfer:home:other tank/a@b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := in
			in.Holds = tt.holds
			found := holds(&in)
			if tt.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Contains(t, found[0].Summary, tt.want)
			require.Contains(t, found[0].Remedy, tt.also)
		})
	}
}

func TestFeatures(t *testing.T) {
	t.Parallel()
	all := map[string]string{"large_blocks": "active", "zstd_compress": "active", "large_dnode": "active", "encryption": "active", "longname": "active"}
	tests := []struct {
		name      string
		target    map[string]string
		encrypted bool
		want      []string
	}{
		{"unknown", nil, true, nil},
		{"the same", map[string]string{"large_blocks": "enabled", "zstd_compress": "active", "large_dnode": "enabled", "encryption": "enabled", "longname": "enabled"}, true, nil},
		{"disabled", map[string]string{"large_blocks": "disabled", "zstd_compress": "active", "large_dnode": "enabled", "encryption": "enabled", "longname": "enabled"}, true,
			[]string{"note large_blocks"}},
		{"an older ZFS", map[string]string{"large_blocks": "enabled", "large_dnode": "disabled"}, false,
			[]string{"note zstd_compress", "warn large_dnode", "warn longname"}},
		{"an older ZFS, encrypted", map[string]string{"large_blocks": "enabled", "large_dnode": "enabled"}, true,
			[]string{"note zstd_compress", "warn longname", "warn encryption"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := sound()
			in.SourceListing.Pool.Features, in.TargetListing.Pool.Features = all, tt.target
			in.Plan.Datasets[0].Encrypted = tt.encrypted
			found := features(&in)
			require.Len(t, found, len(tt.want), "%+v", found)
			for i, f := range found {
				require.Contains(t, tt.want[i], string(f.Severity))
				require.Contains(t, f.Summary, "feature "+tt.want[i][5:]+",")
				require.NotEmpty(t, f.Remedy)
			}
		})
	}
}

func TestMTU(t *testing.T) {
	t.Parallel()
	judged := func(l Measured) []finding.Finding {
		return Doctor(Input{Links: []Measured{l}}, func(id string) bool { return id != "mtu" })
	}
	l := Measured{Link: Link{From: "alpha", To: "beta", PathMTU: 1500, Interface: "eth0", MTU: 1500, PeerInterface: "eth1", PeerMTU: 1500}}
	require.Equal(t, []string{"ok mtu@alpha"}, ids(judged(l)))
	tunnel := l
	tunnel.PathMTU = 1420
	require.Equal(t, []string{"note mtu@alpha"}, ids(judged(tunnel)))
	require.Contains(t, judged(tunnel)[0].Remedy, "ip link set dev eth0 mtu 1420")
	jumbo := l
	jumbo.PathMTU, jumbo.MTU = 9000, 9000
	require.Contains(t, judged(jumbo)[0].Remedy, "on beta: ip link set dev eth1 mtu 9000")
	back := tunnel
	back.Back = true
	require.Empty(t, judged(back), "one direction tells")
	require.Empty(t, judged(Measured{Link: Link{PathMTU: 1500}}))
}

// A link that was measured is judged by the table as all else is; of a transfer
// only what is wrong is told, and of the way back nothing is serious.
func TestMeasuredLinks(t *testing.T) {
	t.Parallel()
	short := Measured{Link: Link{From: "alpha", To: "beta", BytesPerSecond: 1, Streams: 1, Limit: "network (receiver window)"}}
	back := short
	back.From, back.To, back.Back = "beta", "alpha", true
	fast := Measured{Link: Link{From: "alpha", To: "beta", BytesPerSecond: 1, Streams: 1, Limit: "network"}}
	failed := Measured{Link: Link{From: "alpha"}, Failed: "connection refused"}
	in := sound()
	in.Links = []Measured{short, back, fast, failed}
	want := []string{"warn link@alpha", "note link@beta", "fail link@alpha"}
	require.Equal(t, want, ids(Send(in)))
	require.Equal(t, want, ids(Device(in)))
	require.Equal(t, []string{"fail link@alpha"}, ids(Blocking(Device(in), nil)))
	require.Empty(t, Blocking(Device(in), []string{"link"}))
	require.Subset(t, ids(Doctor(in, func(string) bool { return false })), append(want, "ok link@alpha"))
}

// What holds a link back shows in what more streams had of it.
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
		{"as fast as the path", base, nil, "which is what the path carries", ""},
		{"a processor", with(func(l *Link) { l.Limit = "sender cpu" }), nil, "limited by the sender cpu, not by the network", ""},
		{"a processor of several", spare, []Link{tried(spare, 4, 38*mb)}, "limited by the sender cpu, of which each stream has one", "{{streams 4}} (measured: 36 MiB/s)"},
		{"a processor of several, and the network", spare, []Link{tried(base, 4, 11*mb)}, "limited by the sender cpu, not by the network", ""},
		{"a processor of several, not tried", spare, nil, "limited by the sender cpu, not by the network", ""},
		{"window", window, []Link{tried(window, 4, 40*mb), tried(window, 16, 120*mb)}, "limited by the receiver's window",
			"{{streams 16}} (measured: 114 MiB/s); or for as much or more, on beta: sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216'"},
		{"window, then a full path", window, []Link{tried(window, 4, 40*mb), tried(window, 16, 42*mb)}, "limited by the receiver's window",
			"{{streams 4}} (measured: 38 MiB/s); or for as much, on beta: sysctl -w net.ipv4.tcp_rmem='4096 131072 8388608'"},
		{"memory", with(func(l *Link) { l.Limit = "target" }), nil, "limited by the receiver cpu, not by the network", ""},
		{"window, then a processor", window, []Link{with(func(l *Link) { l.Limit, l.Streams = "source", 4 })},
			"and little more with 4 streams, limited by the sender cpu", ""},
		{"window of a full path", window, []Link{tried(window, 4, 11*mb)}, "which is what the path carries", ""},
		{"window, not tried", window, nil, "limited by the receiver's window", "on beta: sysctl -w net.ipv4.tcp_rmem='4096 131072 8388608'"},
		{"window, and the other is next", window, []Link{tried(window, 4, 200*mb)}, "limited by the receiver's window",
			"{{streams 4}} (measured: 191 MiB/s); or for as much or more, on beta: sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216', and on alpha: sysctl -w net.ipv4.tcp_wmem='4096 16384 16777216'"},
		{"window that was asked for", with(func(l *Link) { l.Limit, l.Window = window.Limit, 65536 }), []Link{tried(window, 4, 20*mb)}, "limited by the receiver's window",
			"{{streams 4}} (measured: 19 MiB/s); or for as much, without {{window}}, which fixes both buffers"},
		{"send buffer", buffer, []Link{tried(buffer, 4, 40*mb)}, "limited by the sender's buffer",
			"{{streams 4}} (measured: 38 MiB/s); or for as much or more, on alpha: sysctl -w net.ipv4.tcp_wmem='4096 16384 8388608'"},
		{"send buffer, not tried", buffer, nil, "limited by the sender's buffer",
			"on alpha: sysctl -w net.ipv4.tcp_wmem='4096 16384 8388608'"},
		{"losses", losses, []Link{tried(losses, 4, 35*mb)}, "500 segments were lost on the way",
			"{{streams 4}} (measured: 33 MiB/s); or on alpha: modprobe tcp_bbr && sysctl -w net.ipv4.tcp_congestion_control=bbr"},
		{"losses with bbr", with(func(l *Link) { l.Retransmits, l.Congestion = 500, "bbr" }), nil, "500 segments were lost on the way", "look for a bad cable, two ends that differ in duplex, a policer on the way"},
		{"losses of a full path", losses, []Link{tried(losses, 4, 11*mb)}, "which is what the path carries", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := carries(&Measured{Link: tt.link, More: tt.more})[0]
			require.Equal(t, tt.remedy, f.Remedy)
			require.Contains(t, f.Summary, ", "+tt.summary)
			require.Equal(t, map[bool]finding.Severity{true: finding.OK, false: finding.Warn}[tt.remedy == ""], f.Severity)
		})
	}
}

// What is mounted where the target would be hides what arrives; but not of a
// dataset that is never mounted, such as the top of a pool that holds "/".
func TestCovered(t *testing.T) {
	t.Parallel()
	for canmount, want := range map[string][]string{"on": {"warn covered@beta"}, "noauto": {"warn covered@beta"}, "off": nil} {
		t.Run(canmount, func(t *testing.T) {
			t.Parallel()
			in := sound()
			hosts(&in, func(_, b *sysinfo.System) {
				b.Mounts = []sysinfo.Mount{{Device: "rpool/ROOT/debian", Point: "/", Type: "zfs"}}
			})
			in.TargetListing = zfs.Listing{Root: "rpool", Datasets: []*zfs.Dataset{{Name: "rpool", Type: zfs.Filesystem, Properties: map[string]zfs.Property{
				"mountpoint": {Value: "/"}, "canmount": {Value: canmount}, "available": {Value: "1000000000000"},
			}}}}
			found := Send(in)
			require.Equal(t, want, ids(found))
			for _, f := range found {
				require.NotEmpty(t, f.Remedy)
			}
		})
	}
}
