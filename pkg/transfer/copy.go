package transfer

import (
	"context"
	"encoding/hex"
	"time"

	"zxfer/pkg/transport/tcp"
)

// Ends are the ends of a stream in this process. One of them is nil.
type Ends struct {
	Source Source
	Sink   Sink
	Link   *tcp.Link
}

// Move moves a stream from one end to the other: see Copy, Send and Receive.
func Move(ctx context.Context, e Ends, opt Options, progress func(Progress)) (Result, error) {
	switch {
	case e.Link == nil:
		return Copy(ctx, e.Source, e.Sink, opt, progress)
	case e.Sink == nil:
		return Send(ctx, e.Source, e.Link, opt, progress)
	}
	return Receive(ctx, e.Link, e.Sink, opt, progress)
}

// Copy copies a Source to a Sink on one host through a ring. It commits the Sink only if the
// Source ended well, and withholds the tail until then. The error is the cause. On failure,
// Copy closes the Source.
//
// progress may be nil. Copy calls it about twice a second and once at the end.
func Copy(ctx context.Context, src Source, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.Filled()
	c := newCopy(src, sink, opt)
	res, err := (&Lifecycle{Engine: c, Stall: opt.Stall, Report: progress}).Run(ctx)
	c.ring.unmap()
	sum := c.reader.digest()
	res.Frames, res.Digest = int64(c.reader.pieces), hex.EncodeToString(sum[:])
	return res, err
}

func newCopy(src Source, sink Sink, opt Options) *copyEngine {
	c := &copyEngine{src: src, writer: newWriter(sink, opt)}
	c.ring = c.writer.ring
	c.reader = newReader(src, c.ring, opt.limitedBlock())
	c.limit = NewBandwidth(opt, WaitTimers{&c.limited})
	c.writer.write.waitIn = sumWaits(c.writer.write.waitIn, WaitTimers{&c.limited}.mean)
	c.writer.beforeWrite = func(ctx context.Context, p *piece) error {
		return c.limit.Wait(ctx, len(p.block.Payload()), &c.limited)
	}
	return c
}

// copyEngine is the Engine of one Copy.
type copyEngine struct {
	src     Source
	ring    *ring
	reader  *reader
	writer  *writer
	limit   *Bandwidth
	limited tcp.WaitTimer
}

func (c *copyEngine) Move(ctx context.Context, fail func(error)) error {
	read := make(chan struct{})
	go func() {
		defer close(read)
		if err := c.reader.run(); err != nil {
			fail(err)
		}
	}()
	err := c.writer.store(ctx)
	if err == nil {
		err = c.writer.end()
	}
	if err != nil {
		fail(err)
	}
	<-read
	return err
}

func (c *copyEngine) Unwind(cause error) {
	c.ring.fail(cause)
	_ = c.src.Close() // the cause is already known
	c.writer.abort(cause)
}

func (c *copyEngine) Commit(ctx context.Context) error { return c.writer.sink.Commit(ctx) }

func (c *copyEngine) Abandon() (target string, err error) { return c.writer.aborted() }

func (c *copyEngine) Account(life time.Duration) State {
	read, written := c.reader.meter.bytes.Load(), c.writer.write.bytes.Load()
	stages := append([]Stage{c.reader.meter.stage(life)}, c.limit.Stages(life)...)
	return State{Bytes: written, Moved: read + written, Worked: c.reader.worked(), Stages: append(stages, c.writer.write.stage(life))}
}

func (c *copyEngine) Stalled() (reason string, network bool) {
	if c.reader.meter.bytes.Load() > c.writer.write.bytes.Load() {
		return c.writer.sink.Name() + " accepted no data", false
	}
	return c.src.Name() + " sent no data", false
}
