package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// Source is a device or image file opened for reading. Its methods except Close may
// be called concurrently.
type Source struct {
	*handle
	skipErrors bool // replace unreadable ranges with zeros and list them in BadRanges
	bad        badRanges
	// intact and remove belong to the LVM snapshot that is read instead of the
	// volume.
	intact func() error
	remove func() error
}

// openSource opens the source of a task, or a new snapshot of it.
func openSource(ctx context.Context, t Task) (*Source, error) {
	if t.LVMSnapshot == "" {
		return OpenSource(ctx, t.Source, t.SkipErrors)
	}
	snapshot, err := SnapshotLV(ctx, t.Source, t.LVMSnapshot)
	if err != nil {
		return nil, err
	}
	var s *Source
	facts, err := Inspect(ctx, snapshot.Path)
	if err == nil {
		facts.Path = t.Source.Path
		s, err = OpenSource(ctx, facts, t.SkipErrors)
	}
	if err != nil {
		return nil, errors.Join(err, snapshot.Remove(ctx))
	}
	s.intact = func() error { return snapshot.Intact(ctx) }
	s.remove = func() error { return snapshot.Remove(ctx) }
	return s, nil
}

// OpenSource opens the device that Inspect found. It fails if the device has
// changed since.
func OpenSource(ctx context.Context, f Facts, skipErrors bool) (*Source, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h, err := openHandle(f, unix.O_RDONLY)
	if err != nil {
		return nil, hintReadable(err)
	}
	nothing := func() error { return nil }
	s := &Source{handle: h, skipErrors: skipErrors, intact: nothing, remove: nothing}
	if err := s.Unchanged(); err != nil {
		return nil, errors.Join(err, h.f.Close())
	}
	return s, nil
}

// Size returns the number of bytes to read, as Inspect found it.
func (s *Source) Size() int64 { return s.size }

// ReadAt works as in handle. If skipErrors is set, unreadable ranges read as zeros.
func (s *Source) ReadAt(p []byte, off int64) (n int, err error) {
	if n, err = s.handle.ReadAt(p, off); !s.skipErrors || !isMedium(err) {
		return n, err
	}
	want := min(int64(len(p)), s.size-off)
	s.salvage(p[:want], off)
	if int(want) < len(p) {
		return int(want), io.EOF
	}
	return len(p), nil
}

// Unchanged returns an error if the data read may be inconsistent: the device was
// replaced or resized, the file was written to, or the snapshot ran out of space.
// It does not detect writes to a block device.
func (s *Source) Unchanged() error {
	err := errors.Join(s.sameObject(), s.intact())
	if err != nil || !s.facts.IsFile() {
		return err
	}
	const hint = "copy the source again while no program writes to it"
	st, err := s.stat()
	at := time.Unix(st.Mtim.Unix())
	switch {
	case err != nil:
		return err
	case st.Size != s.facts.Size:
		return fault.Failf(hint, "%s changed: it had %d bytes, now %d", s.facts.Path, s.facts.Size, st.Size)
	case !s.facts.ModTime.IsZero() && !at.Equal(s.facts.ModTime):
		return fault.Failf(hint, "%s was modified at %s", s.facts.Path, at.UTC().Format(time.RFC3339))
	}
	return nil
}

// BadRanges returns the unreadable ranges in order. It is empty unless skipErrors
// is set.
func (s *Source) BadRanges() []Range { return s.bad.list() }

// Close closes the source and removes its snapshot.
func (s *Source) Close() error { return errors.Join(s.f.Close(), s.remove()) }

// holeRun limits the blocks of a hole that one goroutine takes together, so that
// several goroutines share the hashing.
const holeRun = 32

// scan reads and hashes a device with several goroutines. A goroutine takes a block
// through all its processing while the block is in the processor's cache.
type scan struct {
	grid
	src  dataReader
	sums []Sum // filled during the scan
	// onBlock receives each block with data in b, which it owns, and each run of
	// zero blocks, with b nil. w is the number of the goroutine.
	onBlock func(ctx context.Context, w int, first, count int64, b *tcp.Block) error
	pool    *blockPool

	// onTarget holds the present blocks, which onBlock does not receive. It may be
	// nil.
	onTarget    *presentBlocks
	presentWait transfer.WaitTimers // by goroutine, time waiting for onTarget
	present     atomic.Int64        // bytes

	read *stageMeter
	hash *stageMeter

	mu       sync.Mutex
	next     int64 // next block to scan
	from, to int64 // last range that NextData returned
}

// dataReader is the common part of blockSource and blockTarget.
type dataReader interface {
	io.ReaderAt
	NextData(off int64) (start, end int64, err error)
}

// newScan returns a scan of all blocks of g with n goroutines.
func newScan(src dataReader, g grid, pool *blockPool, n int) *scan {
	return &scan{grid: g, src: src, sums: make([]Sum, g.count), pool: pool, presentWait: transfer.NewWaitTimers(n),
		read: newStageMeter(transfer.StageRead, n), hash: newStageMeter(transfer.StageHash, n)}
}

// run scans the whole device. It returns after all its goroutines have ended.
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

// take returns the next block, or the next run of blocks in a hole. count is 0 at
// the end.
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
		s.to = max(s.to, s.from) // only a hole follows the last data
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

func (s *scan) hole(ctx context.Context, w int, first, count int64) error {
	b := s.pool.get()
	zeros := b.Buffer()[:s.block]
	clear(zeros)
	s.hash.watch[w].Start()
	for i := first; i < first+count; i++ {
		if s.cut.Quick && i > first && s.length(i) == s.block {
			s.sums[i] = s.sums[first] // quick sums do not depend on the offset
			continue
		}
		s.sums[i] = s.sum(i, zeros[:s.length(i)])
	}
	s.hash.watch[w].Stop()
	s.pool.put(b)
	s.hash.bytes.Add(s.bytes(first, count))
	s.read.bytes.Add(s.bytes(first, count))
	return s.deliver(ctx, w, first, count, nil)
}

func (s *scan) data(ctx context.Context, w int, i int64) error {
	b := s.pool.get()
	n := s.length(i)
	p := b.Buffer()[:n]
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
		return s.deliver(ctx, w, i, 1, nil)
	}
	b.SetLen(int(n))
	return s.deliver(ctx, w, i, 1, b)
}

// deliver passes blocks that the target lacks to onBlock.
func (s *scan) deliver(ctx context.Context, w int, first, count int64, b *tcp.Block) error {
	if s.onTarget == nil {
		return s.onBlock(ctx, w, first, count, b)
	}
	for end := first + count; first < end; first++ {
		to, has := first, false
		for ; to < end; to++ {
			var err error
			if has, err = s.onTarget.has(to, s.sums[to], s.presentWait[w]); err != nil {
				return err
			}
			if has {
				s.present.Add(s.length(to))
				break
			}
		}
		if to > first {
			if err := s.onBlock(ctx, w, first, to-first, b); err != nil {
				return err
			}
			b = nil
		}
		first = to
	}
	s.pool.put(b)
	return nil
}

// stages returns the statistics of reading and hashing.
func (s *scan) stages(life time.Duration) []transfer.Stage {
	return []transfer.Stage{s.read.stage(life, true), s.hash.stage(life, true)}
}
