package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"zxfer/pkg/wire"
)

// Send moves a Source onto a link and waits until the receiver has stored the
// stream. It returns the failure's cause: the Source's own error, what the
// receiver reported (*PeerError), or a cut of the connection (wire.ErrCut).
// The link is closed in any case, the Source only on failure.
func Send(ctx context.Context, src Source, link *wire.Link, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	s := &sending{src: src, link: link, opt: opt, limit: limiter(opt),
		queue:  newQueue(opt.Buffer, opt.Block),
		reader: meter{name: StageRead}, sender: meter{name: StageSend, workers: len(link.Conns())},
		compressor: meter{name: StageCompress}, started: time.Now(),
	}
	s.packed = s.queue
	if opt.compresses() {
		s.packed = newQueue(opt.Buffer/4, opt.Block)
	}
	return s.run(ctx, progress)
}

func (o Options) filled() Options {
	if o.Buffer <= 0 {
		o.Buffer = DefaultBuffer
	}
	if o.Block <= 0 {
		o.Block = DefaultBlock
	}
	o.Block = min(o.Block, wire.MaxPayload)
	return o
}

// limiter is the token bucket of --bwlimit, nil without one. Its burst is a
// tenth of a second's worth.
func limiter(o Options) *rate.Limiter {
	if o.BandLimit <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(o.BandLimit), int(max(o.BandLimit/10, 4096)))
}

// allow waits until n bytes may pass.
func allow(ctx context.Context, l *rate.Limiter, n int) error {
	for l != nil && n > 0 {
		part := min(n, l.Burst())
		if err := l.WaitN(ctx, part); err != nil {
			return err
		}
		n -= part
	}
	return nil
}

type sending struct {
	src        Source
	link       *wire.Link
	opt        Options
	limit      *rate.Limiter
	queue      *queue // from the reader
	packed     *queue // to the senders: the same one without compression
	reader     meter
	compressor meter
	sender     meter
	started    time.Time

	frames int64
	wired  meter // bytes that crossed the network
	digest string

	once  sync.Once
	cause error
}

// fail records the first failure and ends everything.
func (s *sending) fail(err error) {
	s.once.Do(func() {
		s.cause = err
		s.queue.abort(err)
		s.packed.abort(err)
		_ = s.link.Close()
		_ = s.src.Close()
	})
}

func (s *sending) progress() Progress {
	n := s.link.Network()
	p := Progress{Bytes: s.sender.bytes.Load(), Elapsed: time.Since(s.started), Network: &n}
	p.Stages = append(p.Stages, s.reader.stage())
	if s.opt.compresses() {
		p.Stages = append(p.Stages, s.compressor.stage())
	}
	p.Stages = append(p.Stages, s.sender.stage())
	return p
}

func (s *sending) run(ctx context.Context, report func(Progress)) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := watch(s.progress, report, s.opt.Stall, s.fail, func(p Progress) string {
		if p.Stages[0].Bytes > p.Bytes {
			return "the network or the other end took nothing"
		}
		return s.src.Name() + " gave nothing"
	})
	unhook := context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })

	acked := make(chan error, 1)
	go func() { acked <- s.awaitAck() }()
	err := s.move(ctx)
	switch {
	case err == nil:
		err = <-acked
	case s.ownFailure(err):
		// The source failed: the receiver is told why before the link closes.
		_ = s.link.Conns()[0].SetWriteDeadline(time.Now().Add(5 * time.Second))
		_ = writeControl(s.link.Conns()[0], wire.Abort, err.Error())
		s.fail(err)
		<-acked
	default:
		// A receiver that failed says so and closes: its word explains the cut.
		var peer *PeerError
		if said := s.settle(acked); errors.As(said, &peer) {
			err = said
		}
		s.fail(err)
	}
	unhook()
	if err == nil {
		stop()
	} else {
		s.fail(err)
		stop()
		err = s.cause
	}
	_ = s.link.Close()
	res := Result{Progress: s.progress(), WireBytes: s.wired.bytes.Load(), Frames: s.frames, Digest: s.digest}
	return res, err
}

// settle waits a moment for what the receiver may have said before the cut.
func (s *sending) settle(acked <-chan error) error {
	select {
	case err := <-acked:
		return err
	case <-time.After(2 * time.Second):
		return nil
	}
}

func (s *sending) ownFailure(err error) bool {
	return errors.As(err, new(*sourceError)) && s.cause == nil
}

// move brings all bytes and the end onto the wire.
func (s *sending) move(ctx context.Context) error {
	if p, ok := s.src.(PipeSource); ok && s.spliceable() {
		return s.splice(ctx, p)
	}
	errs := make(chan error)
	running := 1 + len(s.link.Conns())
	if s.opt.compresses() {
		workers, err := s.startCompression(errs)
		if err != nil {
			return err
		}
		running += workers
	}
	go func() { errs <- s.read() }()
	counts := make([]uint64, len(s.link.Conns()))
	for i, c := range s.link.Conns() {
		go func() { errs <- s.transmit(ctx, c, &counts[i]) }()
	}
	var first error
	for range running {
		if err := <-errs; err != nil && first == nil {
			first = err
			s.queue.abort(err)
			s.packed.abort(err)
		}
	}
	if first != nil {
		return first
	}
	for i, c := range s.link.Conns() {
		e := ending{Bytes: s.reader.bytes.Load(), Frames: uint64(s.frames), Connection: counts[i], Digest: s.digest}
		if err := writeEnding(c, e); err != nil {
			return err
		}
	}
	return nil
}

// read brings the source into the queue.
func (s *sending) read() (err error) {
	s.frames, s.digest, err = fill(s.src, s.queue, s.opt.Block, &s.reader)
	return err
}

// transmit sends frames over one connection.
func (s *sending) transmit(ctx context.Context, c *wire.Conn, count *uint64) error {
	t := startTimer()
	for {
		f, err := s.packed.take()
		t.add(&s.sender.in)
		if f == nil || err != nil {
			return err
		}
		n := int64(len(f.Payload()))
		if err := allow(ctx, s.limit, int(n)); err != nil {
			return err
		}
		t.add(&s.sender.out)
		c.Seal(f)
		t.add(&s.sender.busy)
		if err := c.Flush(f); err != nil {
			return err
		}
		t.add(&s.sender.out)
		s.sender.bytes.Add(int64(f.Raw))
		s.wired.bytes.Add(n + wire.HeaderSize + wire.TagSize)
		*count++
		s.queue.recycle(f)
	}
}

// awaitAck reads what the receiver says: that it is alive, and in the end how
// it went.
func (s *sending) awaitAck() error {
	f := wire.NewFrame(1024)
	c := s.link.Conns()[0]
	for {
		if err := c.ReadFrame(f); err != nil {
			return err
		}
		switch f.Kind {
		case wire.Alive:
		case wire.Ack:
			if len(f.Payload()) == 0 {
				return nil
			}
			err := &PeerError{string(f.Payload())}
			s.fail(err)
			return err
		case wire.Abort:
			err := &PeerError{string(f.Payload())}
			s.fail(err)
			return err
		default:
			return fmt.Errorf("%w: unexpected frame from the receiver", wire.ErrTampered)
		}
	}
}
