package transfer

import (
	"context"
	"errors"
	"sync"
	"time"

	"zxfer/pkg/wire"
)

// CopyDevice copies a device within one host, without a wire. Each block is
// read, hashed and written by one goroutine; several of them keep both devices
// busy. It does what SendDevice and ReceiveDevice do together.
//
// progress may be nil; it is called about twice a second and once at the end.
func CopyDevice(ctx context.Context, src BlockSource, dst BlockTarget, journal BlockJournal, opt DeviceOptions, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	c := &deviceCopying{src: src, opt: opt, started: time.Now(), pool: &blockPool{size: opt.Block}}
	c.store = newStore(dst, journal, src.Size(), opt, c.pool)
	n := opt.workers()
	c.scan = newScan(src, c.store.grid, c.pool, n)
	c.scan.keep, c.scan.zeros = c.data, c.zeros
	c.held = newHoldings(c.scan.count)
	c.asking, c.limited = stopwatches(n), stopwatches(n)
	c.limit = opt.bandwidth(c.limited)
	return c.run(ctx, progress)
}

// deviceCopying is the state of one CopyDevice.
type deviceCopying struct {
	src     BlockSource
	opt     DeviceOptions
	started time.Time

	store   *store
	scan    *scan
	held    *holdings
	pool    *blockPool
	limit   *bandwidth
	asking  []*wire.Stopwatch // by worker
	limited []*wire.Stopwatch // by worker
	fail    context.CancelCauseFunc
}

func (c *deviceCopying) run(ctx context.Context, report func(Progress)) (res Result, err error) {
	ctx, c.fail = context.WithCancelCause(ctx)
	keep := context.AfterFunc(ctx, func() { c.held.fail(context.Cause(ctx)) })
	w := watcher{now: c.progress, report: report, stall: c.opt.Stall, moved: c.moved, stalled: c.stalled, fail: c.fail}
	stop := w.start()
	c.store.start(ctx, c.fail)
	root, err := c.move(ctx)
	if err != nil {
		c.fail(err)
	}
	stop()
	d := &DeviceResult{BadRanges: c.src.BadRanges()}
	if keep() {
		if err = bare(c.store.commit()); err == nil {
			d.SourceDigest = c.scan.digest(c.scan.cut.Root(c.scan.sums))
			if !c.opt.NoVerify {
				d.TargetDigest = c.store.digest(root)
			}
		}
	} else {
		err = withSaid(context.Cause(ctx), c.store.abandon(), c.store.dst.Name())
	}
	c.fail(nil)
	if cerr := c.src.Close(); err == nil {
		err = cerr
	}
	c.store.account(d)
	res = Result{Progress: c.progress(), Device: d}
	if report != nil {
		report(res.Progress)
	}
	return res, err
}

func (c *deviceCopying) move(ctx context.Context) (root [32]byte, err error) {
	var told sync.WaitGroup
	told.Add(1)
	go func() {
		defer told.Done()
		if err := c.store.announce(ctx, c.opt.Delta, c.held.tell); err != nil {
			c.fail(err)
		}
	}()
	if err := c.scan.run(ctx); err != nil {
		c.fail(err)
	}
	told.Wait()
	if ctx.Err() != nil {
		return root, context.Cause(ctx)
	}
	if err := c.src.Unchanged(); err != nil {
		return root, &sourceError{err}
	}
	return c.store.finish(ctx)
}

func (c *deviceCopying) data(ctx context.Context, w int, i int64, b *wire.Block) error {
	defer c.pool.put(b)
	has, err := c.held.has(i, c.scan.sums[i], c.asking[w])
	if has || err != nil {
		return err
	}
	if err := c.limit.wait(ctx, len(b.Payload()), c.limited[w]); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	sum := c.scan.sums[i]
	return c.store.data(w, i, b.Payload(), sum, c.scan.mark(b.Payload(), sum))
}

func (c *deviceCopying) zeros(_ context.Context, w int, first, count int64) error {
	for i := first; i < first+count; {
		end := i
		for end < first+count {
			has, err := c.held.has(end, c.scan.sums[end], c.asking[w])
			if err != nil {
				return err
			}
			if has {
				break
			}
			end++
		}
		if end > i {
			if err := c.store.zeros(w, i, c.scan.sums[i:end]); err != nil {
				return err
			}
		}
		i = end + 1 // the one at end is there already
	}
	return nil
}

func (c *deviceCopying) progress() Progress {
	life := time.Since(c.started)
	p := Progress{Bytes: c.scan.hash.bytes.Load(), Elapsed: life} // what was there already included
	p.Stages = append(p.Stages, c.scan.read.stage(life, true), c.scan.hash.stage(life, true))
	if c.limit != nil {
		p.Stages = append(p.Stages, c.limit.meter.stage(life))
	}
	p.Stages = append(p.Stages, c.store.write.stage(life, false))
	if !c.opt.NoVerify {
		p.Stages = append(p.Stages, c.store.verify.stage(life, false))
	}
	return p
}

func (c *deviceCopying) moved() int64 { return c.scan.read.bytes.Load() + c.store.moved() }

func (c *deviceCopying) stalled() error {
	// Where the target hangs, no read of the source is under way for long:
	// whoever made it waits to write.
	if !c.scan.read.running() && !c.store.idle() {
		return c.store.stalled()
	}
	return stalled(c.src.Name()+" gave nothing", c.opt.Stall)
}
