package transfer

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport/tcp"
)

// testRing returns a ring of 256 MiB in blocks of 1 MiB on a host with so much memory, of which n pieces were taken
// at an interval, the last one just now.
func testRing(memory uint64, n int, interval time.Duration) *ring {
	r := newRing(256<<20, 1<<20, 0)
	r.available = func() uint64 { return memory }
	for i := range n {
		_ = r.put(&piece{header: tcp.Header{Position: uint64(i)}}, new(tcp.WaitTimer))
		if i > 0 {
			time.Sleep(interval)
		}
		_, _ = r.take(new(tcp.WaitTimer))
	}
	return r
}

// TestRingGrowsWhenItIsFull expects that a full ring grows to its size if its taker is slow or pauses, if it would
// otherwise last less than ten seconds, and if the host has memory. It runs on a simulated clock.
func TestRingGrowsWhenItIsFull(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, tt := range map[string]struct {
		memory   uint64
		taken    int
		interval time.Duration // between two pieces taken
		pause    time.Duration // since the last one
		want     uint64        // capacity in the end
	}{
		"nothing was taken":      {1 << 40, 0, 0, 0, 16},
		"10 Gbit/s":              {1 << 40, 100, time.Millisecond, 0, 16},
		"10 Gbit/s, and a pause": {1 << 40, 100, time.Millisecond, 15 * time.Millisecond, 256},
		"1 Gbit/s":               {1 << 40, 100, 8 * time.Millisecond, 0, 256},
		"40 MB/s":                {1 << 40, 100, 25 * time.Millisecond, 0, 256},
		"10 MB/s":                {1 << 40, 100, 100 * time.Millisecond, 0, 128},
		"1 MB/s":                 {1 << 40, 100, time.Second, 0, 16},
		"1 MB/s, and a pause":    {1 << 40, 100, time.Second, time.Second, 16},
		"no memory":              {8*mib - 1, 100, 8 * time.Millisecond, 0, 16},
		"little memory":          {64 * mib, 100, 8 * time.Millisecond, 0, 256},
		"unknown memory":         {0, 100, 8 * time.Millisecond, 0, 256},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := testRing(tt.memory, tt.taken, tt.interval)
				time.Sleep(tt.pause)
				var putter sync.WaitGroup
				putter.Go(func() {
					for n := uint64(tt.taken); r.put(&piece{header: tcp.Header{Position: n}}, new(tcp.WaitTimer)) == nil; n++ {
					}
				})
				synctest.Wait() // until put waits
				require.Equal(t, tt.want, r.capacity)
				require.Equal(t, tt.want, r.end-r.next)
				r.fail(ErrStall)
				putter.Wait()
			})
		})
	}
}

// TestRingWithoutMemoryWaits expects that a ring whose host is short of memory asks for no more.
func TestRingWithoutMemoryWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, asked := testRing(1<<40, 100, 8*time.Millisecond), 0
		r.available = func() uint64 { asked++; return 1 }
		var putter sync.WaitGroup
		putter.Go(func() {
			for n := range uint64(50) {
				_ = r.put(&piece{header: tcp.Header{Position: 100 + n}}, new(tcp.WaitTimer))
			}
		})
		for range 50 {
			synctest.Wait() // until put waits
			_, err := r.take(new(tcp.WaitTimer))
			require.NoError(t, err)
		}
		putter.Wait()
		require.Equal(t, 1, asked)
		require.EqualValues(t, 16, r.capacity)
	})
}

// TestSourceIsReadAheadOfItsPause expects that a transfer has read far ahead of a slower target when the
// source pauses for the first time.
func TestSourceIsReadAheadOfItsPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const buffer, block = 64 << 20, 256 << 10
		src := &pausingSource{pauseAfter: 192 << 20}
		c := newCopy(src, &slowSink{pause: 4 * time.Millisecond, src: src}, Options{Buffer: buffer, Block: block}.Filled())
		c.ring.available = func() uint64 { return 0 }
		_, err := (&Lifecycle{Engine: c, Stall: DefaultStall}).Run(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, src.ahead, int64(buffer-block))
	})
}

// pausingSource pauses once after so many bytes.
type pausingSource struct {
	pauseAfter, read, written, ahead int64 // ahead of the sink, at the pause
}

func (s *pausingSource) Read(p []byte) (int, error) {
	if s.read >= s.pauseAfter {
		s.ahead = s.read - atomic.LoadInt64(&s.written)
		return 0, io.EOF
	}
	s.read += int64(len(p))
	return len(p), nil
}
func (s *pausingSource) Close() error { return nil }
func (s *pausingSource) Name() string { return "source" }

// slowSink takes a while for each block.
type slowSink struct {
	pause time.Duration
	src   *pausingSource
}

func (s *slowSink) Write(p []byte) (int, error) {
	time.Sleep(s.pause)
	atomic.AddInt64(&s.src.written, int64(len(p)))
	return len(p), nil
}
func (s *slowSink) Withhold() int                { return 0 }
func (s *slowSink) Commit(context.Context) error { return nil }
func (s *slowSink) Abort(error) error            { return nil }
func (s *slowSink) Name() string                 { return "sink" }
