package transfer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport/tcp"
)

// passLimit passes that many bytes through the limit of o, in frames, as each of several connections. It
// returns the bottleneck.
func passLimit(t *testing.T, o Options, bytes, connections int) string {
	watches := NewWaitTimers(connections)
	began, limit := time.Now(), NewBandwidth(o, watches)
	var all sync.WaitGroup
	for _, w := range watches {
		all.Go(func() {
			for range bytes / connections / o.limitedBlock() {
				if err := limit.Wait(t.Context(), o.limitedBlock(), w); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	stages := append([]Stage{{Name: StageRead, WaitOut: time.Since(began)}}, limit.Stages(time.Since(began))...)
	require.EqualValues(t, bytes, stages[1].Bytes)
	return LimitedBy(stages, stages, nil)
}

// size returns the number of shared buckets.
func (l *Limits) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

// TestStreamsShareLimit expects that streams with the same LimitID together keep the limit, that others
// have their own, and that no bucket remains after the last stream.
func TestStreamsShareLimit(t *testing.T) {
	t.Parallel()
	const each, rate = 4 << 20, 1 << 20
	for _, streams := range []int{1, 2, 4} {
		synctest.Test(t, func(t *testing.T) {
			var limits Limits
			began := time.Now()
			took := map[uint64]time.Duration{}
			var mu sync.Mutex
			var all sync.WaitGroup
			start := func(id uint64, block int) {
				all.Go(func() {
					o := Options{Block: block, BandLimit: rate, LimitID: id}
					leave := limits.Share(&o)
					limit := passLimit(t, o, each, 2)
					leave()
					mu.Lock()
					defer mu.Unlock()
					took[id] = time.Since(began)
					if limit != LimitBandwidth {
						t.Error("limited by", limit)
					}
				})
			}
			start(2, MinBlock)
			start(0, MinBlock)
			for i := range streams {
				start(1, MinBlock<<(i%2)) // small streams have small blocks
			}
			synctest.Wait()
			require.Equal(t, 2, limits.size())
			all.Wait()
			require.InDelta(t, each/rate, took[0].Seconds(), 1e-3, "a stream without an ID")
			require.InDelta(t, each/rate, took[2].Seconds(), 1e-3, "another command or target")
			require.InDelta(t, float64(streams*each/rate), took[1].Seconds(), 1e-3)
			require.Zero(t, limits.size())
		})
	}
}

// TestNewLimitIsForAllStreams expects that a stream with another limit, as in the next bandwidth window,
// changes the limit of the running ones.
func TestNewLimitIsForAllStreams(t *testing.T) {
	t.Parallel()
	const rate = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		var limits Limits
		began := time.Now()
		first := Options{Block: MinBlock, BandLimit: 4 * rate, LimitID: 1}
		defer limits.Share(&first)()
		var all sync.WaitGroup
		all.Go(func() { passLimit(t, first, 12*rate, 1) })
		time.Sleep(2 * time.Second) // it has 4 MiB left
		second := Options{Block: MinBlock, BandLimit: rate, LimitID: 1}
		defer limits.Share(&second)()
		passLimit(t, second, 4*rate, 1)
		all.Wait()
		require.InDelta(t, 2+8, time.Since(began).Seconds(), 0.1)
	})
}

// TestInterruptedStreamLeavesLimit expects that a stream that ends while it waits neither keeps the bucket
// nor lets the others exceed the limit.
func TestInterruptedStreamLeavesLimit(t *testing.T) {
	t.Parallel()
	const rate = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		var limits Limits
		one := Options{Block: MinBlock, BandLimit: rate, LimitID: 1}
		other := one
		leaveOne, leaveOther := limits.Share(&one), limits.Share(&other)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, NewBandwidth(one, nil).Wait(ctx, 100*rate, &tcp.WaitTimer{}))
		leaveOne()
		began := time.Now()
		passLimit(t, other, 4*rate, 1)
		require.InDelta(t, 4, time.Since(began).Seconds(), 0.1)
		require.Equal(t, 1, limits.size())
		leaveOther()
		require.Zero(t, limits.size())
	})
}
