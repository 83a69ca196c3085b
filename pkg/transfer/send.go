package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/transport/tcp"
)

// Send sends a Source over a link and returns once the receiver has stored the stream. The
// error is the cause: the Source's own, a *PeerError, tcp.ErrConnectionLost, ErrStall, or the context's.
// Send closes the link, and on failure also the Source.
//
// progress may be nil. Send calls it about twice a second and once at the end.
func Send(ctx context.Context, src Source, link *tcp.Link, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.Filled()
	s := &sendEngine{src: src, link: link, out: NewOutgoing(link, "stream", opt), maxFrame: opt.limitedBlock()}
	var err error
	if s.compress, err = newCompressStage(opt); err != nil {
		link.Abort(err)
		return Result{}, err
	}
	s.ring = newRing(opt.Buffer, opt.Block, 0)
	s.reader = newReader(src, s.ring, s.maxFrame)
	res, err := (&Lifecycle{Engine: s, Stall: opt.Stall, Report: progress, End: s.out}).Run(ctx)
	s.ring.unmap()
	res.Frames, res.Digest = int64(s.frames), s.digest
	return res, err
}

// sendEngine is the Engine of one Send.
type sendEngine struct {
	src      Source
	link     *tcp.Link
	out      *Outgoing
	maxFrame int // bytes per frame

	ring     *ring
	reader   *reader
	compress *compressStage // nil without compression

	frames uint64
	digest string
}

// Move sends the stream and its End frames, and waits for the receiver.
func (s *sendEngine) Move(ctx context.Context, fail func(error)) error {
	account, err := s.copy(ctx, fail)
	if err == nil {
		_, err = s.out.End(ctx, account)
	}
	return err
}

func (s *sendEngine) Unwind(cause error) {
	s.ring.fail(cause)
	_ = s.src.Close() // the cause is already known
}

func (*sendEngine) Commit(context.Context) error { return nil }

func (*sendEngine) Abandon() (target string, err error) { return "", nil }

// copy sends the stream from the ring over all connections, without the End frames.
func (s *sendEngine) copy(ctx context.Context, fail func(error)) (tcp.Account, error) {
	var g sync.WaitGroup
	if s.compress != nil {
		s.reader.prepare, s.compress.ring = s.compress.add, s.ring
		s.compress.start()
	}
	g.Go(func() {
		if err := s.reader.run(); err != nil {
			fail(err)
		}
		if s.compress != nil {
			s.compress.stop()
		}
	})
	errs := make([]error, len(s.link.Conns()))
	for i, c := range s.link.Conns() {
		g.Go(func() {
			if errs[i] = s.transmit(ctx, c); errs[i] != nil && !errors.As(errs[i], new(*sourceError)) {
				s.out.ConnFailed(ctx, errs[i])
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
func (s *sendEngine) transmit(ctx context.Context, c *tcp.Conn) error {
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

func (s *sendEngine) Account(life time.Duration) State {
	stages := []Stage{s.reader.meter.stage(life)}
	if s.compress != nil {
		stages = append(stages, s.compress.meter.stage(life))
	}
	return State{Bytes: s.out.Bytes(), Moved: s.reader.meter.bytes.Load() + s.out.Moved(), Worked: s.reader.worked(),
		Stages: append(stages, s.out.Stages(life)...)}
}

func (s *sendEngine) Stalled() (reason string, network bool) {
	return s.out.Stalled(s.reader.meter.bytes.Load(), s.src.Name())
}

// silenceTimeout is how long a sender waits for a frame from the receiver, which sends an Alive
// frame every aliveInterval. TCP_USER_TIMEOUT cannot replace it: see unackedTimeout in package
// tcp.
const silenceTimeout = 30 * time.Second

// explainTimeout is how long a broken connection waits for an Abort frame on another one.
const explainTimeout = time.Second

// Outgoing is the sender's end of a link. It writes frames, and reads the receiver's frames on
// connection 0 until the receiver confirms.
type Outgoing struct {
	link    *tcp.Link
	content string // "stream" or "device", for messages
	// Have, if not nil, is called with the blocks that the receiver already holds.
	Have func(position uint64, payload []byte) error
	// Empty counts, per connection, the time without data to send.
	Empty WaitTimers

	limit   *Bandwidth
	limited WaitTimers // by connection
	meter   meter      // its waitOut is the network

	life  *Lifecycle
	ended atomic.Bool   // all End frames are written
	alive atomic.Int64  // Alive frames read after that
	done  chan struct{} // closed when listen ends
	ack   []byte        // payload of the Ack; set before done is closed
}

// NewOutgoing returns the sending end of a link. The subject is "stream" or "device".
func NewOutgoing(link *tcp.Link, subject string, opt Options) *Outgoing {
	link.Sending()
	n := len(link.Conns())
	o := &Outgoing{link: link, content: subject, done: make(chan struct{}), Empty: NewWaitTimers(n), limited: NewWaitTimers(n)}
	o.limit = NewBandwidth(opt, o.limited)
	var written WaitTimers
	for _, c := range link.Conns() {
		written = append(written, c.WriteWait())
	}
	o.meter.name, o.meter.waitIn, o.meter.waitOut = StageSend, sumWaits(o.Empty.mean, o.limited.mean), written.mean
	return o
}

func (o *Outgoing) tcpLink() *tcp.Link { return o.link }

func (o *Outgoing) start(l *Lifecycle) {
	o.life = l
	go o.listen()
}

func (o *Outgoing) interrupt() {
	o.link.Interrupt()
	<-o.done
}

func (o *Outgoing) end(err error) {
	if err != nil {
		o.life.notifyPeer(err)
	}
}

// Write sends a block as one frame, within the bandwidth limit.
func (o *Outgoing) Write(ctx context.Context, c *tcp.Conn, h tcp.Header, b *tcp.Block) error {
	if err := o.limit.Wait(ctx, len(b.Payload()), o.limited[c.Stream()]); err != nil {
		return err
	}
	if err := c.WriteFrame(h, b); err != nil {
		return err
	}
	o.meter.bytes.Add(int64(h.Raw))
	return nil
}

// listen reads the receiver's frames until it confirms, aborts or falls silent.
func (o *Outgoing) listen() {
	defer close(o.done)
	c := o.link.Conns()[0]
	c.SetSilence(silenceTimeout)
	b := tcp.NewBlock(tcp.MaxControl, 0)
	for {
		head, err := c.ReadFrame(b)
		if err != nil {
			o.life.fail(err)
			return
		}
		switch {
		case head.Kind == tcp.Alive:
			if o.ended.Load() {
				o.alive.Add(1)
			}
		case head.Kind == tcp.Have && o.Have != nil:
			if err := o.Have(head.Position, b.Payload()); err != nil {
				o.life.fail(err)
				return
			}
		case head.Kind == tcp.Ack:
			if !o.ended.Load() {
				o.life.fail(fmt.Errorf("%w: the receiver confirmed an unfinished %s", tcp.ErrTampered, o.content))
			}
			o.ack = b.Payload()
			return
		case head.Kind == tcp.Abort:
			o.life.fail(&PeerError{Text: string(b.Payload())})
			return
		default:
			o.life.fail(fmt.Errorf("%w: unexpected frame of kind %d from the receiver", tcp.ErrTampered, head.Kind))
			return
		}
	}
}

// ConnFailed fails the transfer with the error of a connection. A receiver that aborts sends the
// reason before it closes, so ConnFailed waits for that first.
func (o *Outgoing) ConnFailed(ctx context.Context, err error) {
	if errors.Is(err, tcp.ErrConnectionLost) {
		timer := time.NewTimer(explainTimeout)
		defer timer.Stop()
		select {
		case <-o.done:
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	o.life.fail(err)
}

// End writes End frames to all connections, waits for the receiver's Ack and returns its
// payload.
func (o *Outgoing) End(ctx context.Context, a tcp.Account) ([]byte, error) {
	o.ended.Store(true)
	for _, c := range o.link.Conns() {
		if err := c.WriteEnd(a); err != nil {
			o.ConnFailed(ctx, err)
			return nil, err
		}
	}
	for i, c := range o.link.Conns() { // from here on the sender only waits for the receiver
		if o.Empty[i].Running() {
			o.Empty[i].Stop()
		}
		c.WriteWait().Start()
	}
	select {
	case <-o.done:
		return o.ack, nil // nil if the transfer failed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Bytes returns the number of bytes sent.
func (o *Outgoing) Bytes() int64 { return o.meter.bytes.Load() }

// Stages returns the stages of sending and, if set, of the bandwidth limit.
func (o *Outgoing) Stages(life time.Duration) []Stage {
	return append(o.limit.Stages(life), o.meter.stage(life))
}

// Moved returns a counter that changes while the transfer makes progress. After the end, Alive
// frames advance it.
func (o *Outgoing) Moved() int64 { return o.meter.bytes.Load() + o.alive.Load() }

// Stalled implements Engine.Stalled. read is the number of bytes read from the source so far.
func (o *Outgoing) Stalled(read int64, source string) (reason string, network bool) {
	switch {
	case o.ended.Load():
		return "the other host did not confirm the " + o.content, true
	case read > o.meter.bytes.Load():
		return "the network or the other host accepted no data", true
	}
	return source + " sent no data", false
}
