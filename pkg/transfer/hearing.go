package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"zxfer/pkg/wire"
)

// The receiver says every aliveEvery that it is at work; a sender that hears
// nothing for silence takes the network for dead. It cannot ask TCP: see
// wire's unackedTimeout.
const (
	aliveEvery = 5 * time.Second
	silence    = 30 * time.Second
)

// explainWithin is how long a broken connection waits for another one to tell
// why it broke.
const explainWithin = time.Second

// hearing is a sender's side of what the receiver says, on connection 0.
type hearing struct {
	link *wire.Link
	what string                  // is sent: "stream" or "device"
	fail context.CancelCauseFunc // ends the transfer
	// have takes what the receiver holds already; nil where it is not asked.
	have func(position uint64, payload []byte) error

	ended atomic.Bool   // all is written; what remains is the receiver's
	alive atomic.Int64  // times heard of it since
	over  chan struct{} // closed when nothing more comes
	ack   []byte        // what came with the Ack; set before over is closed
}

func newHearing(link *wire.Link, what string) *hearing {
	return &hearing{link: link, what: what, over: make(chan struct{})}
}

// listen reads what the receiver says until it confirms, gives up, or cannot
// be heard any more.
func (h *hearing) listen() {
	defer close(h.over)
	c := h.link.Conns()[0]
	c.SetSilence(silence)
	b := wire.NewBlock(wire.MaxControl, 0)
	for {
		head, err := c.ReadFrame(b)
		if err != nil {
			h.fail(err)
			return
		}
		switch {
		case head.Kind == wire.Alive:
			if h.ended.Load() {
				h.alive.Add(1)
			}
		case head.Kind == wire.Have && h.have != nil:
			if err := h.have(head.Position, b.Payload()); err != nil {
				h.fail(err)
				return
			}
		case head.Kind == wire.Ack:
			if !h.ended.Load() {
				h.fail(fmt.Errorf("%w: the receiver confirmed a %s that has not ended", wire.ErrTampered, h.what))
			}
			h.ack = b.Payload()
			return
		case head.Kind == wire.Abort:
			h.fail(&PeerError{Text: string(b.Payload())})
			return
		default:
			h.fail(fmt.Errorf("%w: a frame of kind %d from the receiver", wire.ErrTampered, head.Kind))
			return
		}
	}
}

// explain fails with the error of a connection. A receiver that gave up says
// why and then closes: its word is waited for.
func (h *hearing) explain(ctx context.Context, err error) {
	if errors.Is(err, wire.ErrCut) {
		timer := time.NewTimer(explainWithin)
		defer timer.Stop()
		select {
		case <-h.over:
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	h.fail(err)
}

// end writes the end to all connections.
func (h *hearing) end(ctx context.Context, a wire.Account) error {
	h.ended.Store(true)
	for _, c := range h.link.Conns() {
		if err := c.WriteEnd(a); err != nil {
			h.explain(ctx, err)
			return err
		}
	}
	return nil
}

// confirmed waits for the receiver's last word. nil means that there was one:
// if it was not an Ack, the cause is set.
func (h *hearing) confirmed(ctx context.Context) error {
	select {
	case <-h.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keepAlive tells the sender every so often that this end is at work, and how
// much it has stored. A sender of the same, short patience hears of it in time.
func keepAlive(link *wire.Link, stall time.Duration, stored *atomic.Int64) (stop func()) {
	every := min(aliveEvery, stall/3)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				// If it fails, so do the reads.
				_ = link.Conns()[0].WriteControl(wire.Alive, uint64(stored.Load()), nil)
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}
