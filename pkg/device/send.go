package device

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// send copies a device to a link and waits until the receiver has stored it and,
// unless NoVerify is set, read it back. It does not send present blocks. It always
// closes the source. Errors are those of transfer.Send.
func send(ctx context.Context, src blockSource, link *tcp.Link, opt Options, progress func(transfer.Progress)) (Result, error) {
	opt = opt.filled()
	s := &sender{src: src, link: link, out: transfer.NewOutgoing(link, "device", opt.Options), pool: &blockPool{size: opt.frameSize()}}
	var err error
	if s.compressor, err = transfer.NewCompressor(opt.Options); err != nil {
		link.Abort(err)
		return Result{}, errors.Join(err, src.Close())
	}
	workers, held := opt.workers(), len(link.Conns())
	if s.compressor != nil {
		held += min(workers, s.compressor.Threads)
		s.compressMeter = newStageMeter(transfer.StageCompress, s.compressor.Threads)
		s.compressors = make(chan *tcp.WaitTimer, s.compressor.Threads)
		for _, w := range s.compressMeter.watch {
			s.compressors <- w
		}
	}
	s.queue = make(chan frame, opt.queueLen(held))
	s.scan = newScan(src, newGrid(src.Size(), opt.BlockHash()), s.pool, workers)
	s.scan.onBlock, s.scan.onTarget = s.block, newPresentBlocks(s.scan.count)
	s.out.Have = s.scan.onTarget.parse
	res, err := (&transfer.Lifecycle{Engine: s, Stall: opt.Stall, Report: progress, End: s.out}).Run(ctx)
	if cerr := src.Close(); err == nil {
		err = cerr
	}
	d := Account{Size: src.Size(), Block: opt.Block, Data: s.written.Load(), Zeros: s.zeroed.Load(), Present: s.scan.present.Load(),
		BadRanges: src.BadRanges()}
	if err == nil {
		d.SourceDigest = opt.digest(s.root)
		if len(s.ack) == len(s.root) {
			d.TargetDigest = opt.digest([32]byte(s.ack))
		}
	}
	return Result{res, d}, err
}

// sender is the engine of one send.
type sender struct {
	src  blockSource
	link *tcp.Link
	out  *transfer.Outgoing

	scan          *scan
	pool          *blockPool
	queue         chan frame
	compressor    *transfer.Compressor // nil without compression
	compressMeter *stageMeter
	compressors   chan *tcp.WaitTimer // limits concurrent compression

	written, zeroed atomic.Int64 // bytes

	root [32]byte
	ack  []byte
}

// Move sends all blocks and waits for the receiver.
func (s *sender) Move(ctx context.Context, fail func(error)) (err error) {
	var g sync.WaitGroup
	for _, c := range s.link.Conns() {
		g.Add(1)
		go func() {
			defer g.Done()
			if err := s.transmit(ctx, c); err != nil {
				s.out.ConnFailed(ctx, err)
			}
		}()
	}
	if err := s.scan.run(ctx); err != nil {
		fail(err)
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
	s.ack, err = s.out.End(ctx, tcp.Account{Bytes: uint64(s.out.Bytes()), Digested: true, Digest: [16]byte(s.root[:16])})
	return err
}

func (s *sender) Unwind(cause error) { s.scan.onTarget.fail(cause) }

func (*sender) Commit(context.Context) error { return nil }

func (*sender) Abandon() (target string, err error) { return "", nil }

// block queues a block or a run of zero blocks.
func (s *sender) block(ctx context.Context, _ int, first, count int64, b *tcp.Block) error {
	sums := s.scan.sums[first : first+count]
	h := tcp.Header{Kind: tcp.Data, Flags: tcp.Summed, Position: uint64(first * s.scan.block), Raw: uint32(s.scan.bytes(first, count))}
	if b == nil {
		h.Flags |= tcp.Zero
		b = s.pool.get()
		appendTrailer(b, 0, sums, foldSums(sums))
		return s.enqueue(ctx, frame{h, b})
	}
	mark := s.scan.mark(b.Payload(), sums[0])
	if s.compressor != nil {
		watch := <-s.compressors // its holders wait only for the processor
		watch.Start()
		packed := s.compressor.Encode(b, int64(len(s.queue)), s.pool.get, s.pool.put)
		watch.Stop()
		s.compressors <- watch
		s.compressMeter.bytes.Add(int64(h.Raw))
		if packed != nil {
			h.Flags |= tcp.Compressed
			s.pool.put(b)
			b = packed
		}
	}
	appendTrailer(b, len(b.Payload()), sums, mark)
	return s.enqueue(ctx, frame{h, b})
}

func (s *sender) enqueue(ctx context.Context, p frame) error {
	select {
	case s.queue <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// transmit sends frames over one connection until the queue is closed.
func (s *sender) transmit(ctx context.Context, c *tcp.Conn) error {
	empty := s.out.Empty[c.Stream()]
	for {
		empty.Start()
		select {
		case p, ok := <-s.queue:
			if !ok {
				return nil // the empty timer keeps running while other connections finish
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

func (s *sender) write(ctx context.Context, c *tcp.Conn, p frame) error {
	if err := s.out.Write(ctx, c, p.header, p.block); err != nil {
		return err
	}
	count := &s.written
	if p.header.Flags&tcp.Zero != 0 {
		count = &s.zeroed
	}
	count.Add(int64(p.header.Raw))
	s.pool.put(p.block)
	return nil
}

// Account includes present blocks in the bytes. It is idle while it waits for the receiver to report its present
// blocks.
func (s *sender) Account(life time.Duration) transfer.State {
	stages := s.scan.stages(life)
	if s.compressor != nil {
		stages = append(stages, s.compressMeter.stage(life, true))
	}
	return transfer.State{Bytes: s.out.Bytes() + s.scan.present.Load(), Moved: s.scan.read.bytes.Load() + s.out.Moved(),
		Idle:   slices.ContainsFunc(s.scan.presentWait, (*tcp.WaitTimer).Running),
		Stages: append(stages, s.out.Stages(life)...)}
}

func (s *sender) Stalled() (what string, network bool) {
	return s.out.Stalled(s.scan.read.bytes.Load()-s.scan.present.Load(), s.src.Name())
}

// frame is a frame in the queue between a connection and the device.
type frame struct {
	header tcp.Header
	block  *tcp.Block
}

// appendTrailer appends sums and a mark to the n bytes of payload in b.
func appendTrailer(b *tcp.Block, n int, sums []Sum, mark Mark) {
	room := b.Buffer()
	for _, s := range sums {
		n += copy(room[n:], s[:])
	}
	b.SetLen(n + copy(room[n:], mark[:]))
}

// parseSums parses a payload of sums.
func parseSums(p []byte) []Sum {
	sums := make([]Sum, len(p)/tcp.SumSize)
	for i := range sums {
		copy(sums[i][:], p[i*tcp.SumSize:])
	}
	return sums
}

// splitTrailer splits a payload. The header's check has ensured that it is long
// enough.
func splitTrailer(p []byte) (data []byte, sum Sum, mark Mark) {
	n := len(p) - tcp.TrailerSize
	return p[:n], Sum(p[n:]), Mark(p[n+tcp.SumSize:])
}
