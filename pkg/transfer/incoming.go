package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/transport/tcp"
)

// aliveInterval is how often a receiver says that it is at work.
const aliveInterval = 5 * time.Second

// Incoming is the receiver's end of a link: it reads frames until their end,
// says that it is at work meanwhile, and at last how it went.
type Incoming struct {
	link *tcp.Link
	// Full meter, for each connection, the time that there was no room for what
	// came.
	Full WaitTimers
	// Ack is what the confirmation tells.
	Ack []byte

	meter meter // waits in for the network
	life  *Life
	quiet func()
}

// NewIncoming is the end that receives.
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

// keepAlive tells the sender every so often that this end is at work, and how
// much it has stored. A sender of the same, short patience hears of it in time.
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
				// If it fails, so do the reads.
				_ = in.link.Conns()[0].WriteControl(tcp.Alive, uint64(stored), nil)
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// Room gives a block to read a frame into, and Take takes it with the frame.
type (
	Room func() *tcp.Block
	Take func(ctx context.Context, c *tcp.Conn, h tcp.Header, b *tcp.Block) error
)

// connEnd is how one connection ended.
type connEnd struct {
	account tcp.Account
	err     error
}

// Receive reads what comes over all connections until their ends, and returns
// the account of the whole, with what crossed on all of them as its StreamBytes
// and StreamFrames. Nothing reads any more then.
//
// When one connection ends early, the others get a moment to end, too: a sender
// that gave up says why on each that still works, after what it had sent
// before. cut, which may be nil, is called with the error when that moment has
// passed. All that came until then is genuine; early tells that it is not the
// whole. err means that nothing may be trusted, and has failed the life.
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

// read reads frames off one connection until its end.
func (in *Incoming) read(ctx context.Context, c *tcp.Conn, room Room, take Take) (tcp.Account, error) {
	for {
		b := room()
		h, err := c.ReadFrame(b)
		if err != nil {
			return tcp.Account{}, err
		}
		if h.Kind != tcp.Data {
			a, err := parseEnd(c, h, b)
			in.Full[c.Stream()].Start() // from now on it waits for the others
			return a, err
		}
		if err := take(ctx, c, h, b); err != nil {
			return tcp.Account{}, err
		}
	}
}

// parseEnd is what a frame that is not data says of its connection's end.
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

// joinEnds waits for the ends of n connections, which must agree.
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

// Took notes a frame that was found good.
func (in *Incoming) Took(h tcp.Header) { in.meter.bytes.Add(int64(h.Raw)) }

// Bytes is how much came.
func (in *Incoming) Bytes() int64 { return in.meter.bytes.Load() }

// Stage is that of receiving.
func (in *Incoming) Stage(life time.Duration) Stage { return in.meter.stage(life) }
