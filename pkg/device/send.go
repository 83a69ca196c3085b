package device

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
)

// send copies a device onto a link and waits until the receiver has stored and,
// unless told not to, read back all of it. Blocks that the receiver holds
// already are not sent. Errors are those of transfer.Send; the source is closed
// in any case.
//
// progress may be nil; it is called about twice a second and once at the end.
func send(ctx context.Context, src blockSource, link *wire.Link, opt Options, progress func(transfer.Progress)) (Result, error) {
	opt = opt.filled()
	s := &sending{src: src, link: link, out: transfer.NewOutgoing(link, "device", opt.Options), pool: &blockPool{size: opt.room()}}
	var err error
	if s.pack, err = transfer.NewCompressor(opt.Options); err != nil {
		link.Abort(err)
		return Result{}, errors.Join(err, src.Close())
	}
	workers, held := opt.workers(), len(link.Conns())
	if s.pack != nil {
		held += min(workers, s.pack.Threads)
		s.packing = newEffort(transfer.StageCompress, s.pack.Threads)
		s.packers = make(chan *wire.Stopwatch, s.pack.Threads)
		for _, w := range s.packing.watch {
			s.packers <- w
		}
	}
	s.queue = make(chan piece, opt.queue(held))
	s.scan = newScan(src, newGrid(src.Size(), opt.Cut()), s.pool, workers)
	s.scan.keep, s.scan.zeros = s.data, s.zeros
	s.held = newHoldings(s.scan.count)
	s.out.Have = s.held.parse
	s.asking = transfer.NewWatches(workers)
	s.life = &transfer.Life{Stall: opt.Stall, Report: progress, Over: s.out, Move: s.move, Unwind: s.held.fail, Account: s.account,
		Moved: func() int64 { return s.scan.read.bytes.Load() + s.out.Moved() },
		// How long the receiver may look at what it holds is its to say.
		Idle:    func() bool { return slices.ContainsFunc(s.asking, (*wire.Stopwatch).Running) },
		Stalled: func() (string, bool) { return s.out.Stalled(s.scan.read.bytes.Load()-s.present.Load(), src.Name()) }}
	res, err := s.life.Run(ctx)
	if cerr := src.Close(); err == nil {
		err = cerr
	}
	d := Account{Size: src.Size(), Block: opt.Block, Data: s.written.Load(), Zeros: s.zeroed.Load(), Present: s.present.Load(),
		TargetDigest: hex.EncodeToString(s.ack), BadRanges: src.BadRanges()}
	if err == nil {
		d.SourceDigest = s.scan.digest(s.root)
	}
	return Result{res, d}, err
}

// piece is a frame on its way between a connection and the device.
type piece struct {
	header wire.Header
	block  *wire.Block
}

// sending is the state of one send.
type sending struct {
	src  blockSource
	link *wire.Link
	life *transfer.Life
	out  *transfer.Outgoing

	scan    *scan
	held    *holdings
	asking  transfer.Watches // by reader: the receiver has not said yet what it holds
	pool    *blockPool
	queue   chan piece
	pack    *transfer.Compressor // nil without compression
	packing *effort
	packers chan *wire.Stopwatch // as many as may compress at once

	written, zeroed, present atomic.Int64 // bytes

	root [32]byte
	ack  []byte
}

// move brings all blocks onto the connections and waits for the receiver.
func (s *sending) move(ctx context.Context) (err error) {
	var g sync.WaitGroup
	for _, c := range s.link.Conns() {
		g.Add(1)
		go func() {
			defer g.Done()
			if err := s.transmit(ctx, c); err != nil {
				s.out.Explain(ctx, err)
			}
		}()
	}
	if err := s.scan.run(ctx); err != nil {
		s.life.Fail(err)
	}
	close(s.queue)
	g.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := s.src.Unchanged(); err != nil {
		return err
	}
	s.root = s.scan.cut.Root(s.scan.sums)
	s.ack, err = s.out.End(ctx, wire.Account{Bytes: uint64(s.out.Bytes()), Digested: true, Digest: [16]byte(s.root[:16])})
	return err
}

// data sends a block, unless the receiver has it.
func (s *sending) data(ctx context.Context, w int, i int64, b *wire.Block) error {
	sum := s.scan.sums[i]
	raw := len(b.Payload())
	has, err := s.held.has(i, sum, s.asking[w])
	if err != nil {
		return err
	}
	if has {
		s.pool.put(b)
		s.present.Add(int64(raw))
		return nil
	}
	mark := s.scan.mark(b.Payload(), sum)
	h := wire.Header{Kind: wire.Data, Flags: wire.Summed, Position: uint64(i * s.scan.block), Raw: uint32(raw)}
	if s.pack != nil {
		watch := <-s.packers // whoever has it never waits for more than the processor
		watch.Start()
		packed := s.pack.Encode(b, int64(len(s.queue)), s.pool.get, s.pool.put)
		watch.Stop()
		s.packers <- watch
		s.packing.bytes.Add(int64(raw))
		if packed != nil {
			h.Flags |= wire.Compressed
			s.pool.put(b)
			b = packed
		}
	}
	trail(b, len(b.Payload()), []Sum{sum}, mark)
	return s.enqueue(ctx, piece{h, b})
}

// zeros tells of a run of zeros, but for the parts that the receiver has.
func (s *sending) zeros(ctx context.Context, w int, first, count int64) error {
	return s.held.lacking(first, s.scan.sums[first:first+count], s.asking[w],
		func(i, end int64) error { return s.zeroRun(ctx, i, end) },
		func(i int64) { s.present.Add(s.scan.length(i)) })
}

func (s *sending) zeroRun(ctx context.Context, first, end int64) error {
	b := s.pool.get()
	trail(b, 0, s.scan.sums[first:end], foldSums(s.scan.sums[first:end]))
	h := wire.Header{Kind: wire.Data, Flags: wire.Zero | wire.Summed,
		Position: uint64(first * s.scan.block), Raw: uint32(s.scan.bytes(first, end-first))}
	return s.enqueue(ctx, piece{h, b})
}

func (s *sending) enqueue(ctx context.Context, p piece) error {
	select {
	case s.queue <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// transmit sends frames over one connection until there are no more.
func (s *sending) transmit(ctx context.Context, c *wire.Conn) error {
	empty := s.out.Empty[c.Stream()]
	for {
		empty.Start()
		select {
		case p, ok := <-s.queue:
			if !ok {
				return nil // from now on it waits for the others
			}
			empty.Stop()
			if err := s.write(ctx, c, p); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *sending) write(ctx context.Context, c *wire.Conn, p piece) error {
	if err := s.out.Write(ctx, c, p.header, p.block); err != nil {
		return err
	}
	count := &s.written
	if p.header.Flags&wire.Zero != 0 {
		count = &s.zeroed
	}
	count.Add(int64(p.header.Raw))
	s.pool.put(p.block)
	return nil
}

// account counts what the receiver has already, too.
func (s *sending) account(life time.Duration) (int64, []transfer.Stage) {
	stages := s.scan.stages(life)
	if s.pack != nil {
		stages = append(stages, s.packing.stage(life, true))
	}
	return s.out.Bytes() + s.present.Load(), append(stages, s.out.Stages(life)...)
}
