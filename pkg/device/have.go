package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"zxfer/pkg/transport/tcp"
)

// presentBlocks are the hashes of what the target holds already, as they become
// known: in the order of the blocks, while the source is read. A block whose
// hash equals its source's is not copied.
//
// They cross the wire in frames of kind wire.Have. Position is the index of
// the first block that the frame tells of, the payload one hash for each;
// blocks before it that no frame told of are not there. A frame without a
// payload at the number of blocks ends them.
type presentBlocks struct {
	count int64

	mu    sync.Mutex
	more  sync.Cond
	known int64 // blocks before this one are decided
	sums  []Sum // nil until there is one; all zero bytes mean none
	err   error
}

// perHave is how many hashes a frame holds.
const perHave = tcp.MaxControl / tcp.SumSize

func newPresentBlocks(count int64) *presentBlocks {
	h := &presentBlocks{count: count}
	h.more.L = &h.mu
	return h
}

// tell adds the hashes of blocks from first on.
func (h *presentBlocks) tell(first int64, sums []Sum) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if first < h.known || first+int64(len(sums)) > h.count {
		return fmt.Errorf("%w: hashes of blocks %d to %d of %d, after those to %d", tcp.ErrTampered, first, first+int64(len(sums)), h.count, h.known)
	}
	if h.sums == nil && len(sums) > 0 {
		h.sums = make([]Sum, h.count)
	}
	copy(h.sums[min(first, int64(len(h.sums))):], sums)
	h.known = first + int64(len(sums))
	h.more.Broadcast()
	return nil
}

// parse takes a frame in.
func (h *presentBlocks) parse(position uint64, payload []byte) error {
	if position > uint64(h.count) || len(payload)%tcp.SumSize != 0 {
		return fmt.Errorf("%w: hashes of what is there: %d bytes at block %d of %d", tcp.ErrTampered, len(payload), position, h.count)
	}
	return h.tell(int64(position), cutSums(payload))
}

// fail ends all waits.
func (h *presentBlocks) fail(err error) {
	h.mu.Lock()
	h.err = err
	h.more.Broadcast()
	h.mu.Unlock()
}

// has waits until it is decided whether the target holds a block, and tells
// whether it holds this one.
func (h *presentBlocks) has(i int64, sum Sum, wait *tcp.WaitTimer) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known <= i && h.err == nil {
		wait.Start()
		for h.known <= i && h.err == nil {
			h.more.Wait()
		}
		wait.Stop()
	}
	if h.err != nil {
		return false, h.err
	}
	return h.sums != nil && h.sums[i] == sum, nil
}

// announce is the telling side: it turns what a journal vouches for, and with
// delta what the target hashes now, into ordered calls of tell.
func (s *store) announce(ctx context.Context, delta bool, tell func(first int64, sums []Sum) error) error {
	if delta {
		if err := s.hashPresent(ctx, tell); err != nil {
			return err
		}
		return tell(s.count, nil)
	}
	s.load()
	for first := int64(0); first < s.count; {
		if s.state[first] != blockPresent {
			first++
			continue
		}
		end := first
		for end < s.count && end-first < perHave && s.state[end] == blockPresent {
			end++
		}
		if err := tell(first, s.sums[first:end]); err != nil {
			return err
		}
		first = end
	}
	return tell(s.count, nil)
}

// hashPresent hashes the whole target, several blocks at once, and tells of
// them in order.
func (s *store) hashPresent(ctx context.Context, tell func(int64, []Sum) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	scanner := newScan(&presentReader{s.dst, s.size}, s.grid, s.pool, s.workers)
	scanner.read = s.look
	done := make([]bool, s.count)
	var mu sync.Mutex
	told := int64(0)
	// As ordered telling needs a lock anyway, whoever completes the prefix tells.
	scanner.each = func(_ context.Context, _ int, first, count int64, b *tcp.Block) error {
		s.pool.put(b)
		mu.Lock()
		defer mu.Unlock()
		for i := first; i < first+count; i++ {
			done[i] = true
		}
		end := told
		for end < s.count && done[end] {
			end++
		}
		if end-told < perHave && end < s.count {
			return nil
		}
		for told < end {
			n := min(perHave, end-told)
			// From here on a block may be sent, and its hash be replaced.
			sums := append([]Sum(nil), scanner.sums[told:told+n]...)
			s.mu.Lock()
			s.set(told, sums, blockPresent)
			s.mu.Unlock()
			if err := tell(told, sums); err != nil {
				return err
			}
			told += n
		}
		return nil
	}
	return scanner.run(ctx)
}

// presentReader reads a target that may be shorter than the source: what it
// lacks reads as zeros, which is what it will be extended by.
type presentReader struct {
	blockTarget
	size int64
}

func (r *presentReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.blockTarget.ReadAt(p, off)
	if n < len(p) && errors.Is(err, io.EOF) {
		clear(p[n:])
		return len(p), nil
	}
	return n, err
}
