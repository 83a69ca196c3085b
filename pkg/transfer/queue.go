package transfer

import (
	"sync"

	"zxfer/pkg/wire"
)

// queue hands frames from one stage to the next in the order of their
// numbers, whatever order they come in, and bounds how many wait.
//
// A put of the frame that is taken next never waits, so that the connection
// which carries it can always deliver: connections carry ascending numbers,
// hence one that waits here with a later frame never holds that one back.
type queue struct {
	mu     sync.Mutex
	change sync.Cond
	slots  []*wire.Frame // of numbers next … next+len-1, at number % len
	next   uint64
	last   uint64 // number of frames of the stream, once closed
	closed bool
	err    error
	free   []*wire.Frame
	size   int // payload bytes of new frames
}

// newQueue makes a queue of at most bytes, in frames of up to size.
func newQueue(bytes int64, size int) *queue {
	q := &queue{slots: make([]*wire.Frame, max(2, int(bytes/int64(size)))), size: size}
	q.change.L = &q.mu
	return q
}

// frame returns an empty frame, a used one if there is.
func (q *queue) frame() *wire.Frame {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.free); n > 0 {
		f := q.free[n-1]
		q.free = q.free[:n-1]
		return f
	}
	return wire.NewFrame(q.size)
}

// recycle takes a frame back.
func (q *queue) recycle(f *wire.Frame) {
	q.mu.Lock()
	q.free = append(q.free, f)
	q.mu.Unlock()
}

// put waits until there is room for the frame. It returns the queue's error
// once it failed.
func (q *queue) put(f *wire.Frame) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.err == nil && f.Seq >= q.next+uint64(len(q.slots)) {
		q.change.Wait()
	}
	if q.err != nil {
		return q.err
	}
	slot := &q.slots[f.Seq%uint64(len(q.slots))]
	if f.Seq < q.next || *slot != nil {
		q.fail(ErrMiscounted)
		return q.err
	}
	*slot = f
	q.change.Broadcast()
	return nil
}

// take waits for the next frame; nil without an error is the stream's end.
func (q *queue) take() (*wire.Frame, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		slot := &q.slots[q.next%uint64(len(q.slots))]
		switch {
		case q.err != nil:
			return nil, q.err
		case *slot != nil:
			f := *slot
			*slot = nil
			q.next++
			q.change.Broadcast()
			return f, nil
		case q.closed && q.next >= q.last:
			return nil, nil
		}
		q.change.Wait()
	}
}

// empty tells whether a taker is, or would be, waiting.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.slots[q.next%uint64(len(q.slots))] == nil
}

// close says that the stream has n frames.
func (q *queue) close(n uint64) {
	q.mu.Lock()
	q.closed, q.last = true, n
	q.change.Broadcast()
	q.mu.Unlock()
}

// abort ends all waiting with an error; the first one stays.
func (q *queue) abort(err error) {
	q.mu.Lock()
	q.fail(err)
	q.mu.Unlock()
}

func (q *queue) fail(err error) {
	if q.err == nil {
		q.err = err
	}
	q.change.Broadcast()
}

// count is the number of frames of a closed queue.
func (q *queue) count() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.last
}
