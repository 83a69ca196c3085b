package size

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1 << 10: "1.0 KiB", 1_288_490_189: "1.2 GiB", 32 << 20: "32 MiB", 1<<64 - 1: "16 EiB"} {
		require.Equal(t, want, Text(n))
		require.Equal(t, want+"/s", Rate(n))
	}
}
