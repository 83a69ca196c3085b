package transfer

import (
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/transport/tcp"
)

// PeerError is a failure that the other end reported: of its source, its sink or the received
// bytes.
type PeerError struct{ Text string }

func (e *PeerError) Error() string { return "the other end failed: " + e.Text }

// ErrStall means that a transfer made no progress for Options.Stall. The error names the part
// that stalled. If that is the network, it also matches tcp.ErrCut.
var ErrStall = errors.New("no byte was moved")

// ErrMiscounted means that the sender's authenticated account does not match the received
// stream, although every frame was valid.
var ErrMiscounted = errors.New("the stream's end does not match what arrived")

func stalled(subject string, network bool, after time.Duration) error {
	err := fmt.Errorf("%w for %s: %s", ErrStall, after, subject)
	if network {
		return fmt.Errorf("%w: %w", tcp.ErrCut, err)
	}
	return err
}

// TargetError marks an error of the target itself. If aborting the target returns another
// error, that one replaces it.
type TargetError struct{ Err error }

func (e *TargetError) Error() string { return e.Err.Error() }

func (e *TargetError) Unwrap() error { return e.Err }

// sourceError marks an error of a Source.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// unmark removes the mark of a TargetError or sourceError.
func unmark(err error) error {
	switch e := err.(type) {
	case *TargetError:
		return e.Err
	case *sourceError:
		return e.error
	}
	return err
}
