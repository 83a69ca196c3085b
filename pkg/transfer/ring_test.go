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

// fill puts pieces until one has to wait, and returns how many the ring holds. The last piece
// enters once there is room.
func fill(t *testing.T, r *ring, next *uint64) (held uint64, waiting *sync.WaitGroup) {
	t.Helper()
	waiting = &sync.WaitGroup{}
	for {
		r.mu.Lock()
		full := *next-r.next >= r.capacity
		held = *next - r.next
		r.mu.Unlock()
		p := &piece{header: tcp.Header{Position: *next}}
		*next++
		if full {
			var watch tcp.WaitTimer
			waiting.Go(func() { _ = r.put(p, &watch) }) // fails only at the end of the test
			for {
				r.mu.Lock()
				noted := !r.lastFull.IsZero() || held < r.capacity
				r.mu.Unlock()
				if noted {
					return held, waiting
				}
				synctest.Wait() // until put waits
			}
		}
		var watch tcp.WaitTimer
		require.NoError(t, r.put(p, &watch))
	}
}

// drain takes n pieces, and then one that arrives only after a wait.
func drain(t *testing.T, r *ring, n uint64, next *uint64) {
	t.Helper()
	var watch tcp.WaitTimer
	for range n {
		_, err := r.take(&watch)
		require.NoError(t, err)
	}
	var taker sync.WaitGroup
	taker.Go(func() { _, _ = r.take(&watch) })
	synctest.Wait()
	require.True(t, r.starved())
	var none tcp.WaitTimer
	require.NoError(t, r.put(&piece{header: tcp.Header{Position: *next}}, &none))
	*next++
	taker.Wait()
}

// TestRingGrowsOnDemand expects that a ring grows only while nothing is taken, or if it was empty
// for longer than its pieces had lasted. It runs on a simulated clock.
func TestRingGrowsOnDemand(t *testing.T) {
	t.Parallel()
	const block = 1 << 20
	room := func(r *ring) uint64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.capacity
	}
	inBubble := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
	inBubble("before the first is taken", func(t *testing.T) {
		r, next := newRing(64<<20, block, 0), uint64(0)
		held, waiting := fill(t, r, &next)
		require.Equal(t, uint64(16), held)
		time.Sleep(3 * stoppedAfter)
		require.Equal(t, uint64(16), room(r))
		drain(t, r, held+1, &next)
		waiting.Wait()
	})
	inBubble("who takes has stopped", func(t *testing.T) {
		r, next := newRing(64<<20, block, 0), uint64(0)
		drain(t, r, 0, &next)
		_, waiting := fill(t, r, &next)
		require.Eventually(t, func() bool { return room(r) == 32 }, time.Minute, time.Millisecond)
		waiting.Wait() // there is room although nothing was taken
		for range 2 {
			_, waiting = fill(t, r, &next)
			time.Sleep(3 * stoppedAfter)
		}
		require.Equal(t, uint64(64), room(r), "no more than requested")
		drain(t, r, 65, &next)
		waiting.Wait()
	})
	inBubble("who takes is slow", func(t *testing.T) {
		r, next := newRing(64<<20, block, 0), uint64(0)
		drain(t, r, 0, &next)
		r.takeInterval = time.Hour
		held, waiting := fill(t, r, &next)
		time.Sleep(3 * stoppedAfter)
		require.Equal(t, uint64(16), room(r))
		drain(t, r, held+1, &next)
		waiting.Wait()
	})
	inBubble("who puts had stopped", func(t *testing.T) {
		r, next := newRing(64<<20, block, 0), uint64(0)
		r.takeInterval = time.Hour
		held, waiting := fill(t, r, &next)
		time.Sleep(stoppedAfter)
		for i := range held + 1 {
			_, err := r.take(new(tcp.WaitTimer))
			require.NoError(t, err)
			if i == 0 {
				waiting.Wait()
			}
		}
		var taker sync.WaitGroup
		taker.Go(func() { _, _ = r.take(new(tcp.WaitTimer)) })
		synctest.Wait()
		require.True(t, r.starved())
		time.Sleep(2*time.Since(r.lastFull) + stoppedAfter) // longer than its pieces lasted
		require.NoError(t, r.put(&piece{header: tcp.Header{Position: next}}, new(tcp.WaitTimer)))
		taker.Wait()
		require.Greater(t, room(r), uint64(32))
	})
	inBubble("small", func(t *testing.T) {
		r, next := newRing(4<<20, block, 0), uint64(0)
		held, waiting := fill(t, r, &next)
		require.Equal(t, uint64(4), held, "no more than requested")
		drain(t, r, held+1, &next)
		waiting.Wait()
	})
}

// TestRingGrowsBeforeAPause expects that a ring that stays full grows before either end pauses, but only
// if the larger ring is useful and the host has the resources. It runs on a simulated clock.
func TestRingGrowsBeforeAPause(t *testing.T) {
	t.Parallel()
	const block, mib = 1 << 20, 1 << 20
	plenty := resources{idle: 1, memory: 1 << 40}
	for name, tt := range map[string]struct {
		spare    resources
		interval time.Duration // between two pieces taken
		keepsUp  bool          // the taker is as fast as the putter
		want     uint64        // capacity in the end, about
	}{
		"1 Gbit/s":         {plenty, 8 * time.Millisecond, false, 256},
		"10 seconds":       {plenty, 90 * time.Millisecond, false, 115},
		"16 MiB last long": {plenty, time.Second, false, 16},
		"10 Gbit/s":        {plenty, 800 * time.Microsecond, false, 16},
		"taker keeps up":   {plenty, 8 * time.Millisecond, true, 16},
		"2.5 Gbit/s":       {plenty, 4 * time.Millisecond, false, 256},
		"2.5 Gbit/s, busy": {resources{idle: 0.05, memory: 1 << 40}, 4 * time.Millisecond, false, 16},
		"1 Gbit/s, busy":   {resources{idle: 0.05, memory: 1 << 40}, 8 * time.Millisecond, false, 256},
		"no memory":        {resources{idle: 1, memory: 8*mib - 1}, 8 * time.Millisecond, false, 16},
		"little memory":    {resources{idle: 1, memory: 64 * mib}, 8 * time.Millisecond, false, 16 + 7*8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRing(256*mib, block, 0)
				r.resources = func() resources { return tt.spare }
				r.takeInterval = tt.interval // so that no interval counts as a pause
				var ends sync.WaitGroup
				ends.Go(func() { // the putter
					for n := uint64(0); ; n++ {
						if tt.keepsUp {
							time.Sleep(tt.interval)
						}
						if r.put(&piece{header: tcp.Header{Position: n}}, new(tcp.WaitTimer)) != nil {
							return
						}
					}
				})
				ends.Go(func() { // the taker
					for {
						if _, err := r.take(new(tcp.WaitTimer)); err != nil {
							return
						}
						time.Sleep(tt.interval)
					}
				})
				for range 8 {
					r.expand()
					time.Sleep(progressInterval)
				}
				synctest.Wait()
				r.mu.Lock()
				capacity, held := r.capacity, r.end-r.next
				r.mu.Unlock()
				require.InEpsilon(t, tt.want, capacity, 0.05)
				if !tt.keepsUp {
					require.GreaterOrEqual(t, held, capacity-1, "the putter is ahead by the whole ring")
				}
				r.fail(ErrStall)
				ends.Wait()
			})
		})
	}
}

// TestRingWithoutMemoryWaits expects that a putter waits if the taker pauses and the host lacks memory.
func TestRingWithoutMemoryWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, next := newRing(64<<20, 1<<20, 0), uint64(0)
		asked := 0
		r.resources = func() resources { asked++; return resources{idle: 1} }
		drain(t, r, 0, &next)
		held, waiting := fill(t, r, &next)
		require.Equal(t, uint64(16), held)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 1, asked)
		_, err := r.take(new(tcp.WaitTimer))
		require.NoError(t, err)
		waiting.Wait()
	})
}

// TestSourceIsReadAheadOfItsPause expects that a transfer has read far ahead of a slower target when the
// source pauses for the first time.
func TestSourceIsReadAheadOfItsPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const buffer, block = 64 << 20, 256 << 10
		src := &pausingSource{pauseAfter: 192 << 20}
		c := newCopy(src, &slowSink{pause: 4 * time.Millisecond, src: src}, Options{Buffer: buffer, Block: block}.Filled(), nil)
		c.ring.resources = func() resources { return resources{idle: 1, memory: 1 << 40} }
		_, err := c.life.Run(t.Context())
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
