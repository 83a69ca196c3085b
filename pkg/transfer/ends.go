package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/wire"
)

// connEnd is how one connection ended at the receiver.
type connEnd struct {
	account wire.Account
	err     error
}

// joinEnds waits for the ends of n connections, which must agree, and returns
// the account of the whole, with what crossed on all connections as its
// StreamBytes and StreamFrames.
//
// When one ends early, the others get a moment to end, too: a sender that gave
// up says why on each that still works, after what it had sent before. cut is
// called with the error when that moment has passed. All that came until then
// is genuine; early tells that it is not the whole. err means that nothing may
// be trusted.
func joinEnds(ctx context.Context, n int, ends <-chan connEnd, cut func(early error)) (whole wire.Account, early, err error) {
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
		case !peer && !errors.Is(e.err, wire.ErrCut):
			return whole, early, e.err
		case early == nil:
			early, late = e.err, time.After(explainWithin)
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
