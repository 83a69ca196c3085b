package transfer

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport/tcp"
)

// TestMemoryOfStreamsIsLimited expects the streams of one client to need bounded memory together,
// with any options that the client asks for.
func TestMemoryOfStreamsIsLimited(t *testing.T) {
	t.Parallel()
	const streams, limit = 64, 1 << 30
	for name, o := range map[string]Options{
		"default":         {},
		"large buffer":    {Buffer: math.MaxInt64},
		"large blocks":    {Block: math.MaxInt},
		"highest level":   {Compress: "zstd:19"},
		"adaptive":        {Compress: "auto", CompressThreads: 1 << 20},
		"all":             {Buffer: math.MaxInt64, Block: math.MaxInt, Compress: "zstd:22", CompressThreads: math.MaxInt32},
		"negative":        {Buffer: -1, Block: -1, CompressThreads: -1},
		"small block":     {Block: 1},
		"unknown options": {Compress: "zstd:x"},
	} {
		for _, connections := range []int{0, 1, tcp.MaxStreams} {
			t.Run(fmt.Sprintf("%s over %d connections", name, connections), func(t *testing.T) {
				t.Parallel()
				m, total := &Memory{Limit: limit}, int64(0)
				var releases []func()
				for range streams {
					given := o
					release, err := m.Reserve(&given, connections, true)
					if err != nil {
						require.Equal(t, fault.Refused, fault.ClassOf(err))
						continue
					}
					releases = append(releases, release)
					f := given.Filled()
					require.Positive(t, given.CompressThreads)
					total += f.memory(connections, true)
				}
				if name != "all" && name != "large blocks" {
					require.NotEmpty(t, releases)
				}
				require.LessOrEqual(t, total, int64(limit+streams*floor))
				for _, release := range releases {
					release()
					release() // a second call does nothing
				}
				require.Zero(t, m.used)
			})
		}
	}
}

// TestMemoryOfUsualStreams expects that the limit refuses none of 64 usual streams, and gives the first
// one what it asks for.
func TestMemoryOfUsualStreams(t *testing.T) {
	t.Parallel()
	for _, compress := range []string{"off", "auto", "zstd", "zstd:8"} {
		for _, encodes := range []bool{false, true} {
			m := &Memory{Limit: 1 << 30}
			for i := range 64 {
				o := Options{Compress: compress, CompressThreads: 8}
				_, err := m.Reserve(&o, 1, encodes)
				require.NoError(t, err, "%s, stream %d", compress, i)
				if i == 0 {
					require.EqualValues(t, DefaultBuffer, o.Buffer)
					require.Equal(t, 8, o.CompressThreads)
					require.False(t, o.lowLevels)
				}
			}
		}
	}
	var unlimited *Memory
	o := Options{Buffer: 1 << 40}
	_, err := unlimited.Reserve(&o, 1, true)
	require.NoError(t, err)
	require.EqualValues(t, 1<<40, o.Buffer)
}

// TestEncoderMemory expects Options.memory to count at least what an encoder keeps.
func TestEncoderMemory(t *testing.T) { // not parallel: it measures the heap
	for _, o := range []Options{
		{Compress: "zstd:1"}, {Compress: "zstd:3"}, {Compress: "zstd"}, {Compress: "zstd:8"}, {Compress: "zstd:19"}, {Compress: "zstd:22"}, {Compress: "auto"},
		{Compress: "auto", lowLevels: true}, {Compress: "auto", Block: tcp.MaxRaw}, {Compress: "zstd:19", Block: MinBlock},
	} {
		o.CompressThreads = 1
		o = o.Filled()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		c, err := NewCompressor(o)
		require.NoError(t, err)
		in := make([]byte, o.Block)
		for i := range in {
			in[i] = byte(i * i >> 8)
		}
		for _, e := range c.encoders {
			e.EncodeAll(in, nil)
		}
		in = nil
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(c)
		kept := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%s, blocks of %d KiB: %d KiB", o.Compress, o.Block>>10, kept>>10)
		assert.LessOrEqual(t, kept, o.memory(0, true)-o.memory(0, false), o.Compress)
	}
}
