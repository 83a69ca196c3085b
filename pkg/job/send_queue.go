package job

import (
	"context"
	"errors"
	"sync"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/connect"
)

// Limits of the small streams on their way to or from the remote host. A restricted agent permits 64 calls of
// streams at the same time.
const (
	maxTogether      = 16        // streams of an exchange
	maxInFlight      = 48        // streams of all exchanges
	maxExchangeBytes = 256 << 10 // of an exchange, if it has several streams; a slow connection must not stall
)

// turn is the permission of a dataset to use the hosts, from a gate that limits their number.
type turn struct {
	gate    func(context.Context) (release func(), err error)
	release func() // nil = not taken
}

// take waits for the turn. It returns an error after ctx ended.
func (t *turn) take(ctx context.Context) (err error) {
	t.release, err = t.gate(ctx)
	return err
}

// end ends the turn, if it was taken.
func (t *turn) end() {
	if t.release != nil {
		t.release()
		t.release = nil
	}
}

// queue runs the requests of small streams on the remote host. Requests that wait together share the round
// trip of one exchange. The host runs them one after the other in one turn, so that as many streams as turns
// use a host at the same time.
type queue struct {
	ctx      context.Context
	host     hosts.By // the remote host
	gate     func(context.Context) (release func(), err error)
	parallel int           // number of turns
	most     int           // streams of an exchange
	active   chan struct{} // has one element for each dataset in memory

	mu      sync.Mutex
	waiting []*queued
	taking  bool // an exchange waits for its turn
}

// queued is a request that waits.
type queued struct {
	*hosts.Request
	bytes int
	err   chan error // of the request
}

// newQueue returns a queue for that many turns, or nil if they are enough without one.
func newQueue(ctx context.Context, remote hosts.By, parallel int, gate func(context.Context) (func(), error)) *queue {
	parallel = max(1, parallel)
	most := min(maxTogether, maxInFlight/parallel)
	if most < 2 {
		return nil
	}
	return &queue{ctx: ctx, host: remote, gate: gate, parallel: parallel, most: most, active: make(chan struct{}, 2*most*parallel)}
}

// run runs a request that moves about that many bytes. The caller must not have a turn.
func (q *queue) run(r *hosts.Request, bytes int) error {
	one := &queued{r, bytes, make(chan error, 1)}
	q.mu.Lock()
	q.waiting = append(q.waiting, one)
	q.wake()
	q.mu.Unlock()
	return <-one.err
}

// wake starts an exchange if requests wait. The caller must hold mu.
func (q *queue) wake() {
	if len(q.waiting) > 0 && !q.taking {
		q.taking = true
		go q.exchange()
	}
}

// exchange runs waiting requests together. A failed request does not affect the others: those after it run in
// the next exchange.
func (q *queue) exchange() {
	release, err := q.gate(q.ctx)
	if err == nil {
		defer release()
	}
	q.mu.Lock()
	q.taking = false
	all := q.next()
	q.wake()
	q.mu.Unlock()
	requests := make([]*hosts.Request, len(all))
	for i, one := range all {
		requests[i] = one.Request
	}
	errs := hosts.InOrder(q.ctx, q.host, requests...)
	var again []*queued
	for i, one := range all {
		switch ended := q.ctx.Err() != nil; {
		case !errors.Is(errs[i], hosts.ErrNotStarted):
			one.err <- errs[i]
		case ended:
			one.err <- context.Cause(q.ctx)
		case i == 0: // a lying host
			one.err <- errs[i]
		default:
			again = append(again, one)
		}
	}
	q.mu.Lock()
	q.waiting = append(again, q.waiting...)
	q.wake()
	q.mu.Unlock()
}

// next takes the requests of an exchange. Few requests are spread over the turns.
func (q *queue) next() []*queued {
	most := min(q.most, (len(q.waiting)+q.parallel-1)/q.parallel)
	n, bytes := 0, 0
	for n < most && (n == 0 || bytes+q.waiting[n].bytes <= maxExchangeBytes) {
		bytes += q.waiting[n].bytes
		n++
	}
	all := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return all
}

// enter limits the datasets in memory. It returns the function that leaves, or an error after ctx ended.
func (q *queue) enter(ctx context.Context) (leave func(), err error) {
	select {
	case q.active <- struct{}{}:
		return func() { <-q.active }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// through returns a link for a small stream whose remote end waits in the queue, while another dataset has
// the turn. last means that the dataset needs no turn after a success.
func (q *queue) through(l connect.Link, t *turn, last bool) connect.Link {
	return l.WithRemote(func(ctx context.Context, r *hosts.Request, bytes int) error {
		t.end()
		err := q.run(r, bytes)
		if err != nil || !last {
			_ = t.take(ctx) // ctx ends what follows
		}
		return err
	})
}
