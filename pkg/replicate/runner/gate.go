package runner

import (
	"context"
	"slices"
	"sync"
)

// gate bounds how many datasets of a job move at once, and shares the turns
// fairly: the target with the fewest running gets the next, so that one that
// is slow, or has much to catch up with, does not keep the others waiting.
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

// of is the gate as the batch of a target asks it.
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
		if i < 0 { // it got its turn at the same moment
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

// grant gives free turns away. The caller holds mu.
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
