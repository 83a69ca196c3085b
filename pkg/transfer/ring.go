package transfer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/transport/tcp"
)

// piece is a block of the stream on its way through a ring.
type piece struct {
	block  *tcp.Block
	header tcp.Header // Position is its number in the stream
	// ready is closed when a worker has compressed or decompressed the piece;
	// nil where nobody does.
	ready chan struct{}
	err   error // the worker's
}

// ring hands pieces from one stage to the next in the order of their numbers,
// in whatever order they come, and bounds how many wait.
//
// It uses no more of its room than helps. A ring that is always full because its
// stream is slow behind it is no better for being large: its blocks only leave
// the processor's cache. It starts small, and grows while who takes has stopped, as a
// pool does that syncs, and where who puts had stopped for longer than it lasted.
//
// It cannot lock up. A piece is admitted if its number is less than the next
// one to be taken plus the room in use, so the next one itself always is. Each
// connection carries rising numbers: the one that carries the next piece is
// never kept waiting with a later one before it.
type ring struct {
	mu    sync.Mutex
	notFull  sync.Cond
	ready sync.Cond
	slots []*piece // number n at n % len
	capacity  uint64   // of the slots, at most len
	next  uint64   // to be taken
	end   uint64   // one above the highest number that was put
	total  uint64   // number of pieces of the stream, once closed
	done  bool
	err   error // of the end, after the last piece
	truncated error // of an end before the last piece, after what has come
	failure error // at once

	takersWaiting atomic.Int32 // takers that wait

	lastFull time.Time     // when a piece last had to wait, since used grew
	lastTaken   time.Time     // when one was taken last
	takeInterval   time.Duration // from one that is taken to the next, of late

	free         []*tcp.Block // the last used on top: it is the warmest
	block, front int
}

// initialSize is what a ring uses at first, in bytes.
const initialSize = 16 << 20

// Who takes nothing for so long, and for so many times as long as of late, has stopped.
const (
	stoppedAfter   = 20 * time.Millisecond
	stoppedIntervals = 8
)

// newRing makes a ring of up to about size bytes in blocks of block bytes, each
// with front bytes of room before it. Blocks are made when they are first needed.
func newRing(size int64, block, front int) *ring {
	r := &ring{slots: make([]*piece, max(2, size/int64(block))), block: block, front: front}
	r.capacity = min(uint64(len(r.slots)), uint64(max(2, initialSize/block)))
	r.notFull.L, r.ready.L = &r.mu, &r.mu
	return r
}

// get returns an empty block. A stage takes one, fills it and puts it: so at
// most one for each goroutine exists beside those in the ring.
func (r *ring) get() *tcp.Block {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		b := r.free[n-1]
		r.free = r.free[:n-1]
		return b
	}
	return tcp.NewBlock(r.block, r.front)
}

// release takes a block back.
func (r *ring) release(b *tcp.Block) {
	r.mu.Lock()
	r.free = append(r.free, b)
	r.mu.Unlock()
}

// put waits until there is room for a piece. full meters the wait.
func (r *ring) put(p *piece, full *tcp.WaitTimer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := p.header.Position
	if r.mustWait(n) {
		full.Start()
		for r.mustWait(n) {
			r.waitForRoom()
		}
		full.Stop()
	}
	if r.failure != nil {
		return r.failure
	}
	slot := &r.slots[n%uint64(len(r.slots))]
	if n < r.next || *slot != nil {
		return fmt.Errorf("%w: frame %d came twice", ErrMiscounted, n)
	}
	*slot = p
	r.end = max(r.end, n+1)
	if n == r.next {
		r.ready.Signal()
	}
	return nil
}

// take waits for the next piece; nil is the end, with the error that it was
// closed with. empty meters the wait.
func (r *ring) take(empty *tcp.WaitTimer) (*piece, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting, began := false, time.Time{}
	defer func() {
		if waiting {
			empty.Stop()
			r.takersWaiting.Add(-1)
			if !r.lastFull.IsZero() && began.After(r.lastFull) { // until then it lasted
				r.grow(1 + float64(time.Since(began))/float64(began.Sub(r.lastFull)))
			}
		}
	}()
	for {
		slot := &r.slots[r.next%uint64(len(r.slots))]
		switch {
		case r.failure != nil:
			return nil, r.failure
		case *slot != nil:
			p := *slot
			*slot = nil
			r.next++
			now := time.Now()
			if !r.lastTaken.IsZero() {
				r.takeInterval += (now.Sub(r.lastTaken) - r.takeInterval) / stoppedIntervals
			}
			r.lastTaken = now
			if r.slots[r.next%uint64(len(r.slots))] != nil {
				r.ready.Signal() // another taker may go on
			}
			r.notFull.Broadcast() // each putter waits for a number of its own
			return p, nil
		case r.done && r.next >= r.total:
			return nil, r.err
		case r.truncated != nil:
			return nil, r.truncated
		}
		if !waiting {
			waiting, began = true, time.Now()
			r.takersWaiting.Add(1)
			empty.Start()
		}
		r.ready.Wait()
	}
}

// mustWait tells whether piece n has to wait for room.
func (r *ring) mustWait(n uint64) bool {
	return n-r.next >= r.capacity && n >= r.next && r.failure == nil
}

// waitForRoom waits for room, or makes some while nothing is taken.
func (r *ring) waitForRoom() {
	r.lastFull = time.Now()
	if r.lastTaken.IsZero() || r.capacity == uint64(len(r.slots)) {
		r.notFull.Wait()
		return
	}
	left := max(stoppedAfter, stoppedIntervals*r.takeInterval) - r.lastFull.Sub(r.lastTaken)
	if left <= 0 {
		r.grow(2)
		return
	}
	chunk := time.AfterFunc(left, func() {
		r.mu.Lock() // not before it is waited for
		defer r.mu.Unlock()
		r.notFull.Broadcast()
	})
	r.notFull.Wait()
	chunk.Stop()
}

// grow uses so many times as much, as far as there is room.
func (r *ring) grow(times float64) {
	if more := uint64(min(float64(r.capacity)*times+0.5, float64(len(r.slots)))); more > r.capacity {
		r.capacity, r.lastFull = more, time.Time{}
		r.notFull.Broadcast()
	}
}

// taken is how many pieces were taken.
func (r *ring) taken() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// starved tells whether a taker waits.
func (r *ring) starved() bool { return r.takersWaiting.Load() > 0 }

// close says that the stream has n pieces and ended with err.
func (r *ring) close(n uint64, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end > n {
		return fmt.Errorf("%w: frame %d of a stream of %d", ErrMiscounted, r.end-1, n)
	}
	r.done, r.total, r.err = true, n, err
	r.ready.Broadcast()
	return nil
}

// truncate says that the stream ends early: takers get what has come up to the
// first gap, and then err.
func (r *ring) truncate(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.truncated == nil {
		r.truncated = err
	}
	r.ready.Broadcast()
}

// fail ends all waiting; nothing more is handed on.
func (r *ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		r.failure = err
	}
	r.notFull.Broadcast()
	r.ready.Broadcast()
}
