package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/size"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	good := map[string]int64{
		"0": 0, "1": 1, "4096": 4096, "512B": 512, "64k": 64 << 10, "64K": 64 << 10, "64KiB": 64 << 10, "64kib": 64 << 10,
		"64KB": 64000, "1.5M": 3 << 19, "100MiB": 100 << 20, "100MB": 100e6, "2G": 2 << 30, "1TB": 1e12, "1 GiB": 1 << 30, "0.5K": 512,
	}
	for s, want := range good {
		n, err := parseSize(s)
		require.NoError(t, err, s)
		require.Equal(t, want, n, s)
	}
	for _, s := range []string{"", "K", "-1", "+1", "1e3", "0x10", "1.2.3", "10X", "10KK", "10iB", "NaN", "Inf", "9999999T", "1,000", "5 apples", "\u0661"} {
		_, err := parseSize(s)
		require.Error(t, err, "%q", s)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"0", "1.5GiB", "100MB", "-3", "9223372036854775807", "8388608T", "1..2", "K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseSize(s)
		if err != nil {
			require.Zero(t, n)
			return
		}
		require.GreaterOrEqual(t, n, int64(0))
		require.Less(t, n, int64(math.MaxInt64))
	})
}

func TestValues(t *testing.T) {
	t.Parallel()
	var rate size.Size
	r := newRate(&rate)
	require.NoError(t, r.Set("100MiB/s"))
	require.Equal(t, size.Size(100<<20), rate)
	require.Equal(t, "100MiB/s", r.String())
	require.Error(t, newSize(&rate).Set("1M/s"), "a size has no time")

	var c string
	z := newCompress(&c, "auto")
	for _, s := range []string{"auto", "off", "zstd", "zstd:1", "zstd:19"} {
		require.NoError(t, z.Set(s))
		require.Equal(t, s, c)
	}
	for _, s := range []string{"", "on", "zstd:", "zstd:0", "zstd:20", "zstd:x", "lz4"} {
		require.Error(t, z.Set(s), "%q", s)
	}
}
