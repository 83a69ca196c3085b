package size

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A size is never negative, and a plain number of bytes is itself.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"0", "1", "64K", "1.5GiB", "10 TB", "9223372036854775807", "8388608T", "1e9", "-1", "1KK", "KiB", "0.1b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse(s)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, n, Size(0))
		if plain, err := strconv.ParseInt(s, 10, 53); err == nil {
			require.Equal(t, Size(plain), n)
		}
		if n < 1<<53 {
			again, err := Parse(strconv.FormatInt(int64(n), 10))
			require.NoError(t, err)
			require.Equal(t, n, again)
		}
	})
}
