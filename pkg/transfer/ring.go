package transfer

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport/tcp"
)

// piece is a block of the stream in a ring.
type piece struct {
	block  *tcp.Block
	header tcp.Header // Position is the piece's number in the stream
	// ready is closed when a worker has processed the piece; nil without a worker.
	ready chan struct{}
	err   error // of the worker
}

// ring passes pieces from one stage to the next in the order of their numbers. They may arrive
// in any order. The ring bounds how many wait.
//
// A large ring that is always full evicts the processor's cache. So the ring starts small. If it is full, it
// grows for a slow taker, which hides pauses of the putter, and for a taker that pauses, as a pool does when it
// syncs.
//
// The ring cannot deadlock. It admits a piece if its number is below the next one plus the
// capacity, which always admits the next one. Each connection carries rising numbers, so the
// next piece never waits behind a later one.
type ring struct {
	mu        sync.Mutex
	notFull   sync.Cond
	ready     sync.Cond
	slots     []*piece // piece n is at n % len
	capacity  uint64   // slots in use, at most limit
	limit     uint64   // at most len(slots)
	next      uint64   // number of the next piece to take
	end       uint64   // one above the highest number put
	total     uint64   // pieces of the stream, once done
	done      bool
	err       error // returned after the last piece
	truncated error // returned at the first missing piece
	failure   error // returned immediately

	takersWaiting atomic.Int32

	started   time.Time     // when the first piece was taken
	lastTaken time.Time     // when a piece was last taken
	available func() uint64 // memory of the host in bytes, 0 if unknown
	free      []*tcp.Block  // a stack: the last block used is in the cache
	memory    blockMemory
}

// initialSize is the first capacity of a ring in bytes.
const initialSize = 16 << 20

// Limits of the growth.
const (
	stoppedAfter = 5 * time.Millisecond // a taker that took nothing for longer pauses
	slowRate     = 160 << 20            // bytes per second; a larger ring costs slower takers nothing
	coveredPause = 10 * time.Second     // a ring that lasts longer is large enough
	memoryShare  = 8                    // each step takes at most this part of the available memory
)

// newRing returns a ring for up to about size bytes in blocks of block bytes. Each block has
// front bytes of room before the payload. Blocks are allocated when first needed.
func newRing(size int64, block, front int) *ring {
	r := &ring{slots: make([]*piece, max(2, size/int64(block))), memory: blockMemory{size: block, front: front}}
	r.limit = uint64(len(r.slots))
	r.capacity = min(r.limit, uint64(max(2, initialSize/block)))
	r.available = func() uint64 { return sysinfo.AvailableMemory(os.DirFS("/")) }
	r.notFull.L, r.ready.L = &r.mu, &r.mu
	return r
}

// get returns an empty block. A stage gets one, fills it and puts it, so each goroutine holds
// at most one block outside the ring.
func (r *ring) get() *tcp.Block {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		b := r.free[n-1]
		r.free = r.free[:n-1]
		return b
	}
	return r.memory.newBlock()
}

// unmap releases the memory of all blocks. No block may be used afterwards.
func (r *ring) unmap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = nil
	r.memory.unmap()
}

// mapped reports whether all blocks are in mapped memory.
func (r *ring) mapped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.memory.mapped()
}

// release returns a block to the ring.
func (r *ring) release(b *tcp.Block) {
	r.mu.Lock()
	r.free = append(r.free, b)
	r.mu.Unlock()
}

// put adds a piece and waits until there is room for it. full counts the wait.
func (r *ring) put(p *piece, full *tcp.WaitTimer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := p.header.Position
	for r.mustWait(n) && r.grow() {
	}
	if r.mustWait(n) {
		full.Start()
		for r.mustWait(n) {
			r.notFull.Wait()
		}
		full.Stop()
	}
	if r.failure != nil {
		return r.failure
	}
	slot := &r.slots[n%uint64(len(r.slots))]
	if n < r.next || *slot != nil {
		return fmt.Errorf("%w: received frame %d twice", ErrTotalsMismatch, n)
	}
	*slot = p
	r.end = max(r.end, n+1)
	if n == r.next {
		r.ready.Signal()
	}
	return nil
}

// take removes the next piece and waits for it. nil is the end, with the error given to close.
// empty counts the wait.
func (r *ring) take(empty *tcp.WaitTimer) (*piece, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting := false
	defer func() {
		if waiting {
			empty.Stop()
			r.takersWaiting.Add(-1)
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
			r.lastTaken = time.Now()
			if r.next == 0 {
				r.started = r.lastTaken
			}
			r.next++
			if r.slots[r.next%uint64(len(r.slots))] != nil {
				r.ready.Signal() // wake another taker
			}
			r.notFull.Broadcast() // each putter waits for a different number
			return p, nil
		case r.done && r.next >= r.total:
			return nil, r.err
		case r.truncated != nil:
			return nil, r.truncated
		}
		if !waiting {
			waiting = true
			r.takersWaiting.Add(1)
			empty.Start()
		}
		r.ready.Wait()
	}
}

// mustWait reports whether piece n has to wait for room.
func (r *ring) mustWait(n uint64) bool {
	return n-r.next >= r.capacity && n >= r.next && r.failure == nil
}

// grow doubles the capacity of a full ring, up to its limit, if a larger one is useful. It reports whether the
// ring grew. A host that is short of memory ends the growth. The blocks are allocated only when pieces need them.
func (r *ring) grow() bool {
	now := time.Now()
	rate := float64(r.next) / now.Sub(r.started).Seconds() // pieces per second
	useful := rate*float64(r.memory.size) <= slowRate || now.Sub(r.lastTaken) > stoppedAfter
	more := min(r.capacity, r.limit-r.capacity)
	if more == 0 || !useful || float64(r.capacity) >= rate*coveredPause.Seconds() {
		return false
	}
	if bytes := r.available(); bytes > 0 {
		more = min(more, bytes/memoryShare/uint64(r.memory.size))
	}
	if more == 0 {
		r.limit = r.capacity
		return false
	}
	r.capacity += more
	r.notFull.Broadcast()
	return true
}

// taken returns the number of pieces taken.
func (r *ring) taken() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// starved reports whether a taker waits.
func (r *ring) starved() bool { return r.takersWaiting.Load() > 0 }

// close marks the end of a stream of n pieces. Takers get err after the last one.
func (r *ring) close(n uint64, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end > n {
		return fmt.Errorf("%w: frame %d of a stream of %d", ErrTotalsMismatch, r.end-1, n)
	}
	r.done, r.total, r.err = true, n, err
	r.ready.Broadcast()
	return nil
}

// truncate ends the stream early. Takers get all pieces before the first gap, and then err.
func (r *ring) truncate(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.truncated == nil {
		r.truncated = err
	}
	r.ready.Broadcast()
}

// fail unblocks all callers. They get err immediately.
func (r *ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		r.failure = err
	}
	r.notFull.Broadcast()
	r.ready.Broadcast()
}

// wait waits until a worker has processed the piece. w counts the wait.
func (p *piece) wait(ctx context.Context, w *tcp.WaitTimer) error {
	if p.ready == nil {
		return nil
	}
	select {
	case <-p.ready:
		return p.err
	default:
	}
	w.Start()
	defer w.Stop()
	select {
	case <-p.ready:
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
