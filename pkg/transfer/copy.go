package transfer

import (
	"context"
	"encoding/hex"
	"time"

	"zxfer/pkg/wire"
)

// Copy moves a Source into a Sink on one host, through a ring. The Sink is
// committed only after the Source ended well, and does not see what it asked
// to withhold before. The Source is closed on failure; the error is the cause.
//
// progress may be nil; it is called about twice a second and once at the end.
func Copy(ctx context.Context, src Source, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.Filled()
	c := &copying{src: src, sink: sink, tail: newTail(sink)}
	c.ring = newRing(opt.Buffer, opt.Block, c.tail.keep)
	c.reader = newReader(src, c.ring, opt.limitedBlock())
	c.limit = NewBandwidth(opt, Watches{&c.limited})
	c.write.name, c.write.in = StageWrite, plus(Watches{&c.empty}.mean, Watches{&c.limited}.mean)
	c.life = &Life{Stall: opt.Stall, Report: progress, Move: c.move, Unwind: c.unwind, Commit: sink.Commit,
		Abandon: func() error { return c.said }, Target: sink.Name(), Account: c.account, Stalled: c.stalled,
		Moved: func() int64 { return c.reader.meter.bytes.Load() + c.write.bytes.Load() }}
	res, err := c.life.Run(ctx)
	sum := c.reader.digest()
	res.Frames, res.Digest = int64(c.reader.pieces), hex.EncodeToString(sum[:])
	return res, err
}

// copying is the state of one Copy.
type copying struct {
	src  Source
	sink Sink
	life *Life

	ring    *ring
	reader  *reader
	limit   *Bandwidth
	tail    tail
	write   meter
	empty   wire.Stopwatch
	limited wire.Stopwatch
	said    error // by the sink, when aborted
}

// unwind aborts the sink at once: a Write may be under way.
func (c *copying) unwind(cause error) {
	c.ring.fail(cause)
	_ = c.src.Close() // the cause is known
	c.said = c.sink.Abort(cause)
}

func (c *copying) move(ctx context.Context) error {
	read := make(chan struct{})
	go func() {
		defer close(read)
		if err := c.reader.run(); err != nil {
			c.life.Fail(err)
		}
	}()
	err := c.store(ctx)
	if err != nil {
		c.life.Fail(err)
	}
	<-read
	return err
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
		if err := c.limit.Wait(ctx, n, &c.limited); err != nil {
			return err
		}
		if err := c.tail.write(c.sink, p.block); err != nil {
			return &TargetError{err}
		}
		c.write.bytes.Add(int64(n))
		c.ring.release(p.block)
	}
	if err := c.tail.flush(c.sink, len(c.tail.held)); err != nil {
		return &TargetError{err}
	}
	return nil
}

func (c *copying) account(life time.Duration) (int64, []Stage) {
	stages := append([]Stage{c.reader.meter.stage(life)}, c.limit.Stages(life)...)
	return c.write.bytes.Load(), append(stages, c.write.stage(life))
}

func (c *copying) stalled() (what string, network bool) {
	if c.reader.meter.bytes.Load() > c.write.bytes.Load() {
		return c.sink.Name() + " took nothing", false
	}
	return c.src.Name() + " gave nothing", false
}
