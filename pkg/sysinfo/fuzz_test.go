package sysinfo

import (
	"os"
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

// The names are those of a running Linux.
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
