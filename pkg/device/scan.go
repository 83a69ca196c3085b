package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// holeRun bounds the blocks of a hole that are handled at once, so that
// several goroutines share the work of hashing them.
const holeRun = 32

// scan reads a device with several goroutines, each of which takes a block
// through all that the processor does with it while its cache holds it.
type scan struct {
	grid
	src  scanned
	sums []Sum // by block, filled as it goes
	// each receives every block that holds data, and owns b, whose payload that
	// is; and every run of blocks that hold none, with b nil. w is the
	// goroutine's number.
	each func(ctx context.Context, w int, first, count int64, b *tcp.Block) error
	pool *blockPool

	// What a target is known to hold each does not receive; nil for none.
	held    *presentBlocks
	asking  transfer.WaitTimers // by goroutine: it is not known yet what is held
	present atomic.Int64        // bytes that are

	read *effort
	hash *effort

	mu       sync.Mutex
	next     int64 // block
	from, to int64 // the range of data that was looked up last
}

// scanned is what a source and a target have in common.
type scanned interface {
	io.ReaderAt
	NextData(off int64) (start, end int64, err error)
}

// newScan scans all blocks of g with n goroutines.
func newScan(src scanned, g grid, pool *blockPool, n int) *scan {
	return &scan{grid: g, src: src, sums: make([]Sum, g.count), pool: pool, asking: transfer.NewWaitTimers(n),
		read: newEffort(transfer.StageRead, n), hash: newEffort(transfer.StageHash, n)}
}

// run scans the whole device; it returns when nothing of it runs any more.
func (s *scan) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var g sync.WaitGroup
	for w := range s.read.watch {
		g.Add(1)
		go func() {
			defer g.Done()
			if err := s.work(ctx, w); err != nil {
				fail(err)
			}
		}()
	}
	g.Wait()
	return context.Cause(ctx)
}

func (s *scan) work(ctx context.Context, w int) error {
	for ctx.Err() == nil {
		first, count, hole, err := s.take()
		switch {
		case err != nil:
			return err
		case count == 0:
			return nil
		case hole:
			err = s.hole(ctx, w, first, count)
		default:
			err = s.data(ctx, w, first)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// take hands out the next block, or the next run of blocks within a hole.
func (s *scan) take() (first, count int64, hole bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next >= s.count {
		return 0, 0, false, nil
	}
	off := s.next * s.block
	if off >= s.to {
		if s.from, s.to, err = s.src.NextData(off); err != nil {
			return 0, 0, false, err
		}
		if s.from >= s.size {
			s.from, s.to = s.size, s.size
		}
		s.to = max(s.to, s.from) // past the last data all is hole
	}
	first, count = s.next, 1
	switch {
	case s.from >= s.size: // no more data
		hole, count = true, min(holeRun, s.count-first)
	case s.from >= off+s.block:
		hole, count = true, min(holeRun, (s.from-off)/s.block)
	}
	s.next += count
	return first, count, hole, nil
}

// hole hashes blocks that are known to be zeros.
func (s *scan) hole(ctx context.Context, w int, first, count int64) error {
	b := s.pool.get()
	zeros := b.Room()[:s.block]
	clear(zeros)
	s.hash.watch[w].Start()
	for i := first; i < first+count; i++ {
		if s.cut.Quick && i > first && s.length(i) == s.block {
			s.sums[i] = s.sums[first] // wherever they are
			continue
		}
		s.sums[i] = s.sum(i, zeros[:s.length(i)])
	}
	s.hash.watch[w].Stop()
	s.pool.put(b)
	s.hash.bytes.Add(s.bytes(first, count))
	s.read.bytes.Add(s.bytes(first, count))
	return s.give(ctx, w, first, count, nil)
}

func (s *scan) data(ctx context.Context, w int, i int64) error {
	b := s.pool.get()
	n := s.length(i)
	p := b.Room()[:n]
	s.read.watch[w].Start()
	got, err := s.src.ReadAt(p, i*s.block)
	s.read.watch[w].Stop()
	if int64(got) < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w at byte %d: it became shorter", io.ErrUnexpectedEOF, i*s.block+int64(got))
		}
		return err
	}
	s.read.bytes.Add(n)
	s.hash.watch[w].Start()
	zero := IsZero(p)
	s.sums[i] = s.sum(i, p)
	s.hash.watch[w].Stop()
	s.hash.bytes.Add(n)
	if zero {
		s.pool.put(b)
		return s.give(ctx, w, i, 1, nil)
	}
	b.SetLen(int(n))
	return s.give(ctx, w, i, 1, b)
}

// give hands on what the target does not hold.
func (s *scan) give(ctx context.Context, w int, first, count int64, b *tcp.Block) error {
	if s.held == nil {
		return s.each(ctx, w, first, count, b)
	}
	for end := first + count; first < end; first++ {
		to, has := first, false
		for ; to < end; to++ {
			var err error
			if has, err = s.held.has(to, s.sums[to], s.asking[w]); err != nil {
				return err
			}
			if has {
				s.present.Add(s.length(to))
				break
			}
		}
		if to > first {
			if err := s.each(ctx, w, first, to-first, b); err != nil {
				return err
			}
			b = nil
		}
		first = to
	}
	s.pool.put(b)
	return nil
}

// stages are those of reading and hashing.
func (s *scan) stages(life time.Duration) []transfer.Stage {
	return []transfer.Stage{s.read.stage(life, true), s.hash.stage(life, true)}
}
