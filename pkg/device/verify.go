package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"zxfer/pkg/transfer"
)

// verifier reads back spans until check is closed. After a failure, abandon closes
// it.
func (s *store) verifier(ctx context.Context, w int) error {
	for {
		sp, ok := s.check.take()
		if !ok {
			return nil
		}
		b := s.pool.get()
		s.verify.watch[w].Start()
		err := s.readBack(ctx, b.Buffer(), sp)
		s.verify.watch[w].Stop()
		s.pool.put(b)
		if err != nil {
			return err
		}
	}
}

// readBack compares a span of the target with its expected contents.
func (s *store) readBack(ctx context.Context, room []byte, sp span) error {
	for i := sp.first; i < sp.first+sp.count; i++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.mu.Lock()
		want, mark, st := s.sums[i], s.marks[i], s.state[i]
		s.mu.Unlock()
		n := s.length(i)
		if st == blockZero {
			// A hole of a file is known to be zeros.
			if start, _, err := s.dst.NextData(i * s.block); err == nil && start >= i*s.block+n {
				s.verified.Add(n)
				s.verify.bytes.Add(n)
				continue
			}
		}
		p := room[:n]
		if got, err := s.dst.ReadAt(p, i*s.block); int64(got) < n {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return &transfer.TargetError{Err: fmt.Errorf("read back at byte %d: %w", i*s.block, err)}
		}
		ok := false
		switch st {
		case blockZero:
			ok = IsZero(p)
		case blockData:
			ok = MarkOf(p) == mark
		default: // written by an earlier copy, which recorded its sum
			ok = s.sum(i, p) == want
		}
		if !ok {
			s.dropJournal()
			return &transfer.TargetError{Err: fmt.Errorf("%w: bytes %d to %d", ErrCorrupt, i*s.block, i*s.block+n)}
		}
		s.verified.Add(n)
		s.verify.bytes.Add(n)
	}
	return nil
}

// spanQueue distributes spans among the verifiers.
type spanQueue struct {
	mu     sync.Mutex
	more   sync.Cond
	spans  []span
	closed bool
}

func newSpanQueue() *spanQueue {
	q := &spanQueue{}
	q.more.L = &q.mu
	return q
}

func (q *spanQueue) add(spans []span) {
	q.mu.Lock()
	q.spans = append(q.spans, spans...)
	q.mu.Unlock()
	q.more.Broadcast()
}

func (q *spanQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Broadcast()
}

// take waits for a span. ok is false when the queue is closed and empty.
func (q *spanQueue) take() (sp span, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.spans) == 0 && !q.closed {
		q.more.Wait()
	}
	if len(q.spans) == 0 {
		return span{}, false
	}
	sp, q.spans = q.spans[0], q.spans[1:]
	return sp, true
}
