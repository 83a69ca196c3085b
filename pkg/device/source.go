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

// Access shape how a device is opened.
type Access struct {
	Buffered   bool // through the page cache, even where O_DIRECT works
	Sparse     bool // an image file that is written gets holes instead of space
	SkipErrors bool // what cannot be read is zeros, and listed by BadRanges
}

// Source is a device or image file open for reading. Its methods may be called
// concurrently, but for Close.
type Source struct {
	*handle
	name  string
	facts Facts
	size  int64 // to be read
	opt   Access
	bad   badRanges
	// Of a snapshot that is read in place of the volume of that name.
	intact func() error
	remove func() error
}

// openSource opens the source of a task, or a snapshot of it.
func openSource(ctx context.Context, t Task) (*Source, error) {
	access := Access{SkipErrors: t.SkipErrors}
	if t.LVMSnapshot == "" {
		return OpenSource(ctx, t.Source, access)
	}
	snapshot, err := SnapshotLV(ctx, t.Source, t.LVMSnapshot)
	if err != nil {
		return nil, err
	}
	var s *Source
	facts, err := Inspect(ctx, snapshot.Path)
	if err == nil {
		s, err = OpenSource(ctx, facts, access)
	}
	if err != nil {
		return nil, errors.Join(err, snapshot.Remove(ctx))
	}
	s.name = t.Source.Path
	s.intact = func() error { return snapshot.Intact(ctx) }
	s.remove = func() error { return snapshot.Remove(ctx) }
	return s, nil
}

// OpenSource opens what Inspect found, and refuses if it is not that any more.
func OpenSource(ctx context.Context, f Facts, opt Access) (*Source, error) {
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
	nothing := func() error { return nil }
	s := &Source{handle: h, name: f.Path, facts: f, size: f.Size, opt: opt, intact: nothing, remove: nothing}
	if err := s.Unchanged(); err != nil {
		return nil, errors.Join(err, h.f.Close())
	}
	return s, nil
}

// Name is the path that the user gave.
func (s *Source) Name() string { return s.name }

// Size is the number of bytes to read: as many as there were when Inspect
// looked.
func (s *Source) Size() int64 { return s.size }

// ReadAt fills p from off. Memory of AlignedBuffer and offsets that are
// multiples of 4096 spare a copy; anything works. Failing media give a
// *ReadError, or zeros with SkipErrors.
func (s *Source) ReadAt(p []byte, off int64) (int, error) {
	want := int(max(0, min(int64(len(p)), s.size-off)))
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
		return min(off, s.size), s.size, nil
	}
	return s.nextData(off, s.size)
}

// Unchanged tells why what was read may not be of one piece: another device
// under the same name, another size, a file that was written to, or a snapshot
// that ran out of room. What was written to a block device meanwhile it cannot
// know.
func (s *Source) Unchanged() error {
	if err := s.sameObject(s.facts); err != nil {
		return errors.Join(err, s.intact())
	}
	if !s.facts.IsFile() {
		return s.intact()
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

// Close ends reading, and removes the snapshot that was read.
func (s *Source) Close() error { return errors.Join(s.f.Close(), s.remove()) }
