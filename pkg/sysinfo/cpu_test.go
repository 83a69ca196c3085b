package sysinfo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two seconds of two processors: 300 ticks idle, 20 waiting for a disk. Linux 6.18.
const (
	statBefore = `cpu  174 0 331 40300 900 0 7 0 0 0
cpu0 80 0 170 20000 500 0 5 0 0 0
cpu1 94 0 161 20300 400 0 2 0 0 0
intr 115 0
ctxt 99
`
	statAfter = `cpu  250 0 360 40600 920 0 7 0 0 0
cpu0 120 0 180 20150 510 0 5 0 0 0
cpu1 130 0 180 20450 410 0 2 0 0 0
`
)

func TestUsage(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	before, after := parseUsage(statBefore, start), parseUsage(statAfter, start.Add(2*time.Second))
	busy, iowait := after.Since(before)
	require.InDelta(t, 0.4, busy, 1e-9)
	require.InDelta(t, 0.1, iowait, 1e-9)
	busy, iowait = before.Since(before)
	require.Zero(t, busy+iowait)
	busy, _ = parseUsage("", start).Since(parseUsage("x", start.Add(-time.Second)))
	require.Zero(t, busy, "no /proc/stat")
}

func FuzzParseUsage(f *testing.F) {
	f.Add(statBefore)
	f.Add("cpu\ncpu0 a b c d e f\n")
	f.Fuzz(func(t *testing.T, stat string) {
		now := time.Now()
		busy, iowait := parseUsage(stat, now.Add(time.Second)).Since(parseUsage(stat, now))
		require.GreaterOrEqual(t, busy, 0.0)
		require.Zero(t, iowait)
	})
}
