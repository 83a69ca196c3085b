package transfer

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Places limits how many streams with the same LimitID run on this host at the same time. The zero value is ready to use.
type Places struct {
	mu  sync.Mutex
	all map[uint64]*places // by Options.LimitID
}

type places struct {
	free    *semaphore.Weighted
	streams int // that have a place or wait for one
}

// Enter waits until fewer than Concurrent streams with the same LimitID have a place, and takes one. The first to wait is
// the first to enter. The Concurrent of the first of them counts for all. Call leave after the stream has ended. Enter
// returns an error after ctx ended.
func (p *Places) Enter(ctx context.Context, o Options) (leave func(), err error) {
	if o.Concurrent <= 0 {
		return func() {}, nil
	}
	p.mu.Lock()
	of := p.all[o.LimitID]
	if of == nil {
		if p.all == nil {
			p.all = map[uint64]*places{}
		}
		of = &places{free: semaphore.NewWeighted(int64(o.Concurrent))}
		p.all[o.LimitID] = of
	}
	of.streams++
	p.mu.Unlock()
	end := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if of.streams--; of.streams == 0 {
			delete(p.all, o.LimitID)
		}
	}
	if err := of.free.Acquire(ctx, 1); err != nil {
		end()
		return nil, context.Cause(ctx)
	}
	return func() { of.free.Release(1); end() }, nil
}
