package device

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Source is a device or image file open for reading. Its methods may be called
// concurrently, but for Close.
type Source struct {
	*handle
	skipErrors bool // what cannot be read is zeros, and listed by BadRanges
	bad        badRanges
	// Of a snapshot that is read in place of the volume of that name.
	intact func() error
	remove func() error
}

// openSource opens the source of a task, or a snapshot of it.
func openSource(ctx context.Context, t Task) (*Source, error) {
	if t.LVMSnapshot == "" {
		return OpenSource(ctx, t.Source, t.SkipErrors)
	}
	snapshot, err := SnapshotLV(ctx, t.Source, t.LVMSnapshot)
	if err != nil {
		return nil, err
	}
	var s *Source
	facts, err := Inspect(ctx, snapshot.Path)
	if err == nil {
		facts.Path = t.Source.Path
		s, err = OpenSource(ctx, facts, t.SkipErrors)
	}
	if err != nil {
		return nil, errors.Join(err, snapshot.Remove(ctx))
	}
	s.intact = func() error { return snapshot.Intact(ctx) }
	s.remove = func() error { return snapshot.Remove(ctx) }
	return s, nil
}

// OpenSource opens what Inspect found, and refuses if it is not that any more.
func OpenSource(ctx context.Context, f Facts, skipErrors bool) (*Source, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h, err := openHandle(f, unix.O_RDONLY)
	if err != nil {
		return nil, readable(err)
	}
	nothing := func() error { return nil }
	s := &Source{handle: h, skipErrors: skipErrors, intact: nothing, remove: nothing}
	if err := s.Unchanged(); err != nil {
		return nil, errors.Join(err, h.f.Close())
	}
	return s, nil
}

// Size is the number of bytes to read: as many as there were when Inspect
// looked.
func (s *Source) Size() int64 { return s.size }

// ReadAt is that of a handle; with skipErrors what cannot be read is zeros.
func (s *Source) ReadAt(p []byte, off int64) (n int, err error) {
	if n, err = s.handle.ReadAt(p, off); !s.skipErrors || !isMedium(err) {
		return n, err
	}
	want := min(int64(len(p)), s.size-off)
	s.salvage(p[:want], off)
	if int(want) < len(p) {
		return int(want), io.EOF
	}
	return len(p), nil
}

// Unchanged tells why what was read may not be of one piece: another device
// under the same name, another size, a file that was written to, or a snapshot
// that ran out of room. What was written to a block device meanwhile it cannot
// know.
func (s *Source) Unchanged() error {
	err := errors.Join(s.sameObject(), s.intact())
	if err != nil || !s.facts.IsFile() {
		return err
	}
	const hint = "copy it when nobody writes to it"
	st, err := s.stat()
	at := time.Unix(st.Mtim.Unix())
	switch {
	case err != nil:
		return err
	case st.Size != s.facts.Size:
		return fault.Failf(hint, "%s changed: it had %d bytes, now %d", s.facts.Path, s.facts.Size, st.Size)
	case !s.facts.ModTime.IsZero() && !at.Equal(s.facts.ModTime):
		return fault.Failf(hint, "%s was written to at %s", s.facts.Path, at.UTC().Format(time.RFC3339))
	}
	return nil
}

// BadRanges are what could not be read, in order; only with skipErrors.
func (s *Source) BadRanges() []Range { return s.bad.list() }

// Close ends reading, and removes the snapshot that was read.
func (s *Source) Close() error { return errors.Join(s.f.Close(), s.remove()) }
