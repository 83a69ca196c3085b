package preflight

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// hosts sets the facts of both hosts.
func hosts(in *Input, change func(source, target *sysinfo.System)) {
	usual := func() *sysinfo.System {
		return &sysinfo.System{Platform: "linux/amd64", ZFS: "2.3.9-1", Userland: "2.3.9-1", DevZFS: "ok",
			TCP: sysinfo.TCP{ReadMax: 6 << 20, WriteMax: 4 << 20, Scaling: "1"}}
	}
	in.Source.System, in.Target.System = usual(), usual()
	change(in.Source.System, in.Target.System)
}

// TestTransferHosts expects that a send reports problems of a host, but not passed checks or
// notes.
func TestTransferHosts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		change       func(source, target *sysinfo.System)
		send, device []string
	}{
		{"no problems", func(_, _ *sysinfo.System) {}, nil, nil},
		{"an old ZFS without vector registers", func(_, b *sysinfo.System) { b.ZFS, b.Userland, b.Kernel = "0.8.1", "0.8.1", "5.4.0" },
			[]string{"fail fpu@beta"}, nil},
		{"device copy without ZFS", func(a, _ *sysinfo.System) { a.ZFS, a.Tools.Paths = "", map[string]string{"zfs": "/sbin/zfs"} },
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
			in := validInput()
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
		{"far, one stream", 100 * time.Millisecond, 1, func(_, _ *sysinfo.System) {}, "TCP windows of 4.0 MiB allow at most 40 MiB/s over a round trip of 100ms with {{streams 1}}"},
		{"far, enough streams", 100 * time.Millisecond, 8, func(_, _ *sysinfo.System) {}, ""},
		{"a faster network", 20 * time.Millisecond, 4, func(a, b *sysinfo.System) {
			a.Links, b.Links = []sysinfo.Link{{Name: "e", Speed: 25000}}, []sysinfo.Link{{Name: "e", Speed: 10000}}
		}, "800 MiB/s"},
		{"the receiver's limit", 20 * time.Millisecond, 1, func(_, b *sysinfo.System) { b.TCP.ReadMax = 128 << 10 }, "windows of 128 KiB allow at most 6.3 MiB/s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := validInput()
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
	in := validInput()
	in.RTT, in.Streams = time.Second, 1
	require.Empty(t, window(&in), "hosts that do not report it")
}

func TestHolds(t *testing.T) {
	t.Parallel()
	snapshot := func(name string, guid uint64) zfs.Version {
		return zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: guid, CreateTXG: guid}
	}
	in := validInput()
	in.SourceListing.Datasets[0].Versions = []zfs.Version{snapshot("a", 1), snapshot("b", 2), snapshot("c", 3), snapshot("d", 4)}
	targets := filesystem("vault/a")
	targets.Versions = []zfs.Version{snapshot("a", 1), snapshot("c", 3)}
	in.TargetListing.Datasets = []*zfs.Dataset{targets}
	tests := []struct {
		name  string
		holds map[string][]string
		want  string
		also  string // in summary and remedy
	}{
		{"not queried", nil, "", ""},
		{"the incremental source", map[string][]string{"tank/a@c": {"zxfer:home:vault"}}, "", ""},
		{"newer than the incremental source", map[string][]string{"tank/a@d": {"zxfer:home:vault"}}, "", ""},
		{"foreign hold", map[string][]string{"tank/a@a": {"keep", "zrepl_x"}}, "", ""},
		{"left over", map[string][]string{"tank/a@a": {"zxfer:home:vault"}, "tank/a@c": {"zxfer:home:vault"}},
			"holds of jobs keep snapshots that this target does not need: tank/a@a", "zfs release zxfer:home:vault tank/a@a"},
		{"possibly of another target", map[string][]string{"tank/a@b": {"zxfer:home:other"}, "tank/a@c": {"zxfer:home:vault"}},
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
			in := validInput()
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

// TestCovered expects a finding if a mount at the target's mountpoint hides received data. It does
// not matter for a dataset that is never mounted, such as the top of a pool that holds "/".
func TestCovered(t *testing.T) {
	t.Parallel()
	for canmount, want := range map[string][]string{"on": {"warn covered@beta"}, "noauto": {"warn covered@beta"}, "off": nil} {
		t.Run(canmount, func(t *testing.T) {
			t.Parallel()
			in := validInput()
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
