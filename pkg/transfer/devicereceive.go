package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/device"
	"zxfer/pkg/wire"
)

// ReceiveDevice copies a device from a link into a target: it tells the sender
// what the target holds already, writes what comes, in any order, syncs, reads
// back and compares. size is that of the source. The target is committed only
// after the digests of both ends matched; a copy that failed leaves it closed
// and the journal with what was stored. Errors are those of Receive, and
// ErrCorrupt.
//
// progress may be nil; it is called about twice a second and once at the end.
func ReceiveDevice(ctx context.Context, link *wire.Link, dst BlockTarget, journal BlockJournal, size int64, opt DeviceOptions, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	link.Receiving()
	pool := &blockPool{size: opt.Block + wire.TrailSize}
	r := &deviceReceiving{link: link, opt: opt, started: time.Now(), pool: pool, queue: make(chan devicePiece, opt.queue(len(link.Conns())))}
	r.store = newStore(dst, journal, size, opt, pool)
	r.expand = newEffort(StageExpand, r.store.workers)
	r.full = stopwatches(len(link.Conns()))
	var read []*wire.Stopwatch
	for _, c := range link.Conns() {
		read = append(read, c.ReadWait())
	}
	r.meter.name, r.meter.in, r.meter.out = StageReceive, waits(read...), waits(r.full...)
	return r.run(ctx, progress)
}

// deviceReceiving is the state of one ReceiveDevice.
type deviceReceiving struct {
	link    *wire.Link
	opt     DeviceOptions
	started time.Time

	store   *store
	pool    *blockPool
	queue   chan devicePiece
	expand  *effort
	opening sync.Once
	decoder *zstd.Decoder
	meter   meter
	full    []*wire.Stopwatch // by connection: the queue had no room

	fail   context.CancelCauseFunc
	digest string
}

func (r *deviceReceiving) run(ctx context.Context, report func(Progress)) (res Result, err error) {
	parent := ctx
	ctx, r.fail = context.WithCancelCause(parent)
	unwound := make(chan struct{})
	keep := context.AfterFunc(ctx, func() {
		defer close(unwound)
		r.link.Interrupt()
		tellStall(parent, r.link, context.Cause(ctx))
	})
	// A sender whose blocks are all here already has nothing to send, maybe for
	// hours. Whether it and the network get on, it and TCP tell.
	w := watcher{now: r.progress, report: report, stall: r.opt.Stall, moved: r.moved, idle: r.store.idle, stalled: r.store.stalled, fail: r.fail}
	stop := w.start()
	quiet := keepAlive(r.link, r.opt.Stall, &r.store.write.bytes)
	r.store.start(ctx, r.fail)

	root, err := r.move(ctx)
	if err != nil {
		r.fail(err) // keeps the first cause
	}
	stop()
	if keep() {
		if err = bare(r.store.commit()); err == nil {
			r.digest = r.store.digest(root)
		}
	} else {
		<-unwound
		err = withSaid(context.Cause(ctx), r.store.abandon(), r.store.dst.Name())
	}
	quiet()
	if err != nil {
		tell(parent, r.link, err)
	} else if r.link.Conns()[0].WriteControl(wire.Ack, 0, root[:]) == nil {
		r.link.Finish()
	}
	r.fail(nil)
	_ = r.link.Close()
	d := &DeviceResult{SourceDigest: r.digest}
	if !r.opt.NoVerify {
		d.TargetDigest = r.digest
	}
	r.store.account(d)
	res = Result{Progress: r.progress(), Device: d}
	for _, c := range r.link.Conns() {
		res.WireBytes += c.WireBytes()
	}
	if report != nil {
		report(res.Progress)
	}
	return res, err
}

// move brings the device into the store, verifies it and returns its digest.
// It returns when nothing of it runs any more.
func (r *deviceReceiving) move(ctx context.Context) (root [32]byte, err error) {
	var told sync.WaitGroup
	told.Add(1)
	go func() {
		defer told.Done()
		if err := r.store.announce(ctx, r.opt.Delta, r.tell); err != nil {
			r.fail(err)
		}
	}()
	account, err := r.copy(ctx)
	if err != nil {
		r.fail(err)
	}
	told.Wait()
	if ctx.Err() != nil {
		return root, context.Cause(ctx)
	}
	if root, err = r.store.finish(ctx); err != nil {
		return root, err
	}
	if [16]byte(root[:16]) != account.Digest {
		return root, fmt.Errorf("%w: the device's digest is %x here, %x… at the sender", ErrMiscounted, root, account.Digest)
	}
	return root, nil
}

// tell sends the hashes of what the target holds.
func (r *deviceReceiving) tell(first int64, sums []BlockSum) error {
	text := make([]byte, 0, len(sums)*wire.SumSize)
	for _, s := range sums {
		text = append(text, s[:]...)
	}
	return r.link.Conns()[0].WriteControl(wire.Have, uint64(first), text)
}

// copy writes what comes over all connections.
func (r *deviceReceiving) copy(ctx context.Context) (wire.Account, error) {
	var readers, writers sync.WaitGroup
	ends := make(chan connEnd, len(r.link.Conns()))
	for _, c := range r.link.Conns() {
		readers.Add(1)
		go func() {
			defer readers.Done()
			a, err := r.receive(ctx, c)
			ends <- connEnd{a, err}
		}()
	}
	for w := range r.store.workers {
		writers.Add(1)
		go func() {
			defer writers.Done()
			if err := r.writer(ctx, w); err != nil {
				r.fail(err)
			}
		}()
	}
	account, err := r.join(ctx, ends)
	if err != nil && !errors.Is(err, wire.ErrCut) && !errors.As(err, new(*PeerError)) {
		r.fail(err) // nothing that came may be trusted: it ends at once
	} else if err != nil {
		r.link.Interrupt()
	}
	readers.Wait()
	close(r.queue) // what came before a cut is genuine: it is written
	writers.Wait()
	return account, err
}

// join waits for the ends of all connections.
func (r *deviceReceiving) join(ctx context.Context, ends <-chan connEnd) (wire.Account, error) {
	a, early, err := joinEnds(ctx, len(r.link.Conns()), ends, func(error) { r.link.Interrupt() })
	if err = cmp.Or(err, early); err != nil {
		return a, err
	}
	if a.StreamBytes != a.Bytes || !a.Digested {
		return a, fmt.Errorf("%w: %d bytes arrived, %d were sent", ErrMiscounted, a.StreamBytes, a.Bytes)
	}
	return a, nil
}

// receive reads frames off one connection until its end.
func (r *deviceReceiving) receive(ctx context.Context, c *wire.Conn) (wire.Account, error) {
	full := r.full[c.Stream()]
	for {
		b := r.pool.get()
		h, err := c.ReadFrame(b)
		if err != nil {
			return wire.Account{}, err
		}
		switch h.Kind {
		case wire.Data:
		case wire.End:
			full.Start() // from now on it waits for the others
			a, err := wire.ParseAccount(b.Payload())
			if err == nil {
				err = c.CheckEnd(a)
			}
			return a, err
		case wire.Abort:
			return wire.Account{}, &PeerError{Text: string(b.Payload())}
		default:
			return wire.Account{}, fmt.Errorf("%w: a frame of kind %d from the sender", wire.ErrTampered, h.Kind)
		}
		if err := r.check(h, b); err != nil {
			return wire.Account{}, err
		}
		r.meter.bytes.Add(int64(h.Raw))
		select {
		case r.queue <- devicePiece{h, b}:
			continue
		default:
		}
		full.Start()
		select {
		case r.queue <- devicePiece{h, b}:
		case <-ctx.Done():
			full.Stop()
			return wire.Account{}, context.Cause(ctx)
		}
		full.Stop()
	}
}

// check refuses frames that do not stand for whole blocks of the device.
func (r *deviceReceiving) check(h wire.Header, b *wire.Block) error {
	g := r.store.grid
	first := int64(h.Position / uint64(g.block))
	count := int64(1)
	if h.Flags&wire.Zero != 0 {
		count = int64((len(b.Payload()) - wire.MarkSize) / wire.SumSize)
	}
	if h.Flags&wire.Summed == 0 || h.Position%uint64(g.block) != 0 || count < 1 || first < 0 || first >= g.count || count > g.count-first ||
		int64(h.Raw) != g.bytes(first, count) {
		return fmt.Errorf("%w: a frame of %d bytes at byte %d does not fit a device of %d bytes in blocks of %d", wire.ErrTampered, h.Raw, h.Position, g.size, g.block)
	}
	return nil
}

// writer stores frames until there are no more.
func (r *deviceReceiving) writer(ctx context.Context, w int) error {
	var spare *wire.Block
	for p := range r.queue {
		if errors.Is(context.Cause(ctx), wire.ErrTampered) || ctx.Err() != nil && errors.As(context.Cause(ctx), new(*sinkError)) {
			continue // drained
		}
		first := int64(p.header.Position) / r.store.block
		payload := p.block.Payload()
		if p.header.Flags&wire.Zero != 0 {
			sums := make([]BlockSum, len(payload)/wire.SumSize)
			for k := range sums {
				copy(sums[k][:], payload[k*wire.SumSize:])
			}
			if FoldSums(sums) != BlockMark(payload[len(sums)*wire.SumSize:]) {
				return fmt.Errorf("%w: the zeros at byte %d do not match their mark", wire.ErrTampered, p.header.Position)
			}
			if err := r.store.zeros(w, first, sums); err != nil {
				return err
			}
			r.pool.put(p.block)
			continue
		}
		data, sum, mark := cutTrail(payload)
		if p.header.Flags&wire.Compressed != 0 {
			if spare == nil {
				spare = r.pool.get()
			}
			r.expand.watch[w].Start()
			out, err := r.decompress(data, spare.Room()[:0:p.header.Raw])
			r.expand.watch[w].Stop()
			if err == nil && len(out) != int(p.header.Raw) {
				err = fmt.Errorf("%d bytes instead of %d", len(out), p.header.Raw)
			}
			if err != nil {
				return fmt.Errorf("%w: the block at byte %d cannot be decompressed: %w", wire.ErrTampered, p.header.Position, err)
			}
			r.expand.bytes.Add(int64(len(out)))
			data = out
		}
		if device.Mark(data) != mark {
			return fmt.Errorf("%w: the block at byte %d does not match its mark", wire.ErrTampered, p.header.Position)
		}
		if err := r.store.data(w, first, data, sum, mark); err != nil {
			return err
		}
		r.pool.put(p.block)
	}
	return nil
}

func (r *deviceReceiving) decompress(p, room []byte) ([]byte, error) {
	var err error
	r.opening.Do(func() {
		r.decoder, err = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(r.opt.Block)), zstd.WithDecoderConcurrency(r.opt.threads()))
	})
	if err != nil {
		return nil, err
	}
	return r.decoder.DecodeAll(p, room)
}

func (r *deviceReceiving) progress() Progress {
	life := time.Since(r.started)
	n := r.link.Network()
	p := Progress{Bytes: r.store.write.bytes.Load(), Elapsed: life, Network: &n}
	p.Stages = append(p.Stages, r.meter.stage(life))
	if r.expand.bytes.Load() > 0 {
		p.Stages = append(p.Stages, r.expand.stage(life, false))
	}
	p.Stages = append(p.Stages, r.store.write.stage(life, false))
	if !r.opt.NoVerify {
		p.Stages = append(p.Stages, r.store.verify.stage(life, false))
	}
	return p
}

func (r *deviceReceiving) moved() int64 { return r.meter.bytes.Load() + r.store.moved() }
