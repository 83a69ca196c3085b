package device

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// copyLocal copies within one host. Each block is read, hashed and written by one
// goroutine. Several goroutines keep both devices busy. It does the work of send
// and receive together.
func copyLocal(ctx context.Context, src blockSource, dst blockTarget, journal blockJournal, opt Options, progress func(transfer.Progress)) (Result, error) {
	opt = opt.filled()
	c := &localCopy{src: src, opt: opt, pool: &blockPool{size: opt.Block}}
	c.store = newStore(dst, journal, src.Size(), opt, c.pool)
	n := opt.workers()
	c.scan = newScan(src, c.store.grid, c.pool, n)
	c.scan.onBlock, c.scan.onTarget = c.block, newPresentBlocks(c.scan.count)
	c.limited = transfer.NewWaitTimers(n)
	c.limit = transfer.NewBandwidth(opt.Options, c.limited)
	res, err := (&transfer.Lifecycle{Engine: c, Stall: opt.Stall, Report: progress}).Run(ctx)
	if cerr := src.Close(); err == nil {
		err = cerr
	}
	d := c.store.account()
	d.SourceDigest, d.TargetDigest, d.BadRanges = c.source, c.target, src.BadRanges()
	return Result{res, d}, err
}

// localCopy is the engine of one copyLocal.
type localCopy struct {
	src blockSource
	opt Options

	store   *store
	scan    *scan
	pool    *blockPool
	limit   *transfer.Bandwidth
	limited transfer.WaitTimers // by worker

	root           [32]byte
	source, target string // digests
}

func (c *localCopy) Move(ctx context.Context, fail func(error)) (err error) {
	c.store.start(ctx, fail)
	var reported sync.WaitGroup
	reported.Add(1)
	go func() {
		defer reported.Done()
		if err := c.store.reportPresent(ctx, c.opt.Delta, c.scan.onTarget.add); err != nil {
			fail(err)
		}
	}()
	if err := c.scan.run(ctx); err != nil {
		fail(err)
	}
	reported.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := c.src.Unchanged(); err != nil {
		return err
	}
	c.root, err = c.store.finish(ctx)
	return err
}

func (c *localCopy) Unwind(cause error) { c.scan.onTarget.fail(cause) }

func (c *localCopy) Abandon() (target string, err error) { return c.store.abandon() }

func (c *localCopy) Commit(context.Context) error {
	if err := c.store.commit(); err != nil {
		return err
	}
	c.source = c.opt.digest(c.scan.cut.Root(c.scan.sums))
	if !c.opt.NoVerify {
		c.target = c.opt.digest(c.root)
	}
	return nil
}

func (c *localCopy) block(ctx context.Context, w int, first, count int64, b *tcp.Block) error {
	sums := c.scan.sums[first : first+count]
	if b == nil {
		return c.store.zeros(w, first, sums)
	}
	defer c.pool.put(b)
	if err := c.limit.Wait(ctx, len(b.Payload()), c.limited[w]); err != nil {
		return err
	}
	return c.store.data(w, first, b.Payload(), sums[0], c.scan.mark(b.Payload(), sums[0]))
}

// Account counts all hashed bytes, so present blocks count too.
func (c *localCopy) Account(life time.Duration) transfer.State {
	stages := append(c.scan.stages(life), c.limit.Stages(life)...)
	return transfer.State{Bytes: c.scan.hash.bytes.Load(), Moved: c.scan.read.bytes.Load() + c.store.moved(),
		Stages: append(stages, c.store.stages(life)...)}
}

func (c *localCopy) Stalled() (what string, network bool) {
	// If the target hangs, no read is active: the goroutines wait for their writes.
	if !c.scan.read.running() && !c.store.idle() {
		return c.store.stalled()
	}
	return c.src.Name() + " sent no data", false
}

// stageMeter measures a stage by the working time of its goroutines. Waiting time
// would not do, because each goroutine serves several stages in turn.
type stageMeter struct {
	name  string
	bytes atomic.Int64
	watch transfer.WaitTimers
}

func newStageMeter(name string, n int) *stageMeter {
	return &stageMeter{name: name, watch: transfer.NewWaitTimers(n)}
}

// running reports whether any goroutine of the stage is working.
func (e *stageMeter) running() bool {
	return slices.ContainsFunc(e.watch, (*tcp.WaitTimer).Running)
}

// stage returns the statistics of the stage. Idle time counts as waiting for output
// if the stage produces data, and as waiting for input if it consumes data.
func (e *stageMeter) stage(life time.Duration, produces bool) transfer.Stage {
	busy := min(life, e.watch.Mean())
	s := transfer.Stage{Name: e.name, Bytes: e.bytes.Load(), Busy: busy}
	if produces {
		s.WaitOut = life - busy
	} else {
		s.WaitIn = life - busy
	}
	return s
}
