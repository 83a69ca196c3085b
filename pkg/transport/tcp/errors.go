package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrCut is a connection that broke, fell silent or ended early. Nothing
	// is wrong with either end: another try may succeed.
	ErrCut = errors.New("connection was cut")
	// ErrTruncated is the ErrCut of a connection that was closed in an
	// orderly way, but before its authenticated end.
	ErrTruncated = fmt.Errorf("%w: it ended without an authenticated end", ErrCut)
	// ErrTampered is a frame or TLS record that does not match its tag, or
	// that no honest peer sends: somebody changed it, or broken memory or
	// network hardware did.
	ErrTampered = errors.New("frame was changed on the way")
	// ErrDial is a connection that could not be made.
	ErrDial = errors.New("cannot connect")
	// ErrNobody is a listener whose peer did not come in time.
	ErrNobody = errors.New("nobody connected")
)

// A FrameError is a failure at one frame of one connection.
type FrameError struct {
	Stream int    // connection, from 0
	Frame  uint64 // frame of that connection and direction, from 0
	Op     string // "send" or "receive"
	Err    error
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("%s: stream %d, frame %d: %v", e.Op, e.Stream, e.Frame, e.Err)
}

// Unwrap returns the cause, which matches ErrCut or ErrTampered.
func (e *FrameError) Unwrap() error { return e.Err }

// classify turns an error of a connection into ErrTruncated, ErrTampered or
// ErrCut, with its cause.
func classify(err error) error {
	var op *net.OpError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, ErrCut), errors.Is(err, ErrTampered):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrTruncated
	case errors.As(err, &record):
		return fmt.Errorf("%w: %w", ErrTampered, err)
	case errors.As(err, &op) && (op.Op == "local error" || op.Op == "remote error"):
		// crypto/tls reports its alerts so: one of the two ends found a
		// record that does not decrypt, or no record at all.
		return fmt.Errorf("%w: %w", ErrTampered, err)
	}
	return fmt.Errorf("%w: %w", ErrCut, err)
}
