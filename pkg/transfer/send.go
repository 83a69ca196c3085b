package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"zxfer/pkg/wire"
)

// Send moves a Source onto a link and waits until the receiver has stored the
// stream for good. The error is the cause: the Source's own, what the receiver
// reported (*PeerError), wire.ErrCut, ErrStall, or the context's. The Source
// is closed on failure, the link always.
//
// progress may be nil; it is called about twice a second and once at the end.
func Send(ctx context.Context, src Source, link *wire.Link, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	s := &sending{src: src, link: link, opt: opt, started: time.Now(), hear: newHearing(link, "stream")}
	var err error
	if s.pack, err = newPacker(opt); err != nil {
		link.Abort(err)
		return Result{}, err
	}
	n := len(link.Conns())
	s.ring = newRing(opt.Buffer, opt.Block, 0)
	s.reader = newReader(src, s.ring, opt.limitedBlock())
	s.empty, s.limited = stopwatches(n), stopwatches(n)
	s.limit = opt.bandwidth(s.limited)
	s.meter.name, s.meter.in = StageSend, plus(waits(s.empty...), waits(s.limited...))
	for _, c := range link.Conns() {
		s.written = append(s.written, c.WriteWait())
	}
	s.meter.out = waits(s.written...)
	if p, ok := src.(PipeSource); ok && link.Mode() == wire.Plain && n == 1 && s.pack == nil {
		s.pipe = p
		s.reader.meter.out = allBut(s.empty[0])
	}
	return s.run(ctx, progress)
}

// sending is the state of one Send.
type sending struct {
	src     Source
	link    *wire.Link
	opt     Options
	started time.Time

	ring    *ring
	reader  *reader
	pack    *packer    // nil without compression
	pipe    PipeSource // on the zero-copy path, else nil
	limit   *bandwidth
	meter   meter
	empty   []*wire.Stopwatch // by connection: the ring had nothing
	limited []*wire.Stopwatch // by connection: the bandwidth limit
	written []*wire.Stopwatch // by connection: the network

	hear   *hearing
	fail   context.CancelCauseFunc
	frames uint64
	digest string
}

func (s *sending) run(ctx context.Context, report func(Progress)) (res Result, err error) {
	parent := ctx
	ctx, s.fail = context.WithCancelCause(parent)
	s.hear.fail = s.fail
	unwound := make(chan struct{})
	keep := context.AfterFunc(ctx, func() {
		defer close(unwound)
		s.ring.fail(context.Cause(ctx))
		s.link.Interrupt()
		_ = s.src.Close() // the cause is known
	})
	w := watcher{now: s.progress, report: report, stall: s.opt.Stall, moved: s.moved, stalled: s.stalled, fail: s.fail}
	stop := w.start()
	go s.hear.listen()

	account, err := s.move(ctx)
	if err == nil {
		err = s.finish(ctx, account)
	}
	if err != nil {
		s.fail(err) // keeps the first cause
	}
	if !keep() {
		<-unwound
		<-s.hear.over
		err = bare(context.Cause(ctx))
		tell(parent, s.link, err)
	}
	stop()
	s.fail(nil)
	_ = s.link.Close()
	<-s.hear.over
	res = Result{Progress: s.progress(), Frames: int64(s.frames), Digest: s.digest}
	for _, c := range s.link.Conns() {
		res.WireBytes += c.WireBytes()
	}
	if report != nil {
		report(res.Progress)
	}
	return res, err
}

// move brings the stream onto the connections, but not its end. It returns
// when nothing of it runs any more; the error is the Source's, or any that
// was the first.
func (s *sending) move(ctx context.Context) (wire.Account, error) {
	if s.pipe != nil {
		return s.splice(ctx)
	}
	var g sync.WaitGroup
	if s.pack != nil {
		s.reader.each = s.pack.add
		s.pack.start(&g, s.ring)
	}
	g.Add(1)
	go func() {
		defer g.Done()
		if err := s.reader.run(); err != nil {
			s.fail(err)
		}
		if s.pack != nil {
			close(s.pack.work)
		}
	}()
	errs := make([]error, len(s.link.Conns()))
	for i, c := range s.link.Conns() {
		g.Add(1)
		go func() {
			defer g.Done()
			if errs[i] = s.transmit(ctx, c); errs[i] != nil && !errors.As(errs[i], new(*sourceError)) {
				s.hear.explain(ctx, errs[i])
			}
		}()
	}
	g.Wait()
	if ctx.Err() != nil {
		return wire.Account{}, context.Cause(ctx)
	}
	sum := s.reader.digest()
	s.frames, s.digest = s.reader.pieces, hex.EncodeToString(sum[:])
	return wire.Account{Bytes: uint64(s.reader.meter.bytes.Load()), Frames: s.frames, Digest: sum, Digested: true}, errs[0]
}

// transmit sends pieces over one connection until there are no more.
func (s *sending) transmit(ctx context.Context, c *wire.Conn) error {
	i := c.Stream()
	for {
		p, err := s.ring.take(s.empty[i])
		if p == nil {
			s.empty[i].Start() // from now on it waits for the others
			return err
		}
		if err := p.wait(ctx, s.empty[i]); err != nil {
			return err
		}
		if err := s.limit.wait(ctx, len(p.block.Payload()), s.limited[i]); err != nil {
			return err
		}
		if err := c.WriteFrame(p.header, p.block); err != nil {
			return err
		}
		s.meter.bytes.Add(int64(p.header.Raw))
		s.ring.release(p.block)
	}
}

// wait waits for the worker of a piece.
func (p *piece) wait(ctx context.Context, w *wire.Stopwatch) error {
	if p.ready == nil {
		return nil
	}
	select {
	case <-p.ready:
		return p.err
	default:
	}
	w.Start()
	defer w.Stop()
	select {
	case <-p.ready:
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// finish writes the end to all connections and waits for the receiver.
func (s *sending) finish(ctx context.Context, a wire.Account) error {
	if err := s.hear.end(ctx, a); err != nil {
		return err
	}
	for i, w := range s.written { // what it waits for now is behind it
		if s.empty[i].Running() {
			s.empty[i].Stop()
		}
		w.Start()
	}
	return s.hear.confirmed(ctx)
}

func (s *sending) progress() Progress {
	life := time.Since(s.started)
	n := s.link.Network()
	p := Progress{Bytes: s.meter.bytes.Load(), Elapsed: life, Network: &n}
	p.Stages = append(p.Stages, s.reader.meter.stage(life))
	if s.pack != nil {
		p.Stages = append(p.Stages, s.pack.meter.stage(life))
	}
	if s.limit != nil {
		p.Stages = append(p.Stages, s.limit.meter.stage(life))
	}
	p.Stages = append(p.Stages, s.meter.stage(life))
	return p
}

// moved changes while the transfer gets on: after the end that is for the
// receiver to say.
func (s *sending) moved() int64 {
	return s.reader.meter.bytes.Load() + s.meter.bytes.Load() + s.hear.alive.Load()
}

func (s *sending) stalled() error {
	switch {
	case s.hear.ended.Load():
		return stalledNetwork("the other end did not confirm the stream", s.opt.Stall)
	case s.reader.meter.bytes.Load() > s.meter.bytes.Load():
		return stalledNetwork("the network or the other end took nothing", s.opt.Stall)
	}
	return stalled(s.src.Name()+" gave nothing", s.opt.Stall)
}
