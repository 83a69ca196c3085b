package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Options shape how a device is opened.
type Options struct {
	Buffered   bool // through the page cache, even where O_DIRECT works
	Sparse     bool // an image file that is written gets holes instead of space
	SkipErrors bool // what cannot be read is zeros, and listed by BadRanges
}

// Source is a device or image file open for reading. Its methods may be called
// concurrently, but for Close.
type Source struct {
	*handle
	facts Facts
	opt   Options
	bad   badRanges
}

// OpenSource opens what Inspect found, and refuses if it is not that any more.
func OpenSource(ctx context.Context, f Facts, opt Options) (*Source, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h, err := openHandle(f, unix.O_RDONLY|unix.O_NONBLOCK, opt.Buffered)
	if err != nil {
		if denied(err) {
			return nil, fault.Refusef("run as root, or as a user who may read it", "%w", err)
		}
		return nil, err
	}
	s := &Source{handle: h, facts: f, opt: opt}
	if err := s.Unchanged(); err != nil {
		return nil, errors.Join(err, h.f.Close())
	}
	return s, nil
}

// Size is the number of bytes when Inspect looked.
func (s *Source) Size() int64 { return s.facts.Size }

// ReadAt fills p from off. Memory of AlignedBuffer and offsets that are
// multiples of 4096 spare a copy; anything works. Failing media give a
// *ReadError, or zeros with SkipErrors.
func (s *Source) ReadAt(p []byte, off int64) (int, error) {
	want := int(max(0, min(int64(len(p)), s.facts.Size-off)))
	n, err := s.readAt(p[:want], off)
	switch {
	case err == nil && want < len(p):
		return n, io.EOF
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case s.opt.SkipErrors && isMedium(err):
		s.salvage(p[:want], off)
		if want < len(p) {
			return want, io.EOF
		}
		return want, nil
	}
	return n, &ReadError{Path: s.facts.Path, Off: off + int64(n), Len: int64(want - n), Err: err}
}

// NextData returns the next range at or after off that may hold anything but
// zeros; start is Size where there is none. A block device is one range.
func (s *Source) NextData(off int64) (start, end int64, err error) {
	if !s.facts.IsFile() {
		return min(off, s.facts.Size), s.facts.Size, nil
	}
	return s.nextData(off, s.facts.Size)
}

// Unchanged tells why what was read may not be of one piece: another device
// under the same name, another size, or a file that was written to. What was
// written to a block device meanwhile it cannot know.
func (s *Source) Unchanged() error {
	if err := s.sameObject(s.facts); err != nil || !s.facts.IsFile() {
		return err
	}
	return s.control(func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("%s: %w", s.facts.Path, err)
		}
		if st.Size != s.facts.Size {
			return fault.Failf("copy it when nobody writes to it", "%s changed: it had %d bytes, now %d", s.facts.Path, s.facts.Size, st.Size)
		}
		if at := time.Unix(st.Mtim.Unix()); !s.facts.ModTime.IsZero() && !at.Equal(s.facts.ModTime) {
			return fault.Failf("copy it when nobody writes to it", "%s was written to at %s", s.facts.Path, at.UTC().Format(time.RFC3339))
		}
		return nil
	})
}

// BadRanges are what could not be read, in order; only with SkipErrors.
func (s *Source) BadRanges() []Range { return s.bad.list() }

// Close ends reading.
func (s *Source) Close() error { return s.f.Close() }
