package runner

import (
	"context"
	"slices"
	"sync"
)

// gate limits how many datasets of a job are sent concurrently. The target with the fewest running
// transfers gets the next turn, so a slow target does not delay the others.
type gate struct {
	mu      sync.Mutex
	free    int
	running map[string]int
	waiting []*waiter // in order of arrival
}

type waiter struct {
	target string
	turn   chan struct{}
}

func newGate(limit int) *gate { return &gate{free: limit, running: map[string]int{}} }

// of returns the function by which a target's batch acquires a turn. It returns the function that
// releases it.
func (g *gate) of(target string) func(context.Context) (func(), error) {
	return func(ctx context.Context) (func(), error) {
		w := &waiter{target: target, turn: make(chan struct{})}
		g.mu.Lock()
		g.waiting = append(g.waiting, w)
		g.grant()
		g.mu.Unlock()
		select {
		case <-w.turn:
			return func() { g.done(target) }, nil
		case <-ctx.Done():
		}
		g.mu.Lock()
		i := slices.Index(g.waiting, w)
		if i >= 0 {
			g.waiting = slices.Delete(g.waiting, i, i+1)
		}
		g.mu.Unlock()
		if i < 0 { // it was granted a turn at the same moment
			g.done(target)
		}
		return nil, ctx.Err()
	}
}

func (g *gate) done(target string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	g.running[target]--
	g.grant()
}

// grant grants the free turns. The caller must hold mu.
func (g *gate) grant() {
	for g.free > 0 && len(g.waiting) > 0 {
		next := 0
		for i, w := range g.waiting {
			if g.running[w.target] < g.running[g.waiting[next].target] {
				next = i
			}
		}
		w := g.waiting[next]
		g.waiting = slices.Delete(g.waiting, next, next+1)
		g.free--
		g.running[w.target]++
		close(w.turn)
	}
}
