package size

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Size{
		"0": 0, "1": 1, "4096": 4096, "512B": 512, "64k": 64 << 10, "64K": 64 << 10, "64KiB": 64 << 10, "64kib": 64 << 10,
		"64KB": 64000, "1.5M": 3 << 19, "100MiB": 100 << 20, "100MB": 100e6, "2G": 2 << 30, "1TB": 1e12, "1 GiB": 1 << 30, "0.5K": 512,
	} {
		n, err := Parse(s)
		require.NoError(t, err, s)
		require.Equal(t, want, n, s)
	}
	for _, s := range []string{"", "K", "-1", "+1", "1e3", "0x10", "1.2.3", "10X", "10KK", "10iB", "NaN", "Inf", "9999999T", "1,000", "5 apples", "\u0661"} {
		_, err := Parse(s)
		require.Error(t, err, "%q", s)
	}
	_, err := Parse("10Mbit")
	require.ErrorContains(t, err, `"Mbit" is not a unit`)
}

// TestWritten expects a unit in text and a plain number in JSON, and expects that both parse to the
// same size.
func TestWritten(t *testing.T) {
	t.Parallel()
	for n, want := range map[Size]string{0: "0", 1: "1", 1000: "1000", 64 << 10: "64KiB", 3 << 19: "1536KiB", 1 << 40: "1TiB"} {
		require.Equal(t, want, n.String())
		var again Size
		require.NoError(t, again.UnmarshalText([]byte(want)))
		require.Equal(t, n, again)
		text, err := json.Marshal(n)
		require.NoError(t, err)
		require.Equal(t, strconv.FormatInt(int64(n), 10), string(text))
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, n, again)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1 << 10: "1.0 KiB", 1_288_490_189: "1.2 GiB", 32 << 20: "32 MiB", 1<<64 - 1: "16 EiB"} {
		require.Equal(t, want, Text(n))
		require.Equal(t, want+"/s", Rate(n))
	}
}

// FuzzParse expects that a size is never negative, and that a plain number of bytes is unchanged.
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
