package runner

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// A target with much to send does not delay one with little.
func TestGateIsFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		release, err := g.of("busy")(t.Context())
		require.NoError(t, err)
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		want := func(target string) {
			wg.Go(func() {
				done, err := g.of(target)(t.Context())
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, target)
				mu.Unlock()
				done()
			})
			synctest.Wait()
		}
		for range 3 {
			want("busy")
		}
		want("small")
		g.mu.Lock()
		g.running["busy"]++ // as if another of its datasets moved
		g.mu.Unlock()
		release()
		wg.Wait()
		require.Equal(t, []string{"small", "busy", "busy", "busy"}, order)
	})
}

func TestGateBounds(t *testing.T) {
	t.Parallel()
	g := newGate(3)
	var now, most atomic.Int32
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			done, err := g.of([]string{"a", "b"}[i%2])(t.Context())
			if err != nil {
				return
			}
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			now.Add(-1)
			done()
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int32(3))
	require.Equal(t, 3, g.free)
}

func TestGateGivesUp(t *testing.T) {
	t.Parallel()
	g := newGate(1)
	done, err := g.of("a")(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = g.of("b")(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, g.waiting)
	done()
	require.Equal(t, 1, g.free)
}
