package sysinfo

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestFacts(t *testing.T) {
	t.Parallel()
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	full := fstest.MapFS{
		"sys/module/zfs/version":     file("2.3.9-1\n"),
		"proc/sys/kernel/osrelease":  file("6.12.107\n"),
		"proc/sys/net/ipv4/tcp_rmem": file("4096\t131072\t6291456\n"),
		"proc/sys/net/ipv4/tcp_wmem": file("4096\t16384\t4194304\n"),
		"proc/meminfo":               file("MemTotal:       24683520 kB\nMemFree:         1000 kB\nMemAvailable:    2000 kB\n"),
	}
	broken := fstest.MapFS{
		"proc/sys/net/ipv4/tcp_rmem": file("4096 131072\n"),
		"proc/sys/net/ipv4/tcp_wmem": file("a b c\n"),
		"proc/meminfo":               file("MemAvailable: -1 kB\n"),
	}
	tests := []struct {
		name        string
		root        fstest.MapFS
		zfs, kernel string
		read, write int64
		available   uint64
	}{
		{"complete", full, "2.3.9-1", "6.12.107", 6291456, 4194304, 2000 << 10},
		{"empty", fstest.MapFS{}, "", "", 0, 0, 0},
		{"malformed", broken, "", "", 0, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.zfs, ZFSVersion(tt.root))
			require.Equal(t, tt.kernel, Kernel(tt.root))
			require.Equal(t, tt.read, TCPReadMax(tt.root))
			require.Equal(t, tt.write, TCPWriteMax(tt.root))
			require.Equal(t, tt.available, AvailableMemory(tt.root))
		})
	}
}

func TestPoolErrors(t *testing.T) {
	t.Parallel()
	get := "a b\thealth\tONLINE\nsound\thealth\tONLINE\ntank\thealth\tONLINE\n"
	status := "pool: a b\nerrors: 2 data errors, use '-v' for a list\npool: sound\nerrors: No known data errors\n" +
		"pool: gone\nerrors: 9 data errors, use '-v' for a list\npool: tank\nerrors: 1 data errors, use '-v' for a list\n"
	found := map[string]uint64{}
	for _, p := range parsePools(get, status) {
		found[p.Name] = p.Errors
	}
	require.Equal(t, map[string]uint64{"a b": 2, "sound": 0, "tank": 1}, found)
}
