package transfer

import (
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/transport/tcp"
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

func stalled(subject string, network bool, after time.Duration) error {
	err := fmt.Errorf("%w for %s: %s", ErrStall, after, subject)
	if network {
		return fmt.Errorf("%w: %w", tcp.ErrCut, err)
	}
	return err
}

// TargetError marks what a target itself returned: what it says when it is
// given up tells why, and is told in its place.
type TargetError struct{ Err error }

func (e *TargetError) Error() string { return e.Err.Error() }

// Unwrap returns the target's error.
func (e *TargetError) Unwrap() error { return e.Err }

// A sourceError is what a Source returned.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// unmark takes the marks off an error.
func unmark(err error) error {
	switch e := err.(type) {
	case *TargetError:
		return e.Err
	case *sourceError:
		return e.error
	}
	return err
}
