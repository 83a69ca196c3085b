package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrCut means that a connection broke, fell silent or ended early. A retry may succeed.
	ErrCut = errors.New("connection was cut")
	// ErrTruncated is an ErrCut of a connection that was closed properly, but before its
	// authenticated end.
	ErrTruncated = fmt.Errorf("%w: it ended without an authenticated end", ErrCut)
	// ErrTampered means that a frame or TLS record does not match its tag, or that no correct
	// peer sends it. An attacker, broken memory or network hardware changed it.
	ErrTampered = errors.New("frame was changed on the way")
	// ErrDial means that a connection could not be made.
	ErrDial = errors.New("cannot connect")
	// ErrNobody means that the peer did not connect in time.
	ErrNobody = errors.New("nobody connected")
)

// FrameError is a failure at one frame of one connection.
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

// classify wraps an error of a connection in ErrTruncated, ErrTampered or ErrCut.
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
		// crypto/tls reports alerts this way: one end found an invalid record.
		return fmt.Errorf("%w: %w", ErrTampered, err)
	}
	return fmt.Errorf("%w: %w", ErrCut, err)
}
