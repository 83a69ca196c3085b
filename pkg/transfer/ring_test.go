package transfer

import (
	"sync"
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
