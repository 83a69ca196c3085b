package transfer

import (
	"context"
	"encoding/hex"
	"time"

	"zxfer/pkg/transport/tcp"
)

// Copy copies a Source to a Sink on one host through a ring. It commits the Sink only if the
// Source ended well, and withholds the tail until then. The error is the cause. On failure,
// Copy closes the Source.
//
// progress may be nil. Copy calls it about twice a second and once at the end.
func Copy(ctx context.Context, src Source, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	c := newCopy(src, sink, opt.Filled(), progress)
	res, err := c.life.Run(ctx)
	c.ring.unmap()
	sum := c.reader.digest()
	res.Frames, res.Digest = int64(c.reader.pieces), hex.EncodeToString(sum[:])
	return res, err
}

func newCopy(src Source, sink Sink, opt Options, progress func(Progress)) *copyState {
	c := &copyState{src: src, writer: newWriter(sink, opt)}
	c.reader = newReader(src, c.ring, opt.limitedBlock())
	c.limit = NewBandwidth(opt, WaitTimers{&c.limited})
	c.write.waitIn = sumWaits(c.write.waitIn, WaitTimers{&c.limited}.mean)
	c.beforeWrite = func(ctx context.Context, p *piece) error {
		return c.limit.Wait(ctx, len(p.block.Payload()), &c.limited)
	}
	c.life = &Lifecycle{Stall: opt.Stall, Report: progress, Move: c.move, Unwind: c.unwind, Commit: sink.Commit,
		Abandon: func() error { return c.sinkErr }, Target: sink.Name(), Account: c.account, Stalled: c.stalled, Worked: workOf(src),
		Moved: func() int64 { return c.reader.meter.bytes.Load() + c.write.bytes.Load() }}
	return c
}

// copyState is the state of one Copy.
type copyState struct {
	*writer
	src     Source
	life    *Lifecycle
	reader  *reader
	limit   *Bandwidth
	limited tcp.WaitTimer
}

func (c *copyState) unwind(cause error) {
	c.ring.fail(cause)
	_ = c.src.Close() // the cause is already known
	c.abort(cause)
}

func (c *copyState) move(ctx context.Context) error {
	read := make(chan struct{})
	go func() {
		defer close(read)
		if err := c.reader.run(); err != nil {
			c.life.Fail(err)
		}
	}()
	err := c.store(ctx)
	if err == nil {
		err = c.end()
	}
	if err != nil {
		c.life.Fail(err)
	}
	<-read
	return err
}

func (c *copyState) account(life time.Duration) (int64, []Stage) {
	stages := append([]Stage{c.reader.meter.stage(life)}, c.limit.Stages(life)...)
	return c.write.bytes.Load(), append(stages, c.write.stage(life))
}

func (c *copyState) stalled() (reason string, network bool) {
	if c.reader.meter.bytes.Load() > c.write.bytes.Load() {
		return c.sink.Name() + " accepted no data", false
	}
	return c.src.Name() + " sent no data", false
}
