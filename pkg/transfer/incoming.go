package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/transport/tcp"
)

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
	life  *Life
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

func (in *Incoming) start(l *Life) {
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
	every := min(aliveInterval, in.life.Stall/3)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				stored, _ := in.life.Account(time.Since(in.life.started))
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
// If one connection ends early, Receive waits explainTimeout for the others: a sender that
// aborts writes the reason to each of them. Then it calls cut, unless that is nil. With an
// early error, all frames received so far are genuine but the stream is incomplete. With err,
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
	whole, early, err = joinEnds(ctx, len(in.link.Conns()), ends, func(early error) {
		if cut != nil {
			cut(early)
		}
		in.link.Interrupt()
	})
	if err != nil {
		in.life.Fail(err)
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
	return tcp.Account{}, fmt.Errorf("%w: a frame of kind %d from the sender", tcp.ErrTampered, h.Kind)
}

// joinEnds waits for the ends of n connections, whose accounts must agree.
func joinEnds(ctx context.Context, n int, ends <-chan connEnd, cut func(early error)) (whole tcp.Account, early, err error) {
	var late <-chan time.Time
	var bytes, frames uint64
	for have := 0; have < n; {
		var e connEnd
		select {
		case e = <-ends:
		case <-late:
			cut(early)
			continue
		case <-ctx.Done():
			return whole, early, context.Cause(ctx)
		}
		have++
		switch peer := errors.As(e.err, new(*PeerError)); {
		case e.err == nil:
		case !peer && !errors.Is(e.err, tcp.ErrCut):
			return whole, early, e.err
		case early == nil:
			early, late = e.err, time.After(explainTimeout)
		case peer:
			early = e.err
		}
		bytes += e.account.StreamBytes
		frames += e.account.StreamFrames
		e.account.StreamBytes, e.account.StreamFrames = 0, 0
		if have > 1 && early == nil && e.account != whole {
			return whole, early, fmt.Errorf("%w: the connections' ends disagree", ErrMiscounted)
		}
		whole = e.account
	}
	whole.StreamBytes, whole.StreamFrames = bytes, frames
	return whole, early, nil
}

// Took counts a valid frame.
func (in *Incoming) Took(h tcp.Header) { in.meter.bytes.Add(int64(h.Raw)) }

// Bytes returns the number of bytes received.
func (in *Incoming) Bytes() int64 { return in.meter.bytes.Load() }

// Stage returns the receiving stage.
func (in *Incoming) Stage(life time.Duration) Stage { return in.meter.stage(life) }
