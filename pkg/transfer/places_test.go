package transfer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPlaces expects that as many streams of each command as it requested run at the same time, and that nothing of ended ones
// stays.
func TestPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p Places
		var all sync.WaitGroup
		began := time.Now()
		most := map[int]*atomic.Int64{1: {}, 3: {}}
		for id, seen := range most {
			var running atomic.Int64
			for range 9 {
				all.Go(func() {
					leave, err := p.Enter(t.Context(), Options{LimitID: uint64(id), Concurrent: id})
					require.NoError(t, err)
					defer leave()
					seen.Store(max(seen.Load(), running.Add(1)))
					time.Sleep(time.Second)
					running.Add(-1)
				})
			}
		}
		all.Wait()
		require.Equal(t, 9*time.Second, time.Since(began))
		for id, seen := range most {
			require.EqualValues(t, id, seen.Load())
		}
		require.Empty(t, p.all)

		why := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		leave, err := p.Enter(ctx, Options{LimitID: 1, Concurrent: 1})
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err = p.Enter(ctx, Options{LimitID: 1, Concurrent: 1})
		require.ErrorIs(t, err, why)
		leave()
		require.Empty(t, p.all)
		leave, err = p.Enter(t.Context(), Options{LimitID: 1})
		require.NoError(t, err)
		leave()
	})
}
