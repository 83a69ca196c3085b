package wire

import (
	"errors"
	"fmt"
	"io"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrCut is a connection that broke or ended early: another try may do.
	ErrCut = errors.New("connection was cut")
	// ErrTampered is a frame whose tag does not match: somebody changed it,
	// or memory or network hardware did.
	ErrTampered = errors.New("frame was changed on the way")
	// ErrDial is a connection that could not be made.
	ErrDial = errors.New("cannot connect")
	// ErrNobody is a listener whose peer did not come in time.
	ErrNobody = errors.New("nobody connected")
)

// cut marks a network error as ErrCut.
func cut(doing string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: %w before the stream's end", doing, ErrCut)
	}
	return fmt.Errorf("%s: %w: %w", doing, ErrCut, err)
}
