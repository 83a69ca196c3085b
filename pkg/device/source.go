package device

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Source is a device or image file opened for reading. Its methods except Close may
// be called concurrently.
type Source struct {
	*handle
	skipErrors bool // replace unreadable ranges by zeros and list them in BadRanges
	bad        badRanges
	// intact and remove belong to the LVM snapshot that is read instead of the
	// volume.
	intact func() error
	remove func() error
}

// openSource opens the source of a task, or a new snapshot of it.
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

// OpenSource opens the device that Inspect found. It fails if the device has
// changed since.
func OpenSource(ctx context.Context, f Facts, skipErrors bool) (*Source, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h, err := openHandle(f, unix.O_RDONLY)
	if err != nil {
		return nil, hintReadable(err)
	}
	nothing := func() error { return nil }
	s := &Source{handle: h, skipErrors: skipErrors, intact: nothing, remove: nothing}
	if err := s.Unchanged(); err != nil {
		return nil, errors.Join(err, h.f.Close())
	}
	return s, nil
}

// Size returns the number of bytes to read, as Inspect found it.
func (s *Source) Size() int64 { return s.size }

// ReadAt works as in handle. If skipErrors is set, unreadable ranges read as zeros.
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

// Unchanged returns an error if the data read may be inconsistent: the device was
// replaced or resized, the file was written to, or the snapshot ran out of space.
// It does not detect writes to a block device.
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

// BadRanges returns the unreadable ranges in order. It is empty unless skipErrors
// is set.
func (s *Source) BadRanges() []Range { return s.bad.list() }

// Close closes the source and removes its snapshot.
func (s *Source) Close() error { return errors.Join(s.f.Close(), s.remove()) }
