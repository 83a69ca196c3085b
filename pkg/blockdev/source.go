package blockdev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Source is a device or file that is read.
type Source struct {
	*handle
	skip bool

	mu  sync.Mutex
	bad []Range
}

// Range is a part of a device in bytes.
type Range struct{ Start, Length int64 }

// ReadError is a part of a device that cannot be read.
type ReadError struct {
	Path        string
	Off, Length int64
	Err         error
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("%s: bytes %d to %d cannot be read: %v", e.Path, e.Off, e.Off+e.Length, e.Err)
}

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }

// HintText says what helps.
func (e *ReadError) HintText() string {
	return "--skip-errors copies the rest, with zeros in place of what cannot be read"
}

// OpenSource opens a device for reading. It is an error of class
// fault.Refused when it is not the one that was inspected any more.
func OpenSource(_ context.Context, f Facts, o Options) (*Source, error) {
	h, err := open(f, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return &Source{handle: h, skip: o.SkipErrors}, nil
}

// Size is the bytes to read.
func (s *Source) Size() int64 { return s.facts.Size }

// ReadAt reads all of p, which must be aligned memory for reads past the page
// cache, or fails with a *ReadError.
func (s *Source) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.readAt(p, off)
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return n, err
	case !s.skip || !unreadable(err):
		return n, &ReadError{s.facts.Path, off, int64(len(p)), err}
	}
	if err := s.piecewise(p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// unreadable tells errors of the medium from those of everything else.
//
// https://github.com/torvalds/linux/blob/v6.12/block/blk-core.c (blk_errors)
func unreadable(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EILSEQ)
}

// piecewise reads around what cannot be read: halves of halves, down to one
// sector, which becomes zeros.
func (s *Source) piecewise(p []byte, off int64) error {
	n, err := s.readAt(p, off)
	if err == nil && n == len(p) {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	if !unreadable(err) {
		return &ReadError{s.facts.Path, off, int64(len(p)), err}
	}
	if int64(len(p)) <= s.sector {
		clear(p)
		s.note(off, int64(len(p)))
		return nil
	}
	half := int64(len(p)) / 2
	half -= half % s.sector
	if half == 0 {
		half = s.sector
	}
	if err := s.piecewise(p[:half], off); err != nil {
		return err
	}
	return s.piecewise(p[half:], off+half)
}

func (s *Source) note(off, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad = append(s.bad, Range{off, n})
}

// BadRanges are the parts that were passed over, in order.
func (s *Source) BadRanges() []Range {
	s.mu.Lock()
	defer s.mu.Unlock()
	return joined(s.bad)
}

// NextData is the next range at or after off that may hold data.
func (s *Source) NextData(off int64) (start, end int64, err error) {
	return s.nextData(off, s.facts.Size)
}

// Unchanged tells whether a file was written to since it was inspected, or a
// device changed its size.
func (s *Source) Unchanged() error {
	if !s.facts.IsFile() {
		return s.identify()
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.buffered.Fd()), &st); err != nil {
		return err
	}
	if st.Size != s.facts.Size || st.Mtim.Nano() != s.facts.ModTime.UnixNano() {
		return fmt.Errorf("%s was changed while it was copied: the copy is not of one moment", s.facts.Path)
	}
	return nil
}
