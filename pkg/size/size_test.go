package size

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int64{"0": 0, "4096": 4096, "64k": 64 << 10, "64KiB": 64 << 10, "64KB": 64000, "1.5M": 3 << 19, "2G": 2 << 30, "1TB": 1e12} {
		n, err := Parse(s)
		require.NoError(t, err, s)
		require.Equal(t, want, n, s)
	}
	for _, s := range []string{"", "K", "-1", "1e3", "10X", "9999999T"} {
		_, err := Parse(s)
		require.Error(t, err, "%q", s)
	}
}
