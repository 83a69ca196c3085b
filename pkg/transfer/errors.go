package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/wire"
)

// PeerError is a failure that the other end reported over the wire: its own
// source's, its own sink's, or what it found wrong with the bytes.
type PeerError struct{ Text string }

func (e *PeerError) Error() string { return "the other end failed: " + e.Text }

// ErrStall is a transfer that moved no byte for Options.Stall. The error says
// which side gave or took nothing; where that is the network, it is also a
// wire.ErrCut.
var ErrStall = errors.New("no byte was moved")

// ErrMiscounted is a stream whose authenticated end does not match what
// arrived, though every frame was what its sender sent.
var ErrMiscounted = errors.New("the stream's end does not match what arrived")

func stalled(what string, after time.Duration) error {
	return fmt.Errorf("%w for %s: %s", ErrStall, after, what)
}

func stalledNetwork(what string, after time.Duration) error {
	return fmt.Errorf("%w: %w for %s: %s", wire.ErrCut, ErrStall, after, what)
}

// A sinkError is what a Sink's Write or its pipe returned.
type sinkError struct{ error }

func (e *sinkError) Unwrap() error { return e.error }

// A sourceError is what a Source returned.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// bare takes the marks off an error.
func bare(err error) error {
	switch e := err.(type) {
	case *sinkError:
		return e.error
	case *sourceError:
		return e.error
	}
	return err
}

// tellStall tells the peer of a stall at once: what a device hangs does not end
// before the device answers, which may be never.
func tellStall(ctx context.Context, link *wire.Link, err error) {
	if errors.Is(err, ErrStall) {
		tell(ctx, link, err)
	}
}

// tell tells the peer why this end gives up, unless the peer said so first,
// the connections are broken, or the caller gave up, which may not be delayed.
// It closes the link in any case.
func tell(ctx context.Context, link *wire.Link, err error) {
	if errors.As(err, new(*PeerError)) || errors.Is(err, wire.ErrCut) && !errors.Is(err, ErrStall) || ctx.Err() != nil {
		_ = link.Close()
		return
	}
	link.Abort(err)
}
