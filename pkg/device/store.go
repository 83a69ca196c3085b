package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// blockState is the store's knowledge of a block.
type blockState uint8

const (
	blockMissing blockState = iota
	blockPresent            // the target held it before, with the same sum as the source
	blockData               // written
	blockZero               // zeroed
)

// ErrCorrupt reports that the target returned other data than was written to it.
var ErrCorrupt = errors.New("data read back differs from data written")

// store is the target's half of a copy. It writes blocks in any order, syncs groups
// of them, records them in the journal and reads them back.
type store struct {
	grid
	dst     blockTarget
	journal blockJournal // may be nil
	opt     Options
	workers int
	pool    *blockPool

	write       *stageMeter
	verify      *stageMeter
	presentRead *stageMeter   // reads present blocks
	flush       tcp.WaitTimer // time in Sync

	mu            sync.Mutex
	sums          []Sum
	marks         []Mark // of written blocks; nil if they are not verified
	state         []blockState
	unsynced      []span // written since the last sync
	unsyncedBytes int64  // bytes of data in unsynced
	held          []span // synced, verified at the end
	last          map[int64]lastBlock
	verified      atomic.Int64

	syncNow  chan struct{} // requests a sync
	quit     chan struct{}
	stopping sync.Once
	synced   chan struct{} // closed when the syncer has ended
	check    *spanQueue
	checks   sync.WaitGroup
	fail     func(error)

	syncMu  sync.Mutex // serializes syncs; guards journal
	syncErr error      // of a sync: it is unknown which blocks are stored
}

// span is a run of blocks.
type span struct{ first, count int64 }

func newStore(dst blockTarget, journal blockJournal, size int64, opt Options, pool *blockPool) *store {
	s := &store{grid: newGrid(size, opt.BlockHash()), dst: dst, journal: journal, opt: opt, workers: opt.workers(), pool: pool,
		syncNow: make(chan struct{}, 1), quit: make(chan struct{}), synced: make(chan struct{}), check: newSpanQueue()}
	s.last = map[int64]lastBlock{}
	s.sums, s.state = make([]Sum, s.count), make([]blockState, s.count)
	s.write, s.verify, s.presentRead = newStageMeter(transfer.StageWrite, s.workers), newStageMeter(transfer.StageVerify, s.workers), newStageMeter(transfer.StageRead, s.workers)
	if !opt.NoVerify {
		s.marks = make([]Mark, s.count)
	}
	return s
}

// load marks the blocks in the journal as present.
func (s *store) load() {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if s.journal == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(s.sums, s.journal.Stored())
	for i, sum := range s.sums {
		if sum != (Sum{}) {
			s.state[i] = blockPresent
		}
	}
}

// start starts syncing and verifying. fail is called with errors, possibly several
// times.
func (s *store) start(ctx context.Context, fail func(error)) {
	s.fail = fail
	go s.syncer()
	if s.opt.NoVerify {
		return
	}
	for w := range s.verify.watch {
		s.checks.Add(1)
		go func() {
			defer s.checks.Done()
			if err := s.verifier(ctx, w); err != nil {
				s.fail(err)
			}
		}()
	}
}

// addSpans passes synced spans to the verifiers, or keeps them for the end.
func (s *store) addSpans(spans []span) {
	switch {
	case s.opt.NoVerify:
	case s.opt.VerifyLater:
		s.mu.Lock()
		s.held = append(s.held, spans...)
		s.mu.Unlock()
	default:
		s.check.add(spans)
	}
}

// spansOf returns the runs of blocks whose state satisfies is.
func (s *store) spansOf(is func(blockState) bool) []span {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []span
	for i := int64(0); i < s.count; i++ {
		if is(s.state[i]) {
			out = joinSpan(out, i, 1)
		}
	}
	return out
}

// joinSpan appends a run of blocks, or extends the last span if the run follows it.
func joinSpan(spans []span, first, count int64) []span {
	n := len(spans) - 1
	if n < 0 || spans[n].first+spans[n].count != first || spans[n].count+count > holeRun {
		return append(spans, span{first, count})
	}
	spans[n].count += count
	return spans
}

// set sets the sums and the state of blocks. The caller holds mu.
func (s *store) set(first int64, sums []Sum, st blockState) {
	copy(s.sums[first:], sums)
	for i := range sums {
		s.state[first+int64(i)] = st
	}
}

// A lastBlock is kept in memory and written after all others.
type lastBlock struct {
	data []byte
	sum  Sum
	mark Mark
}

// writeLast reports whether block i may identify the device: partition tables and
// superblocks lie near its start or at its end. Without these blocks nobody mounts
// an interrupted copy, and any signature on the target is older than the copy.
func (s *store) writeLast(i int64) bool { return i == 0 || i >= s.count-2 }

// data writes one block. w is the number of the goroutine.
func (s *store) data(w int, i int64, p []byte, sum Sum, mark Mark) error {
	if s.writeLast(i) {
		keep := tcp.NewAlignedBlock(len(p))
		copy(keep.Buffer(), p)
		s.mu.Lock()
		s.last[i] = lastBlock{keep.Buffer(), sum, mark}
		s.mu.Unlock()
		return nil
	}
	return s.put(w, i, p, sum, mark)
}

func (s *store) put(w int, i int64, p []byte, sum Sum, mark Mark) error {
	if s.marks != nil {
		s.marks[i] = mark // no other goroutine uses it before it is written
	}
	return s.written(w, i, []Sum{sum}, blockData, func() error {
		_, err := s.dst.WriteAt(p, i*s.block)
		return err
	})
}

func (s *store) zeros(w int, first int64, sums []Sum) error {
	return s.written(w, first, sums, blockZero, func() error {
		return s.dst.Zero(first*s.block, s.bytes(first, int64(len(sums))))
	})
}

// written runs write and marks the blocks as unsynced.
func (s *store) written(w int, first int64, sums []Sum, st blockState, write func() error) error {
	s.write.watch[w].Start()
	err := write()
	s.write.watch[w].Stop()
	if err != nil {
		return &transfer.TargetError{Err: err}
	}
	count := int64(len(sums))
	n := s.bytes(first, count)
	s.write.bytes.Add(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(first, sums, st)
	s.unsynced = joinSpan(s.unsynced, first, count)
	if st == blockData {
		s.unsyncedBytes += n
	}
	if s.unsyncedBytes >= syncBytes {
		select {
		case s.syncNow <- struct{}{}:
		default:
		}
	}
	return nil
}

func (s *store) stop() {
	s.stopping.Do(func() { close(s.quit) })
	<-s.synced
}

// finish syncs and verifies everything after all blocks were written. It returns
// the digest of the target.
func (s *store) finish(ctx context.Context) (digest [32]byte, err error) {
	s.stop()
	if len(s.last) > 0 {
		if err := s.sync(); err != nil {
			return digest, err
		}
		for i, b := range s.last {
			if err := s.put(0, i, b.data, b.sum, b.mark); err != nil {
				return digest, err
			}
		}
	}
	if missing := s.spansOf(func(st blockState) bool { return st == blockMissing }); len(missing) > 0 {
		return digest, fmt.Errorf("%w: missing the block at byte %d and %d other ranges", transfer.ErrTotalsMismatch, missing[0].first*s.block, len(missing)-1)
	}
	if err := s.sync(); err != nil {
		return digest, err
	}
	if !s.opt.NoVerify {
		s.check.add(s.held)
		if !s.opt.Delta {
			// Blocks in the journal. Only now it is certain that no block was
			// sent again.
			s.check.add(s.spansOf(func(st blockState) bool { return st == blockPresent }))
		}
	}
	s.check.close()
	s.checks.Wait()
	if err := context.Cause(ctx); err != nil {
		return digest, err
	}
	return s.cut.Root(s.sums), nil
}

// commit completes a copy whose digests match.
func (s *store) commit() error {
	if err := s.dst.Commit(); err != nil {
		_, _ = s.abandon() // the first error is reported
		return &transfer.TargetError{Err: err}
	}
	if s.journal != nil {
		if err := s.journal.Remove(); err != nil {
			_ = s.dst.Close() // the copy is complete
			return &transfer.TargetError{Err: fmt.Errorf("%s is complete, but its journal cannot be deleted: %w", s.dst.Name(), err)}
		}
	}
	if err := s.dst.Close(); err != nil {
		return &transfer.TargetError{Err: err}
	}
	return nil
}

// abandon ends a failed copy, like transfer.Engine.Abandon. It syncs and records the written blocks, so that the
// next attempt does not send them again.
func (s *store) abandon() (target string, err error) {
	s.stop()
	s.check.close()
	s.checks.Wait()
	if s.journal != nil {
		err = s.sync()
		_ = s.journal.Close() // Add has synced every record
	}
	if cerr := s.dst.Close(); err == nil && cerr != nil {
		err = cerr
	}
	return s.dst.Name(), err
}

// moved returns a counter that grows while the store makes progress.
func (s *store) moved() int64 {
	return s.write.bytes.Load() + s.verify.bytes.Load() + s.presentRead.bytes.Load()
}

// stages returns the statistics of writing and verifying.
func (s *store) stages(life time.Duration) []transfer.Stage {
	out := []transfer.Stage{s.write.stage(life, false)}
	if !s.opt.NoVerify {
		out = append(out, s.verify.stage(life, false))
	}
	return out
}

// idle reports whether no operation on the target is active.
func (s *store) idle() bool {
	return !s.write.running() && !s.verify.running() && !s.presentRead.running() && !s.flush.Running()
}

// stalled describes a target that does not complete its operations.
func (s *store) stalled() (what string, network bool) {
	return s.dst.Name() + " transferred no data", false
}

// account returns the store's part of a result.
func (s *store) account() (r Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Size, r.Block, r.Verified = s.size, int(s.block), s.verified.Load()
	for i, st := range s.state {
		switch n := s.length(int64(i)); st {
		case blockData:
			r.Data += n
		case blockZero:
			r.Zeros += n
		case blockPresent:
			r.Present += n
		}
	}
	switch {
	case !s.opt.Delta:
		r.Resumed = r.Present
	case !s.opt.NoVerify:
		r.Verified += r.Present // hashing has read it
	}
	return r
}

// The syncer syncs blocks at these intervals. Then they are recorded in the journal
// and read back. Short intervals lose little on interruption and overlap the
// read-back with the copy. Long intervals let drives write long runs.
const (
	syncEvery = 2 * time.Second
	syncBytes = 256 << 20
)

// syncer syncs groups of blocks until the store is stopped.
func (s *store) syncer() {
	defer close(s.synced)
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
		case <-s.syncNow:
		}
		if err := s.sync(); err != nil {
			s.fail(err)
			return
		}
	}
}

// sync stores all blocks written so far, records them and passes them to the
// verifiers.
func (s *store) sync() error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if s.syncErr != nil {
		return s.syncErr
	}
	s.mu.Lock()
	group := s.unsynced
	s.unsynced, s.unsyncedBytes = nil, 0
	s.mu.Unlock()
	if len(group) == 0 {
		return nil
	}
	s.flush.Start()
	err := s.dst.Sync()
	if err == nil && !s.opt.NoVerify {
		err = s.dst.DropCache()
	}
	s.flush.Stop()
	if err != nil {
		// Any block written so far may be lost. The kernel reports each failure
		// only once, so a later successful sync proves nothing
		// (https://lwn.net/Articles/752063/).
		s.syncErr = &transfer.TargetError{Err: err}
		return s.syncErr
	}
	if s.journal != nil {
		if err := s.record(group); err != nil {
			return &transfer.TargetError{Err: err}
		}
	}
	s.addSpans(group)
	return nil
}

// dropJournal removes a journal that lists blocks which are not stored.
func (s *store) dropJournal() {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if s.journal != nil {
		_ = s.journal.Remove() // the corruption itself is reported
		s.journal = nil
	}
}

// record adds stored blocks to the journal.
func (s *store) record(group []span) error {
	return s.journal.Add(func(yield func(int64, Sum) bool) {
		for _, sp := range group {
			for i := sp.first; i < sp.first+sp.count; i++ {
				s.mu.Lock()
				sum := s.sums[i]
				s.mu.Unlock()
				if !yield(i, sum) {
					return
				}
			}
		}
	})
}
