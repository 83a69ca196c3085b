package sysinfo

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func FuzzThird(f *testing.F) {
	for _, s := range []string{"4096\t131072\t6291456", "1 2 3 4", "", "a b c", "1 2 -3", "1 2 99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		root := fstest.MapFS{"proc/sys/net/ipv4/tcp_rmem": {Data: []byte(s)}}
		require.GreaterOrEqual(t, TCPReadMax(root), int64(0))
		require.Zero(t, TCPWriteMax(root))
	})
}

// TestThisHost expects that the facts of the running Linux can be read.
func TestThisHost(t *testing.T) {
	t.Parallel()
	root := os.DirFS("/")
	if _, err := os.Stat("/proc/sys/net/ipv4/tcp_rmem"); err != nil {
		t.Skip("no /proc/sys/net here: ", err)
	}
	require.NotEmpty(t, Kernel(root))
	require.Positive(t, TCPReadMax(root))
	require.Positive(t, TCPWriteMax(root))
}

// FuzzReadSystem expects that reading ends with any file contents, and that the results are bounded
// by the size of the file.
func FuzzReadSystem(f *testing.F) {
	f.Add(uint8(0), "[fastest] scalar superscalar superscalar4 sse2 ssse3")
	f.Add(uint8(1), "0 0 0x01 -1 0\nimplementation   native         byteswap       \nscalar                     3386            2550\nfastest scalar\n")
	f.Add(uint8(2), "kfpu_allowed 1\nx y z\n")
	f.Add(uint8(3), "0000 T kernel_fpu_begin\tx\nT\n t kernel_neon_begin")
	f.Add(uint8(4), "processor : 0\nflags : avx aes\nmodel name: x\n\nprocessor")
	f.Add(uint8(5), "4096\t131072\t-6291456")
	f.Add(uint8(6), "tank\tsize\t1\t-\ntank\ttab\nx")
	f.Add(uint8(7), "tank/a /mnt\\040x zfs rw 0 0\n/ \\\\777 nfs\nx")
	f.Add(uint8(8), "MemTotal: 99999999999999999999 kB\nMemTotal:")
	f.Add(uint8(9), "PRETTY_NAME=\"\nPRETTY_NAME='x\"")
	names := []string{
		"sys/module/zfs/parameters/zfs_fletcher_4_impl", "proc/spl/kstat/zfs/fletcher_4_bench", "proc/spl/kstat/zfs/simd",
		Symbols, "proc/cpuinfo", "proc/sys/net/ipv4/tcp_rmem", Command("zpool-get"), "proc/self/mounts", "proc/meminfo", "etc/os-release",
		"sys/module/zfs/version", "proc/sys/net/ipv4/tcp_congestion_control", "sys/class/net/eth0/speed", "sys/class/net/eth0/mtu",
		Command("zfs-version"), Command("nc-help"), "proc/version", "proc/sys/kernel/osrelease",
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		root := fstest.MapFS{names[int(which)%len(names)]: {Data: []byte(text)}}
		s := ReadSystem(root)
		lines := strings.Count(text, "\n") + 1
		require.LessOrEqual(t, len(s.Pools), lines)
		require.LessOrEqual(t, len(s.Mounts), lines)
		require.LessOrEqual(t, len(s.Symbols), lines)
		require.LessOrEqual(t, len(s.SIMD), lines)
		require.LessOrEqual(t, len(s.Links), 1)
		for _, m := range s.Mounts {
			require.LessOrEqual(t, len(m.Type), len(text))
		}
		for _, p := range s.Pools {
			require.NotContains(t, p.Name, "\t")
		}
		require.GreaterOrEqual(t, TCPReadMax(root), int64(0))
	})
}
