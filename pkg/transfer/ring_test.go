package transfer

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/wire"
)

// fill puts pieces until one would have to wait, and returns how many the ring
// holds; the last one goes in when there is room again.
func fill(t *testing.T, r *ring, next *uint64) (held uint64, waiting *sync.WaitGroup) {
	t.Helper()
	waiting = &sync.WaitGroup{}
	for {
		r.mu.Lock()
		full := *next-r.next >= r.used
		held = *next - r.next
		r.mu.Unlock()
		p := &piece{header: wire.Header{Position: *next}}
		*next++
		if full {
			var watch wire.Stopwatch
			waiting.Go(func() { _ = r.put(p, &watch) }) // fails at the end of the test only
			for {
				r.mu.Lock()
				noted := r.full
				r.mu.Unlock()
				if noted {
					return held, waiting
				}
			}
		}
		var watch wire.Stopwatch
		require.NoError(t, r.put(p, &watch))
	}
}

// drain takes n pieces, and then one more that comes only after it was waited for.
func drain(t *testing.T, r *ring, n uint64, next *uint64) {
	t.Helper()
	var watch wire.Stopwatch
	for range n {
		_, err := r.take(&watch)
		require.NoError(t, err)
	}
	var taker sync.WaitGroup
	taker.Go(func() { _, _ = r.take(&watch) })
	for !r.starved() {
	}
	var none wire.Stopwatch
	require.NoError(t, r.put(&piece{header: wire.Header{Position: *next}}, &none))
	*next++
	taker.Wait()
}

// A ring grows when it ran empty although it had been full, and only then.
func TestRingUsesWhatHelps(t *testing.T) {
	t.Parallel()
	const block = 1 << 20
	r := newRing(64<<20, block, 0)
	var next uint64
	drain(t, r, 0, &next) // at the start nothing has come yet
	for _, want := range []uint64{16, 32, 64, 64} {
		held, waiting := fill(t, r, &next)
		require.Equal(t, want, held)
		drain(t, r, held+1, &next)
		waiting.Wait()
	}
	small := newRing(4<<20, block, 0)
	next = 0
	held, waiting := fill(t, small, &next)
	require.Equal(t, uint64(4), held, "no more than was asked for")
	drain(t, small, held+1, &next)
	waiting.Wait()
}
