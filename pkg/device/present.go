package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"zxfer/pkg/transport/tcp"
)

// presentBlocks holds the sums of the blocks that the target already has. Sums
// arrive in block order while the source is read. A block with an equal sum is not
// copied.
//
// The receiver sends them in frames of kind tcp.Have. Position is the index of the
// first block, and the payload holds one sum per block. Skipped blocks are absent
// on the target. An empty frame whose position is the number of blocks ends the
// list.
type presentBlocks struct {
	count int64

	mu    sync.Mutex
	more  sync.Cond
	known int64 // blocks below this index are decided
	sums  []Sum // nil before the first sum; a zero sum is an absent block
	err   error
}

// sumsPerFrame is the number of sums in a frame.
const sumsPerFrame = tcp.MaxControl / tcp.SumSize

func newPresentBlocks(count int64) *presentBlocks {
	h := &presentBlocks{count: count}
	h.more.L = &h.mu
	return h
}

// add adds the sums of consecutive blocks, starting at first.
func (h *presentBlocks) add(first int64, sums []Sum) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if first < h.known || first+int64(len(sums)) > h.count {
		return fmt.Errorf("%w: received hashes of blocks %d to %d of %d, after blocks up to %d", tcp.ErrTampered, first, first+int64(len(sums)), h.count, h.known)
	}
	if h.sums == nil && len(sums) > 0 {
		h.sums = make([]Sum, h.count)
	}
	copy(h.sums[min(first, int64(len(h.sums))):], sums)
	h.known = first + int64(len(sums))
	h.more.Broadcast()
	return nil
}

// parse adds the sums of a frame.
func (h *presentBlocks) parse(position uint64, payload []byte) error {
	if position > uint64(h.count) || len(payload)%tcp.SumSize != 0 {
		return fmt.Errorf("%w: received %d bytes of target hashes at block %d of %d", tcp.ErrTampered, len(payload), position, h.count)
	}
	return h.add(int64(position), parseSums(payload))
}

// fail makes all current and later waits return err.
func (h *presentBlocks) fail(err error) {
	h.mu.Lock()
	h.err = err
	h.more.Broadcast()
	h.mu.Unlock()
}

// has reports whether the target holds block i with the same sum. It waits until
// this is known.
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

// reportPresent passes the present blocks to report, in order: those in the journal
// or, with delta, all blocks of the target, which it hashes.
func (s *store) reportPresent(ctx context.Context, delta bool, tell func(first int64, sums []Sum) error) error {
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
		for end < s.count && end-first < sumsPerFrame && s.state[end] == blockPresent {
			end++
		}
		if err := tell(first, s.sums[first:end]); err != nil {
			return err
		}
		first = end
	}
	return tell(s.count, nil)
}

// hashPresent hashes the whole target concurrently and reports its sums in order.
func (s *store) hashPresent(ctx context.Context, tell func(int64, []Sum) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	scanner := newScan(&presentReader{s.dst, s.size}, s.grid, s.pool, s.workers)
	scanner.read = s.presentRead
	done := make([]bool, s.count)
	var mu sync.Mutex
	reported := int64(0)
	// Reporting in order needs a lock, so the goroutine that completes the prefix
	// reports.
	scanner.onBlock = func(_ context.Context, _ int, first, count int64, b *tcp.Block) error {
		s.pool.put(b)
		mu.Lock()
		defer mu.Unlock()
		for i := first; i < first+count; i++ {
			done[i] = true
		}
		end := reported
		for end < s.count && done[end] {
			end++
		}
		if end-reported < sumsPerFrame && end < s.count {
			return nil
		}
		for reported < end {
			n := min(sumsPerFrame, end-reported)
			// Once reported, a block may be sent and its sum replaced: pass a copy.
			sums := append([]Sum(nil), scanner.sums[reported:reported+n]...)
			s.mu.Lock()
			s.set(reported, sums, blockPresent)
			s.mu.Unlock()
			if err := tell(reported, sums); err != nil {
				return err
			}
			reported += n
		}
		return nil
	}
	return scanner.run(ctx)
}

// presentReader reads a target that may be shorter than the source. Missing bytes
// read as zeros, because the file is extended with zeros.
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
