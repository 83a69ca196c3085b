package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/wire"
)

// SendDevice copies a device onto a link and waits until the receiver has
// stored and, unless told not to, read back all of it. Blocks that the
// receiver holds already are not sent. Errors are those of Send; the Source is
// closed in any case.
//
// progress may be nil; it is called about twice a second and once at the end.
func SendDevice(ctx context.Context, src BlockSource, link *wire.Link, opt DeviceOptions, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	s := &deviceSending{src: src, link: link, opt: opt, started: time.Now(), hear: newHearing(link, "device"),
		pool: &blockPool{size: opt.room()}}
	var err error
	if s.pack, err = newPacker(opt.Options); err != nil {
		link.Abort(err)
		return Result{}, errors.Join(err, src.Close())
	}
	n, workers := len(link.Conns()), opt.workers()
	held := n
	if s.pack != nil {
		held += min(workers, s.pack.threads)
	}
	s.queue = make(chan devicePiece, opt.queue(held))
	s.scan = newScan(src, newGrid(src.Size(), opt.Cut()), s.pool, workers)
	s.scan.keep, s.scan.zeros = s.data, s.zeros
	s.held = newHoldings(s.scan.count)
	s.asking = stopwatches(workers)
	if s.pack != nil {
		s.packing = newEffort(StageCompress, s.pack.threads)
		s.packers = make(chan *wire.Stopwatch, s.pack.threads)
		for _, w := range s.packing.watch {
			s.packers <- w
		}
	}
	s.empty, s.limited = stopwatches(n), stopwatches(n)
	s.limit = opt.bandwidth(s.limited)
	s.meter.name, s.meter.in = StageSend, plus(waits(s.empty...), waits(s.limited...))
	var written []*wire.Stopwatch
	for _, c := range link.Conns() {
		written = append(written, c.WriteWait())
	}
	s.meter.out = waits(written...)
	return s.run(ctx, progress)
}

// devicePiece is a frame that waits for a connection.
type devicePiece struct {
	header wire.Header
	block  *wire.Block
}

// deviceSending is the state of one SendDevice.
type deviceSending struct {
	src     BlockSource
	link    *wire.Link
	opt     DeviceOptions
	started time.Time

	scan    *scan
	held    *holdings
	asking  []*wire.Stopwatch // by reader: the receiver has not said yet what it holds
	pool    *blockPool
	queue   chan devicePiece
	pack    *packer // nil without compression
	packing *effort
	packers chan *wire.Stopwatch // as many as may compress at once
	limit   *bandwidth
	meter   meter
	empty   []*wire.Stopwatch // by connection: nothing to send
	limited []*wire.Stopwatch // by connection: the bandwidth limit

	data64, zero64, present atomic.Int64 // bytes

	hear *hearing
	fail context.CancelCauseFunc
}

func (s *deviceSending) run(ctx context.Context, report func(Progress)) (res Result, err error) {
	parent := ctx
	ctx, s.fail = context.WithCancelCause(parent)
	s.hear.fail, s.hear.have = s.fail, s.held.parse
	unwound := make(chan struct{})
	keep := context.AfterFunc(ctx, func() {
		defer close(unwound)
		s.held.fail(context.Cause(ctx))
		s.link.Interrupt()
		<-s.hear.over
		tellStall(parent, s.link, context.Cause(ctx))
	})
	w := watcher{now: s.progress, report: report, stall: s.opt.Stall, moved: s.moved, idle: s.idle, stalled: s.stalled, fail: s.fail}
	stop := w.start()
	go s.hear.listen()

	root, err := s.move(ctx)
	if err == nil {
		err = s.finish(ctx, root)
	}
	if err != nil {
		s.fail(err) // keeps the first cause
	}
	if !keep() {
		<-unwound
		err = bare(context.Cause(ctx))
		tell(parent, s.link, err)
	} else {
		err = nil
		s.link.Finish()
	}
	stop()
	s.fail(nil)
	_ = s.link.Close()
	if cerr := s.src.Close(); err == nil {
		err = cerr
	}
	d := &DeviceResult{Size: s.src.Size(), Block: s.opt.Block, Data: s.data64.Load(), Zeros: s.zero64.Load(),
		Present: s.present.Load(), TargetDigest: hex.EncodeToString(s.hear.ack), BadRanges: s.src.BadRanges()}
	if err == nil {
		d.SourceDigest = s.scan.digest(root)
	}
	res = Result{Progress: s.progress(), Device: d}
	for _, c := range s.link.Conns() {
		res.WireBytes += c.WireBytes()
	}
	if report != nil {
		report(res.Progress)
	}
	return res, err
}

// move brings all blocks onto the connections and returns the digest of the
// device. It returns when nothing of it runs any more.
func (s *deviceSending) move(ctx context.Context) (root [32]byte, err error) {
	var g sync.WaitGroup
	for _, c := range s.link.Conns() {
		g.Add(1)
		go func() {
			defer g.Done()
			if err := s.transmit(ctx, c); err != nil {
				s.hear.explain(ctx, err)
			}
		}()
	}
	if err := s.scan.run(ctx); err != nil {
		s.fail(err)
	}
	close(s.queue)
	g.Wait()
	if ctx.Err() != nil {
		return root, context.Cause(ctx)
	}
	if err := s.src.Unchanged(); err != nil {
		return root, &sourceError{err}
	}
	return s.scan.cut.Root(s.scan.sums), nil
}

// data sends a block, unless the receiver has it.
func (s *deviceSending) data(ctx context.Context, w int, i int64, b *wire.Block) error {
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
		packed := s.pack.encode(b, int64(len(s.queue)), s.pool.get, s.pool.put)
		watch.Stop()
		s.packers <- watch
		s.packing.bytes.Add(int64(raw))
		if packed != nil {
			h.Flags |= wire.Compressed
			s.pool.put(b)
			b = packed
		}
	}
	trail(b, len(b.Payload()), []BlockSum{sum}, mark)
	return s.enqueue(ctx, devicePiece{h, b})
}

// zeros tells of a run of zeros, but for the parts that the receiver has.
func (s *deviceSending) zeros(ctx context.Context, w int, first, count int64) error {
	for i := first; i < first+count; {
		end := i
		for end < first+count {
			has, err := s.held.has(end, s.scan.sums[end], s.asking[w])
			if err != nil {
				return err
			}
			if has {
				s.present.Add(s.scan.length(end))
				break
			}
			end++
		}
		if end > i {
			if err := s.zeroRun(ctx, i, end); err != nil {
				return err
			}
		}
		i = end + 1 // the one at end is there already
	}
	return nil
}

func (s *deviceSending) zeroRun(ctx context.Context, first, end int64) error {
	b := s.pool.get()
	trail(b, 0, s.scan.sums[first:end], FoldSums(s.scan.sums[first:end]))
	h := wire.Header{Kind: wire.Data, Flags: wire.Zero | wire.Summed,
		Position: uint64(first * s.scan.block), Raw: uint32(s.scan.bytes(first, end-first))}
	return s.enqueue(ctx, devicePiece{h, b})
}

func (s *deviceSending) enqueue(ctx context.Context, p devicePiece) error {
	select {
	case s.queue <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// transmit sends frames over one connection until there are no more.
func (s *deviceSending) transmit(ctx context.Context, c *wire.Conn) error {
	i := c.Stream()
	for {
		var p devicePiece
		var ok bool
		select {
		case p, ok = <-s.queue:
		default:
			s.empty[i].Start()
			select {
			case p, ok = <-s.queue:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if ok {
				s.empty[i].Stop()
			} else {
				return nil // from now on it waits for the others
			}
		}
		if !ok {
			s.empty[i].Start()
			return nil
		}
		if err := s.limit.wait(ctx, len(p.block.Payload()), s.limited[i]); err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if err := c.WriteFrame(p.header, p.block); err != nil {
			return err
		}
		s.meter.bytes.Add(int64(p.header.Raw))
		if p.header.Flags&wire.Zero != 0 {
			s.zero64.Add(int64(p.header.Raw))
		} else {
			s.data64.Add(int64(p.header.Raw))
		}
		s.pool.put(p.block)
	}
}

// finish writes the end to all connections and waits for the receiver.
func (s *deviceSending) finish(ctx context.Context, root [32]byte) error {
	a := wire.Account{Bytes: uint64(s.meter.bytes.Load()), Digested: true}
	copy(a.Digest[:], root[:])
	if err := s.hear.end(ctx, a); err != nil {
		return err
	}
	return s.hear.confirmed(ctx)
}

func (s *deviceSending) progress() Progress {
	life := time.Since(s.started)
	n := s.link.Network()
	p := Progress{Bytes: s.meter.bytes.Load() + s.present.Load(), Elapsed: life, Network: &n}
	p.Stages = append(p.Stages, s.scan.read.stage(life, true), s.scan.hash.stage(life, true))
	if s.pack != nil {
		p.Stages = append(p.Stages, s.packing.stage(life, true))
	}
	if s.limit != nil {
		p.Stages = append(p.Stages, s.limit.meter.stage(life))
	}
	p.Stages = append(p.Stages, s.meter.stage(life))
	return p
}

func (s *deviceSending) moved() int64 {
	return s.scan.read.bytes.Load() + s.meter.bytes.Load() + s.hear.alive.Load()
}

// idle tells that the receiver still looks at what it holds: how long that may
// take is its to say.
func (s *deviceSending) idle() bool {
	return slices.ContainsFunc(s.asking, (*wire.Stopwatch).Running)
}

func (s *deviceSending) stalled() error {
	switch {
	case s.hear.ended.Load():
		return stalledNetwork("the other end did not confirm the device", s.opt.Stall)
	case s.scan.read.bytes.Load() > s.meter.bytes.Load()+s.present.Load():
		return stalledNetwork("the network or the other end took nothing", s.opt.Stall)
	}
	return stalled(s.src.Name()+" gave nothing", s.opt.Stall)
}
