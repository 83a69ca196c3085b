package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// receive copies a device from a link to a target. It sends the sums of the present
// blocks and then writes, syncs and verifies incoming blocks in any order. size is
// the size of the source. It commits the target only after the digests of both ends
// match. If the copy fails, it closes the target and keeps the journal of the
// stored blocks. Errors are those of transfer.Receive, and ErrCorrupt.
func receive(ctx context.Context, link *tcp.Link, dst blockTarget, journal blockJournal, size int64, opt Options, progress func(transfer.Progress)) (Result, error) {
	opt = opt.filled()
	pool := &blockPool{size: opt.Block + tcp.TrailerSize}
	held := len(link.Conns())
	if opt.Delta { // the scan of the present blocks holds buffers too
		held += opt.workers()
	}
	r := &receiver{link: link, in: transfer.NewIncoming(link), opt: opt, pool: pool,
		queue: make(chan frame, opt.queueLen(held)), decode: transfer.NewDecoder(opt.Options)}
	r.store = newStore(dst, journal, size, opt, pool)
	r.expand = newStageMeter(transfer.StageExpand, r.store.workers)
	res, err := (&transfer.Lifecycle{Engine: r, Stall: opt.Stall, Report: progress, End: r.in}).Run(ctx)
	d := r.store.account()
	d.SourceDigest = r.digest
	if !opt.NoVerify {
		d.TargetDigest = r.digest
	}
	return Result{res, d}, err
}

// receiver is the engine of one receive.
type receiver struct {
	link *tcp.Link
	in   *transfer.Incoming
	opt  Options

	store  *store
	pool   *blockPool
	queue  chan frame
	expand *stageMeter
	decode func(packed, room []byte) ([]byte, error)
	root   [32]byte
	digest string
}

func (r *receiver) Move(ctx context.Context, fail func(error)) (err error) {
	r.store.start(ctx, fail)
	var reported sync.WaitGroup
	reported.Add(1)
	go func() {
		defer reported.Done()
		if err := r.store.reportPresent(ctx, r.opt.Delta, r.sendPresent); err != nil {
			fail(err)
		}
	}()
	account, err := r.copy(ctx, fail)
	if err != nil {
		fail(err)
	}
	reported.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.root, err = r.store.finish(ctx); err != nil {
		return err
	}
	if [16]byte(r.root[:16]) != account.Digest {
		return fmt.Errorf("%w: the device's digest is %x, but %x… on the sender", transfer.ErrTotalsMismatch, r.root, account.Digest)
	}
	return nil
}

// Unwind does nothing: the broken link ends Move.
func (*receiver) Unwind(error) {}

func (r *receiver) Abandon() (target string, err error) { return r.store.abandon() }

func (r *receiver) Commit(context.Context) error {
	if err := r.store.commit(); err != nil {
		return err
	}
	r.digest, r.in.Ack = r.opt.digest(r.root), r.root[:]
	return nil
}

// sendPresent sends the sums of present blocks.
func (r *receiver) sendPresent(first int64, sums []Sum) error {
	text := make([]byte, 0, len(sums)*tcp.SumSize)
	for _, s := range sums {
		text = append(text, s[:]...)
	}
	return r.link.Conns()[0].WriteControl(tcp.Have, uint64(first), text)
}

// copy stores incoming frames of all connections.
func (r *receiver) copy(ctx context.Context, fail func(error)) (tcp.Account, error) {
	var writers sync.WaitGroup
	for w := range r.store.workers {
		writers.Add(1)
		go func() {
			defer writers.Done()
			if err := r.writer(ctx, w); err != nil {
				fail(err)
			}
		}()
	}
	a, early, err := r.in.Receive(ctx, r.pool.get, r.take, nil)
	close(r.queue) // frames before an interruption are authentic: store them
	writers.Wait()
	if err = cmp.Or(err, early); err != nil {
		return a, err
	}
	if a.StreamBytes != a.Bytes || !a.Digested {
		return a, fmt.Errorf("%w: received %d bytes, sent %d", transfer.ErrTotalsMismatch, a.StreamBytes, a.Bytes)
	}
	return a, nil
}

// take queues a frame for the writers.
func (r *receiver) take(ctx context.Context, c *tcp.Conn, h tcp.Header, b *tcp.Block) error {
	if err := r.check(h, b); err != nil {
		return err
	}
	r.in.CountFrame(h)
	select {
	case r.queue <- frame{h, b}:
		return nil
	default:
	}
	full := r.in.Full[c.Stream()]
	full.Start()
	defer full.Stop()
	select {
	case r.queue <- frame{h, b}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// check rejects frames that do not match whole blocks of the device.
func (r *receiver) check(h tcp.Header, b *tcp.Block) error {
	g := r.store.grid
	first := int64(h.Position / uint64(g.block))
	count := int64(1)
	if h.Flags&tcp.Zero != 0 {
		count = int64((len(b.Payload()) - tcp.MarkSize) / tcp.SumSize)
	}
	if h.Flags&tcp.Summed == 0 || h.Position%uint64(g.block) != 0 || count < 1 || first < 0 || first >= g.count || count > g.count-first ||
		int64(h.Raw) != g.bytes(first, count) {
		return fmt.Errorf("%w: a frame of %d bytes at byte %d does not fit a device of %d bytes in blocks of %d", tcp.ErrTampered, h.Raw, h.Position, g.size, g.block)
	}
	return nil
}

// writer stores queued frames until the queue is closed.
func (r *receiver) writer(ctx context.Context, w int) error {
	var spare *tcp.Block
	for p := range r.queue {
		if errors.Is(context.Cause(ctx), tcp.ErrTampered) || ctx.Err() != nil && errors.As(context.Cause(ctx), new(*transfer.TargetError)) {
			continue // drain the queue
		}
		first := int64(p.header.Position) / r.store.block
		payload := p.block.Payload()
		if p.header.Flags&tcp.Zero != 0 {
			sums := parseSums(payload[:len(payload)-tcp.MarkSize])
			if foldSums(sums) != Mark(payload[len(sums)*tcp.SumSize:]) {
				return fmt.Errorf("%w: the zeros at byte %d do not match their hash", tcp.ErrTampered, p.header.Position)
			}
			if err := r.store.zeros(w, first, sums); err != nil {
				return err
			}
			r.pool.put(p.block)
			continue
		}
		data, sum, mark := splitTrailer(payload)
		if p.header.Flags&tcp.Compressed != 0 {
			if spare == nil {
				spare = r.pool.get()
			}
			r.expand.watch[w].Start()
			out, err := r.decode(data, spare.Buffer()[:0:p.header.Raw])
			r.expand.watch[w].Stop()
			if err == nil && len(out) != int(p.header.Raw) {
				err = fmt.Errorf("%d bytes instead of %d", len(out), p.header.Raw)
			}
			if err != nil {
				return fmt.Errorf("%w: cannot decompress the block at byte %d: %w", tcp.ErrTampered, p.header.Position, err)
			}
			r.expand.bytes.Add(int64(len(out)))
			data = out
		}
		if MarkOf(data) != mark {
			return fmt.Errorf("%w: the block at byte %d does not match its hash", tcp.ErrTampered, p.header.Position)
		}
		if err := r.store.data(w, first, data, sum, mark); err != nil {
			return err
		}
		r.pool.put(p.block)
	}
	return nil
}

// Account is idle while no operation on the target is active. If all blocks are present, the sender sends nothing,
// perhaps for hours. A stalled sender is detected by the sender and by TCP.
func (r *receiver) Account(life time.Duration) transfer.State {
	stages := []transfer.Stage{r.in.Stage(life)}
	if r.expand.bytes.Load() > 0 {
		stages = append(stages, r.expand.stage(life, false))
	}
	return transfer.State{Bytes: r.store.write.bytes.Load(), Moved: r.in.Bytes() + r.store.moved(), Idle: r.store.idle(),
		Stages: append(stages, r.store.stages(life)...)}
}

func (r *receiver) Stalled() (what string, network bool) { return r.store.stalled() }
