package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"zxfer/pkg/wire"
)

// Receive moves a stream from a link into a Sink. The Sink is committed only
// after the sender's end matched what arrived, and aborted in any other case;
// the sender is told how it went. The error is the cause: the Sink's own, what
// the sender reported (*PeerError), wire.ErrCut, wire.ErrTampered,
// ErrMiscounted, ErrStall, or the context's. The link is closed in any case.
//
// progress may be nil; it is called about twice a second and once at the end.
func Receive(ctx context.Context, link *wire.Link, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	link.Receiving()
	r := &receiving{sink: sink, link: link, opt: opt, started: time.Now(), tail: newTail(sink), hash: xxh3.New128()}
	r.ring = newRing(opt.Buffer, opt.Block, r.tail.keep)
	r.expand = newExpander(opt, r.ring)
	n := len(link.Conns())
	r.full = stopwatches(n)
	var read []*wire.Stopwatch
	for _, c := range link.Conns() {
		read = append(read, c.ReadWait())
	}
	r.meter.name, r.meter.in, r.meter.out = StageReceive, waits(read...), waits(r.full...)
	r.write.name, r.write.in = StageWrite, waits(&r.empty)
	if p, ok := sink.(PipeSink); ok && link.Mode() == wire.Plain && n == 1 {
		full := new(wire.Stopwatch)
		r.pipe, r.spliced = p, full
		r.meter.out, r.write.in = waits(full), allBut(full)
	}
	return r.run(ctx, progress)
}

// receiving is the state of one Receive.
type receiving struct {
	sink    Sink
	link    *wire.Link
	opt     Options
	started time.Time

	ring   *ring
	expand *expander
	tail   tail
	hash   *xxh3.Hasher128
	meter  meter
	write  meter
	full   []*wire.Stopwatch // by connection: the ring had no room
	empty  wire.Stopwatch    // the ring had nothing

	fail    context.CancelCauseFunc
	pipe    PipeSink        // on the zero-copy path, else nil
	spliced *wire.Stopwatch // there: the pipe had no room
	seen    []byte          // there: what the sink wanted to see
	frames  uint64
	digest  string
}

func (r *receiving) run(ctx context.Context, report func(Progress)) (res Result, err error) {
	parent := ctx
	ctx, r.fail = context.WithCancelCause(parent)
	unwound := make(chan struct{})
	var said error // by the sink, when aborted
	keep := context.AfterFunc(ctx, func() {
		defer close(unwound)
		r.ring.fail(context.Cause(ctx))
		r.link.Interrupt()
		said = r.sink.Abort(bare(context.Cause(ctx)))
	})
	w := watcher{now: r.progress, report: report, stall: r.opt.Stall, moved: r.moved, stalled: r.stalled, fail: r.fail}
	stop := w.start()
	quiet := keepAlive(r.link, r.opt.Stall, &r.write.bytes)

	if err := r.move(ctx); err != nil {
		r.fail(err) // keeps the first cause
	}
	stop() // a long commit is no stall
	if keep() {
		// The stream is whole and verified; from here on the sink decides.
		err = r.sink.Commit(parent)
		quiet()
	} else {
		<-unwound
		quiet()
		err = withSaid(context.Cause(ctx), said, r.sink.Name())
	}
	if err != nil {
		tell(parent, r.link, err)
	} else if r.link.Conns()[0].WriteControl(wire.Ack, 0, nil) == nil {
		r.link.Finish()
	}
	r.fail(nil)
	_ = r.link.Close()
	res = Result{Progress: r.progress(), Frames: int64(r.frames), Digest: r.digest}
	for _, c := range r.link.Conns() {
		res.WireBytes += c.WireBytes()
	}
	if report != nil {
		report(res.Progress)
	}
	return res, err
}

// withSaid joins the cause of a failure with what the sink said when it was
// aborted. A sink whose Write fails often says only then why.
func withSaid(cause, said error, name string) error {
	var own *sinkError
	switch {
	case said == nil:
		return bare(cause)
	case errors.As(cause, &own):
		return said
	}
	return fmt.Errorf("%w; and %s: %w", bare(cause), name, said)
}

// move brings the stream into the sink: all but its tail, and once the end was
// verified that, too. It returns when nothing of it runs any more.
func (r *receiving) move(ctx context.Context) error {
	var account wire.Account
	var err error
	if r.pipe != nil {
		account, err = r.splice()
	} else {
		account, err = r.copy(ctx)
	}
	if err != nil {
		return err
	}
	if err := r.verify(account); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := r.tail.flush(r.sink, len(r.tail.held)); err != nil {
		return &sinkError{err}
	}
	return nil
}

// copy receives from all connections into the ring and writes from it.
func (r *receiving) copy(ctx context.Context) (wire.Account, error) {
	var g sync.WaitGroup
	ends := make(chan connEnd, len(r.link.Conns()))
	for _, c := range r.link.Conns() {
		g.Add(1)
		go func() {
			defer g.Done()
			a, err := r.receive(ctx, c)
			ends <- connEnd{a, err}
		}()
	}
	var account wire.Account
	g.Add(1)
	go func() {
		defer g.Done()
		var err error
		if account, err = r.join(ctx, ends); err != nil {
			r.fail(err)
		}
	}()
	err := r.store(ctx)
	if err != nil {
		r.fail(err)
	}
	g.Wait()
	r.expand.stop()
	if ctx.Err() != nil {
		return account, context.Cause(ctx)
	}
	return account, err
}

// join waits for the ends of all connections and closes the ring: with an
// error after what came in order before an early end, which is genuine and is
// stored, so that a resume need not send it again.
func (r *receiving) join(ctx context.Context, ends <-chan connEnd) (wire.Account, error) {
	a, early, err := joinEnds(ctx, len(r.link.Conns()), ends, func(early error) {
		r.ring.cut(early)
		r.link.Interrupt()
	})
	switch {
	case err != nil:
		return a, err
	case early != nil:
		r.ring.cut(early)
		return a, nil
	case a.StreamBytes != a.Bytes || a.StreamFrames != a.Frames:
		return a, fmt.Errorf("%w: %d bytes in %d frames arrived, %d in %d were sent", ErrMiscounted, a.StreamBytes, a.StreamFrames, a.Bytes, a.Frames)
	}
	return a, r.ring.close(a.Frames, nil)
}

// receive reads frames off one connection until its end.
func (r *receiving) receive(ctx context.Context, c *wire.Conn) (wire.Account, error) {
	full := r.full[c.Stream()]
	b := r.ring.get()
	for {
		h, err := c.ReadFrame(b)
		if err != nil {
			return wire.Account{}, err
		}
		if h.Kind != wire.Data {
			a, err := r.control(c, h, b)
			full.Start() // from now on it waits for the others
			return a, err
		}
		if h.Flags&^wire.Compressed != 0 {
			return wire.Account{}, fmt.Errorf("%w: a frame of a device in a stream", wire.ErrTampered)
		}
		r.meter.bytes.Add(int64(h.Raw))
		p := &piece{block: b, header: h}
		if h.Flags&wire.Compressed != 0 {
			if err := r.expand.add(ctx, p, full); err != nil {
				return wire.Account{}, err
			}
		}
		if err := r.ring.put(p, full); err != nil {
			return wire.Account{}, err
		}
		b = r.ring.get()
	}
}

// control handles a frame that is not data.
func (r *receiving) control(c *wire.Conn, h wire.Header, b *wire.Block) (wire.Account, error) {
	switch h.Kind {
	case wire.End:
		a, err := wire.ParseAccount(b.Payload())
		if err == nil {
			err = c.CheckEnd(a)
		}
		return a, err
	case wire.Abort:
		return wire.Account{}, &PeerError{Text: string(b.Payload())}
	}
	return wire.Account{}, fmt.Errorf("%w: a frame of kind %d from the sender", wire.ErrTampered, h.Kind)
}

// store writes pieces to the sink until there are no more.
func (r *receiving) store(ctx context.Context) error {
	for {
		p, err := r.ring.take(&r.empty)
		if p == nil {
			return err
		}
		if err := p.wait(ctx, &r.empty); err != nil {
			return err
		}
		_, _ = r.hash.Write(p.block.Payload()) // never fails
		n := len(p.block.Payload())
		if err := r.tail.write(r.sink, p.block); err != nil {
			return &sinkError{err}
		}
		r.frames++
		r.write.bytes.Add(int64(n))
		r.ring.release(p.block)
	}
}

// verify compares the sender's account with what was stored.
func (r *receiving) verify(a wire.Account) error {
	if got := uint64(r.write.bytes.Load()); a.Bytes != got || a.Frames != r.frames {
		return fmt.Errorf("%w: %d bytes in %d frames arrived, %d in %d were sent", ErrMiscounted, got, r.frames, a.Bytes, a.Frames)
	}
	if r.pipe != nil {
		return nil
	}
	sum := r.hash.Sum128().Bytes()
	if a.Digested && a.Digest != sum {
		return fmt.Errorf("%w: digest %x arrived, %x was sent", ErrMiscounted, sum, a.Digest)
	}
	r.digest = hex.EncodeToString(sum[:])
	return nil
}

func (r *receiving) progress() Progress {
	life := time.Since(r.started)
	n := r.link.Network()
	p := Progress{Bytes: r.write.bytes.Load(), Elapsed: life, Network: &n}
	p.Stages = append(p.Stages, r.meter.stage(life))
	if r.expand.meter.bytes.Load() > 0 {
		p.Stages = append(p.Stages, r.expand.meter.stage(life))
	}
	p.Stages = append(p.Stages, r.write.stage(life))
	return p
}

func (r *receiving) moved() int64 { return r.meter.bytes.Load() + r.write.bytes.Load() }

func (r *receiving) stalled() error {
	sink := r.meter.bytes.Load() > r.write.bytes.Load()
	if r.pipe != nil {
		sink = r.spliced.Running()
	}
	if sink {
		return stalled(r.sink.Name()+" took nothing", r.opt.Stall)
	}
	return stalledNetwork("the network or the other end gave nothing", r.opt.Stall)
}
