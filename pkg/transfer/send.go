package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"zxfer/pkg/transport/tcp"
)

// Send sends a Source over a link and returns once the receiver has stored the stream. The
// error is the cause: the Source's own, a *PeerError, tcp.ErrCut, ErrStall, or the context's.
// Send closes the link, and on failure also the Source.
//
// progress may be nil. Send calls it about twice a second and once at the end.
func Send(ctx context.Context, src Source, link *tcp.Link, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.Filled()
	s := &senderState{src: src, link: link, out: NewOutgoing(link, "stream", opt), maxFrame: opt.limitedBlock()}
	var err error
	if s.compress, err = newCompressStage(opt); err != nil {
		link.Abort(err)
		return Result{}, err
	}
	s.ring = newRing(opt.Buffer, opt.Block, 0)
	s.reader = newReader(src, s.ring, s.maxFrame)
	if p, ok := src.(PipeSource); ok && link.Mode() == tcp.Plain && len(link.Conns()) == 1 && s.compress == nil {
		s.pipe = p
		s.reader.meter.waitOut = exceptWait(s.out.Empty[0])
	}
	s.life = &Life{Stall: opt.Stall, Report: progress, Over: s.out, Move: s.move, Unwind: s.unwind, Account: s.account,
		Moved:   func() int64 { return s.reader.meter.bytes.Load() + s.out.Moved() },
		Stalled: func() (string, bool) { return s.out.Stalled(s.reader.meter.bytes.Load(), src.Name()) }}
	res, err := s.life.Run(ctx)
	res.Frames, res.Digest = int64(s.frames), s.digest
	return res, err
}

// senderState is the state of one Send.
type senderState struct {
	src      Source
	link     *tcp.Link
	life     *Life
	out      *Outgoing
	maxFrame int // bytes per frame

	ring     *ring
	reader   *reader
	compress *compressStage // nil without compression
	pipe     PipeSource     // nil except on the zero-copy path

	frames uint64
	digest string
}

func (s *senderState) unwind(cause error) {
	s.ring.fail(cause)
	_ = s.src.Close() // the cause is already known
}

// move sends the stream and its End frames, and waits for the receiver. It returns the first
// error.
func (s *senderState) move(ctx context.Context) error {
	feed := s.copy
	if s.pipe != nil {
		feed = s.splice
	}
	account, err := feed(ctx)
	if err == nil {
		_, err = s.out.End(ctx, account)
	}
	return err
}

// copy sends the stream from the ring over all connections, without the End frames.
func (s *senderState) copy(ctx context.Context) (tcp.Account, error) {
	var g sync.WaitGroup
	if s.compress != nil {
		s.reader.prepare, s.compress.ring = s.compress.add, s.ring
		s.compress.start()
	}
	g.Go(func() {
		if err := s.reader.run(); err != nil {
			s.life.Fail(err)
		}
		if s.compress != nil {
			s.compress.stop()
		}
	})
	errs := make([]error, len(s.link.Conns()))
	for i, c := range s.link.Conns() {
		g.Go(func() {
			if errs[i] = s.transmit(ctx, c); errs[i] != nil && !errors.As(errs[i], new(*sourceError)) {
				s.out.Explain(ctx, errs[i])
			}
		})
	}
	g.Wait()
	if ctx.Err() != nil {
		return tcp.Account{}, context.Cause(ctx)
	}
	sum := s.reader.digest()
	s.frames, s.digest = s.reader.pieces, hex.EncodeToString(sum[:])
	return tcp.Account{Bytes: uint64(s.reader.meter.bytes.Load()), Frames: s.frames, Digest: sum, Digested: true}, errs[0]
}

// transmit sends pieces over one connection until the ring has no more.
func (s *senderState) transmit(ctx context.Context, c *tcp.Conn) error {
	empty := s.out.Empty[c.Stream()]
	for {
		p, err := s.ring.take(empty)
		if p == nil {
			empty.Start() // this connection now waits for the others
			return err
		}
		if err := p.wait(ctx, empty); err != nil {
			return err
		}
		if err := s.out.Write(ctx, c, p.header, p.block); err != nil {
			return err
		}
		s.ring.release(p.block)
	}
}

func (s *senderState) account(life time.Duration) (int64, []Stage) {
	stages := []Stage{s.reader.meter.stage(life)}
	if s.compress != nil {
		stages = append(stages, s.compress.meter.stage(life))
	}
	return s.out.Bytes(), append(stages, s.out.Stages(life)...)
}
