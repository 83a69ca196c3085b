package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"zxfer/pkg/transport/tcp"
)

// Receive stores a stream from a link in a Sink. It commits the Sink only if the sender's
// account matches the stored bytes, and otherwise aborts it. The error is the cause: the Sink's
// own, a *PeerError, tcp.ErrConnectionLost, tcp.ErrTampered, ErrTotalsMismatch, ErrStall, or the context's.
// Receive reports the outcome to the sender and closes the link.
//
// progress may be nil. Receive calls it about twice a second and once at the end.
func Receive(ctx context.Context, link *tcp.Link, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.Filled()
	r := &receiveEngine{writer: newWriter(sink, opt), link: link, in: NewIncoming(link), hash: xxh3.New128()}
	r.ring = r.writer.ring
	r.writer.beforeWrite = func(_ context.Context, p *piece) error {
		_, err := r.hash.Write(p.block.Payload())
		return err
	}
	r.decompress = newDecompressStage(opt, r.ring)
	if p, ok := sink.(PipeSink); ok && link.Mode() == tcp.Plain && len(link.Conns()) == 1 {
		full := new(tcp.WaitTimer)
		r.pipe, r.spliced = p, full
		r.in.meter.waitOut, r.writer.write.waitIn = WaitTimers{full}.mean, exceptWait(full)
	}
	res, err := (&Lifecycle{Engine: r, Stall: opt.Stall, Report: progress, End: r.in}).Run(ctx)
	r.ring.unmap()
	res.Frames, res.Digest = int64(r.writer.frames), r.digest
	return res, err
}

// receiveEngine is the Engine of one Receive.
type receiveEngine struct {
	writer     *writer
	ring       *ring
	link       *tcp.Link
	in         *Incoming
	decompress *decompressStage
	hash       *xxh3.Hasher128
	digest     string

	pipe       PipeSink       // nil except on the zero-copy path
	spliced    *tcp.WaitTimer // zero-copy path: waits for room in the pipe
	inspectBuf []byte         // zero-copy path: bytes copied to the sink
}

// Move stores the stream in the sink, and its tail once the end is verified.
func (r *receiveEngine) Move(ctx context.Context, fail func(error)) error {
	var account tcp.Account
	var err error
	if r.pipe != nil {
		account, err = r.splice()
	} else {
		account, err = r.copy(ctx, fail)
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
	return r.writer.end()
}

func (r *receiveEngine) Unwind(cause error) { r.writer.abort(cause) }

func (r *receiveEngine) Commit(ctx context.Context) error { return r.writer.sink.Commit(ctx) }

func (r *receiveEngine) Abandon() (target string, err error) { return r.writer.aborted() }

// copy receives from all connections into the ring and writes from the ring to the sink.
func (r *receiveEngine) copy(ctx context.Context, fail func(error)) (tcp.Account, error) {
	var account tcp.Account
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		var err error
		if account, err = r.fill(ctx); err != nil {
			fail(err)
		}
	}()
	err := r.writer.store(ctx)
	if err != nil {
		fail(err)
	}
	<-closed
	r.decompress.stop()
	if ctx.Err() != nil {
		return account, context.Cause(ctx)
	}
	return account, err
}

// fill puts received frames into the ring and then closes it. If the stream ends early, the
// frames received in order are genuine and are stored, so that a resume need not send them
// again.
func (r *receiveEngine) fill(ctx context.Context) (tcp.Account, error) {
	a, early, err := r.in.Receive(ctx, r.ring.get, r.take, r.ring.truncate)
	switch {
	case err != nil:
		return a, err
	case early != nil:
		r.ring.truncate(early)
		return a, nil
	case a.StreamBytes != a.Bytes || a.StreamFrames != a.Frames:
		return a, fmt.Errorf("%w: received %d bytes in %d frames, sent %d in %d", ErrTotalsMismatch, a.StreamBytes, a.StreamFrames, a.Bytes, a.Frames)
	}
	return a, r.ring.close(a.Frames, nil)
}

// take puts a frame into the ring.
func (r *receiveEngine) take(ctx context.Context, c *tcp.Conn, h tcp.Header, b *tcp.Block) error {
	if h.Flags&^tcp.Compressed != 0 {
		return fmt.Errorf("%w: a device frame in a stream", tcp.ErrTampered)
	}
	r.in.CountFrame(h)
	full := r.in.Full[c.Stream()]
	p := &piece{block: b, header: h}
	if h.Flags&tcp.Compressed != 0 {
		if err := r.decompress.add(ctx, p, full); err != nil {
			return err
		}
	}
	return r.ring.put(p, full)
}

// verify compares the sender's account with the stored bytes.
func (r *receiveEngine) verify(a tcp.Account) error {
	if got := uint64(r.writer.write.bytes.Load()); a.Bytes != got || a.Frames != r.writer.frames {
		return fmt.Errorf("%w: received %d bytes in %d frames, sent %d in %d", ErrTotalsMismatch, got, r.writer.frames, a.Bytes, a.Frames)
	}
	if r.pipe != nil {
		return nil
	}
	sum := r.hash.Sum128().Bytes()
	if a.Digested && a.Digest != sum {
		return fmt.Errorf("%w: received digest %x, sent %x", ErrTotalsMismatch, sum, a.Digest)
	}
	r.digest = hex.EncodeToString(sum[:])
	return nil
}

func (r *receiveEngine) Account(life time.Duration) State {
	stages := []Stage{r.in.Stage(life)}
	if r.decompress.meter.bytes.Load() > 0 {
		stages = append(stages, r.decompress.meter.stage(life))
	}
	written := r.writer.write.bytes.Load()
	return State{Bytes: written, Moved: r.in.meter.bytes.Load() + written, Stages: append(stages, r.writer.write.stage(life))}
}

func (r *receiveEngine) Stalled() (reason string, network bool) {
	sink := r.in.meter.bytes.Load() > r.writer.write.bytes.Load()
	if r.pipe != nil {
		sink = r.spliced.Running()
	}
	if sink {
		return r.writer.sink.Name() + " accepted no data", false
	}
	return "the network or the other host sent no data", true
}

// aliveInterval is how often a receiver sends an Alive frame.
const aliveInterval = 5 * time.Second

// Incoming is the receiver's end of a link. It reads frames until the end of the stream, sends
// Alive frames meanwhile, and reports the outcome.
type Incoming struct {
	link *tcp.Link
	// Full counts, per connection, the time without room for a received frame.
	Full WaitTimers
	// Ack is the payload of the confirmation.
	Ack []byte

	meter meter // its waitIn is the network
	life  *Lifecycle
	quiet func()
}

// NewIncoming returns the receiving end of a link.
func NewIncoming(link *tcp.Link) *Incoming {
	link.Receiving()
	in := &Incoming{link: link, Full: NewWaitTimers(len(link.Conns()))}
	var read WaitTimers
	for _, c := range link.Conns() {
		read = append(read, c.ReadWait())
	}
	in.meter.name, in.meter.waitIn, in.meter.waitOut = StageReceive, read.mean, in.Full.mean
	return in
}

func (in *Incoming) tcpLink() *tcp.Link { return in.link }

func (in *Incoming) start(l *Lifecycle) {
	in.life = l
	in.quiet = in.keepAlive()
}

func (in *Incoming) interrupt() { in.link.Interrupt() }

func (in *Incoming) end(err error) {
	in.quiet()
	if err != nil {
		in.life.notifyPeer(err)
	} else if in.link.Conns()[0].WriteControl(tcp.Ack, 0, in.Ack) == nil {
		in.link.Finish()
	}
}

// keepAlive sends an Alive frame with the number of stored bytes at intervals. They are short
// enough for a sender with the same stall timeout.
func (in *Incoming) keepAlive() (stop func()) {
	every := min(aliveInterval, max(in.life.Stall/3, time.Millisecond))
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				stored := in.life.Engine.Account(time.Since(in.life.started)).Bytes
				// if this fails, so do the reads
				_ = in.link.Conns()[0].WriteControl(tcp.Alive, uint64(stored), nil)
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// Room returns a block to read a frame into. Take receives the frame in that block.
type (
	Room func() *tcp.Block
	Take func(ctx context.Context, c *tcp.Conn, h tcp.Header, b *tcp.Block) error
)

// connEnd holds the end of one connection.
type connEnd struct {
	account tcp.Account
	err     error
}

// Receive reads frames from all connections until each has ended, and returns the account of
// the stream. Its StreamBytes and StreamFrames are sums over the connections. No reader runs
// when it returns.
//
// If one connection ends early, Receive waits for the others until they bring nothing for
// explainTimeout: a sender that aborts writes the reason to each of them. Then it calls cut, unless that
// is nil. With an early error, all frames received so far are genuine but the stream is incomplete. With err,
// no frame may be trusted, and the transfer has failed.
func (in *Incoming) Receive(ctx context.Context, room Room, take Take, cut func(early error)) (whole tcp.Account, early, err error) {
	var readers sync.WaitGroup
	ends := make(chan connEnd, len(in.link.Conns()))
	for _, c := range in.link.Conns() {
		readers.Go(func() {
			a, err := in.read(ctx, c, room, take)
			ends <- connEnd{a, err}
		})
	}
	whole, early, err = joinEnds(ctx, len(in.link.Conns()), ends, in.Bytes, func(early error) {
		if cut != nil {
			cut(early)
		}
		in.link.Interrupt()
	})
	if err != nil {
		in.life.fail(err)
	}
	readers.Wait()
	return whole, early, err
}

// read reads frames from one connection until its end.
func (in *Incoming) read(ctx context.Context, c *tcp.Conn, room Room, take Take) (tcp.Account, error) {
	for {
		b := room()
		h, err := c.ReadFrame(b)
		if err != nil {
			return tcp.Account{}, err
		}
		if h.Kind != tcp.Data {
			a, err := parseEnd(c, h, b)
			in.Full[c.Stream()].Start() // this connection now waits for the others
			return a, err
		}
		if err := take(ctx, c, h, b); err != nil {
			return tcp.Account{}, err
		}
	}
}

// parseEnd decodes the frame that ends a connection: End or Abort.
func parseEnd(c *tcp.Conn, h tcp.Header, b *tcp.Block) (tcp.Account, error) {
	switch h.Kind {
	case tcp.End:
		a, err := tcp.ParseAccount(b.Payload())
		if err == nil {
			err = c.CheckEnd(a)
		}
		return a, err
	case tcp.Abort:
		return tcp.Account{}, &PeerError{Text: string(b.Payload())}
	}
	return tcp.Account{}, fmt.Errorf("%w: unexpected frame of kind %d from the sender", tcp.ErrTampered, h.Kind)
}

// joinEnds waits for the ends of n connections, whose accounts must agree. received counts bytes.
func joinEnds(ctx context.Context, n int, ends <-chan connEnd, received func() int64, cut func(early error)) (whole tcp.Account, early, err error) {
	var late <-chan time.Time
	var before int64 // received when late started
	var bytes, frames uint64
	for have := 0; have < n; {
		var e connEnd
		select {
		case e = <-ends:
		case <-late:
			if now := received(); now != before {
				before, late = now, time.After(explainTimeout)
			} else {
				cut(early)
			}
			continue
		case <-ctx.Done():
			return whole, early, context.Cause(ctx)
		}
		have++
		switch peer := errors.As(e.err, new(*PeerError)); {
		case e.err == nil:
		case !peer && !errors.Is(e.err, tcp.ErrConnectionLost):
			return whole, early, e.err
		case early == nil:
			early, before, late = e.err, received(), time.After(explainTimeout)
		case peer:
			early = e.err
		}
		bytes += e.account.StreamBytes
		frames += e.account.StreamFrames
		e.account.StreamBytes, e.account.StreamFrames = 0, 0
		if have > 1 && early == nil && e.account != whole {
			return whole, early, fmt.Errorf("%w: the ends of the connections differ", ErrTotalsMismatch)
		}
		whole = e.account
	}
	whole.StreamBytes, whole.StreamFrames = bytes, frames
	return whole, early, nil
}

// CountFrame counts a valid frame.
func (in *Incoming) CountFrame(h tcp.Header) { in.meter.bytes.Add(int64(h.Raw)) }

// Bytes returns the number of bytes received.
func (in *Incoming) Bytes() int64 { return in.meter.bytes.Load() }

// Stage returns the receiving stage.
func (in *Incoming) Stage(life time.Duration) Stage { return in.meter.stage(life) }
