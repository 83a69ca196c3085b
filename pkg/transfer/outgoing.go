package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"zxfer/pkg/transport/tcp"
)

// silenceTimeout is how long a sender that hears nothing waits before it takes the
// network for dead: the receiver says every aliveEvery that it is at work. TCP
// cannot be asked: see wire's unackedTimeout.
const silenceTimeout = 30 * time.Second

// explainTimeout is how long a broken connection waits for another one to tell
// why it broke.
const explainTimeout = time.Second

// Outgoing is the sender's end of a link: it writes frames, hears what the
// receiver says, on connection 0, and ends when that has confirmed.
type Outgoing struct {
	link *tcp.Link
	content string // is sent: "stream" or "device"
	// Have, where set, takes what the receiver tells that it holds already.
	Have func(position uint64, payload []byte) error
	// Empty meter, for each connection, the time that there was nothing to send.
	Empty WaitTimers

	limit   *Bandwidth
	limited WaitTimers // by connection
	meter   meter      // waits out for the network

	life  *Life
	ended atomic.Bool   // all is written; what remains is the receiver's
	alive atomic.Int64  // times heard of it since
	done  chan struct{} // closed when nothing more comes
	ack   []byte        // what came with the Ack; set before over is closed
}

// NewOutgoing is the end that sends a "stream" or "device".
func NewOutgoing(link *tcp.Link, subject string, opt Options) *Outgoing {
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

func (o *Outgoing) start(l *Life) {
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

// Write sends a block as one frame, when the bandwidth limit allows it.
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

// listen reads what the receiver says until it confirms, gives up, or cannot
// be heard any more.
func (o *Outgoing) listen() {
	defer close(o.done)
	c := o.link.Conns()[0]
	c.SetSilence(silenceTimeout)
	b := tcp.NewBlock(tcp.MaxControl, 0)
	for {
		head, err := c.ReadFrame(b)
		if err != nil {
			o.life.Fail(err)
			return
		}
		switch {
		case head.Kind == tcp.Alive:
			if o.ended.Load() {
				o.alive.Add(1)
			}
		case head.Kind == tcp.Have && o.Have != nil:
			if err := o.Have(head.Position, b.Payload()); err != nil {
				o.life.Fail(err)
				return
			}
		case head.Kind == tcp.Ack:
			if !o.ended.Load() {
				o.life.Fail(fmt.Errorf("%w: the receiver confirmed a %s that has not ended", tcp.ErrTampered, o.content))
			}
			o.ack = b.Payload()
			return
		case head.Kind == tcp.Abort:
			o.life.Fail(&PeerError{Text: string(b.Payload())})
			return
		default:
			o.life.Fail(fmt.Errorf("%w: a frame of kind %d from the receiver", tcp.ErrTampered, head.Kind))
			return
		}
	}
}

// Explain fails with the error of a connection. A receiver that gave up says
// why and then closes: its word is waited for.
func (o *Outgoing) Explain(ctx context.Context, err error) {
	if errors.Is(err, tcp.ErrCut) {
		timer := time.NewTimer(explainTimeout)
		defer timer.Stop()
		select {
		case <-o.done:
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	o.life.Fail(err)
}

// End writes the end to all connections, and waits for the receiver's last
// word, which it returns.
func (o *Outgoing) End(ctx context.Context, a tcp.Account) ([]byte, error) {
	o.ended.Store(true)
	for _, c := range o.link.Conns() {
		if err := c.WriteEnd(a); err != nil {
			o.Explain(ctx, err)
			return nil, err
		}
	}
	for i, c := range o.link.Conns() { // what it waits for now is behind it
		if o.Empty[i].Running() {
			o.Empty[i].Stop()
		}
		c.WriteWait().Start()
	}
	select {
	case <-o.done:
		return o.ack, nil // without one, the life has failed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Bytes is how much was sent.
func (o *Outgoing) Bytes() int64 { return o.meter.bytes.Load() }

// Stages are those of the bandwidth limit, if there is one, and of sending.
func (o *Outgoing) Stages(life time.Duration) []Stage {
	return append(o.limit.Stages(life), o.meter.stage(life))
}

// Moved changes while it gets on: after the end that is for the receiver to say.
func (o *Outgoing) Moved() int64 { return o.meter.bytes.Load() + o.alive.Load() }

// Stalled is for a Life: read is how much a source of that name has given.
func (o *Outgoing) Stalled(read int64, source string) (reason string, network bool) {
	switch {
	case o.ended.Load():
		return "the other end did not confirm the " + o.content, true
	case read > o.meter.bytes.Load():
		return "the network or the other end took nothing", true
	}
	return source + " gave nothing", false
}
