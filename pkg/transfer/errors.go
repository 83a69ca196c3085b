package transfer

import (
	"errors"
	"fmt"
	"time"
)

// PeerError is a failure that the other end reported over the wire.
type PeerError struct{ Text string }

func (e *PeerError) Error() string { return "the other end failed: " + e.Text }

// ErrStall is a transfer that moved nothing for Options.Stall.
var ErrStall = errors.New("no byte was moved")

func stalled(what string, after time.Duration) error {
	return fmt.Errorf("%w for %s: %s", ErrStall, after, what)
}

// ErrMiscounted is a stream whose end does not match what arrived.
var ErrMiscounted = errors.New("the stream's end does not match what arrived")
