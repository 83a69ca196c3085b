package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"zxfer/pkg/wire"
)

// Copy moves a Source into a Sink on one host, through a ring. The Sink is
// committed only after the Source ended well, and does not see what it asked
// to withhold before. The Source is closed on failure; the error is the cause.
//
// progress may be nil; it is called about twice a second and once at the end.
func Copy(ctx context.Context, src Source, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	c := &copying{src: src, sink: sink, opt: opt, started: time.Now(), tail: newTail(sink)}
	c.ring = newRing(opt.Buffer, opt.Block, c.tail.keep)
	c.reader = newReader(src, c.ring, opt.limitedBlock())
	c.limit = opt.bandwidth([]*wire.Stopwatch{&c.limited})
	c.write.name, c.write.in = StageWrite, plus(waits(&c.empty), waits(&c.limited))
	return c.run(ctx, progress)
}

// copying is the state of one Copy.
type copying struct {
	src     Source
	sink    Sink
	opt     Options
	started time.Time

	ring    *ring
	reader  *reader
	limit   *bandwidth
	tail    tail
	write   meter
	empty   wire.Stopwatch
	limited wire.Stopwatch
}

func (c *copying) run(ctx context.Context, report func(Progress)) (res Result, err error) {
	parent := ctx
	ctx, fail := context.WithCancelCause(parent)
	unwound := make(chan struct{})
	var said error // by the sink, when aborted
	keep := context.AfterFunc(ctx, func() {
		defer close(unwound)
		c.ring.fail(context.Cause(ctx))
		_ = c.src.Close() // the cause is known
		said = c.sink.Abort(bare(context.Cause(ctx)))
	})
	w := watcher{now: c.progress, report: report, stall: c.opt.Stall, moved: c.moved, stalled: c.stalled, fail: fail}
	stop := w.start()
	read := make(chan struct{})
	go func() {
		defer close(read)
		if err := c.reader.run(); err != nil {
			fail(err)
		}
	}()
	if err := c.store(ctx); err != nil {
		fail(err)
	}
	<-read
	stop() // a long commit is no stall
	if keep() {
		err = c.sink.Commit(parent)
	} else {
		<-unwound
		err = withSaid(context.Cause(ctx), said, c.sink.Name())
	}
	fail(nil)
	sum := c.reader.digest()
	res = Result{Progress: c.progress(), Frames: int64(c.reader.pieces), Digest: hex.EncodeToString(sum[:])}
	if report != nil {
		report(res.Progress)
	}
	return res, err
}

// store writes pieces to the sink, and once the source ended well the tail.
func (c *copying) store(ctx context.Context) error {
	for {
		p, err := c.ring.take(&c.empty)
		if err != nil {
			return err
		}
		if p == nil {
			break
		}
		n := len(p.block.Payload())
		if err := c.limit.wait(ctx, n, &c.limited); err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if err := c.tail.write(c.sink, p.block); err != nil {
			return &sinkError{err}
		}
		c.write.bytes.Add(int64(n))
		c.ring.release(p.block)
	}
	if err := c.tail.flush(c.sink, len(c.tail.held)); err != nil {
		return &sinkError{err}
	}
	return nil
}

func (c *copying) progress() Progress {
	life := time.Since(c.started)
	p := Progress{Bytes: c.write.bytes.Load(), Elapsed: life}
	p.Stages = append(p.Stages, c.reader.meter.stage(life))
	if c.limit != nil {
		p.Stages = append(p.Stages, c.limit.meter.stage(life))
	}
	p.Stages = append(p.Stages, c.write.stage(life))
	return p
}

func (c *copying) moved() int64 { return c.reader.meter.bytes.Load() + c.write.bytes.Load() }

func (c *copying) stalled() error {
	if c.reader.meter.bytes.Load() > c.write.bytes.Load() {
		return stalled(c.sink.Name()+" took nothing", c.opt.Stall)
	}
	return stalled(c.src.Name()+" gave nothing", c.opt.Stall)
}
