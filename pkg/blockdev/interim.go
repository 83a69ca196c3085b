package blockdev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Facts are what is known of a device or image file.
type Facts struct {
	Path          string    `json:"path"`
	Real          string    `json:"real"`
	Kind          string    `json:"kind"`
	Size          int64     `json:"size"`
	LogicalSector int       `json:"logical_sector"`
	Rotational    bool      `json:"rotational"`
	ReadOnly      bool      `json:"read_only"`
	Model         string    `json:"model,omitempty"`
	Serial        string    `json:"serial,omitempty"`
	WWN           string    `json:"wwn,omitempty"`
	Inode         uint64    `json:"inode,omitempty"`
	ModTime       time.Time `json:"mod_time,omitempty"`
}

// Inspect looks at a path.
func Inspect(_ context.Context, path string) (Facts, error) {
	f := Facts{Path: path, Real: path, LogicalSector: 512}
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return f, err
		}
		f.Kind = "missing"
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.Size, f.ModTime, f.Kind = st.Size(), st.ModTime(), "file"
	if st.Mode()&os.ModeDevice != 0 {
		f.Kind = "disk"
		h, err := os.Open(path)
		if err != nil {
			return f, err
		}
		defer h.Close()
		f.Size, err = h.Seek(0, io.SeekEnd)
		return f, err
	}
	return f, nil
}

// Severity of a Problem.
type Severity string

// Severities.
const (
	Fail Severity = "fail"
	Warn Severity = "warn"
)

// Problem is what speaks against a copy.
type Problem struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Summary  string   `json:"summary"`
	Evidence string   `json:"evidence,omitempty"`
	Remedy   string   `json:"remedy,omitempty"`
}

// Allow is what the user consented to.
type Allow struct {
	Overwrite bool   `json:"overwrite,omitempty"`
	Confirm   string `json:"confirm,omitempty"`
}

// CheckTarget judges a target.
func CheckTarget(src, dst Facts, _ Allow) []Problem {
	if dst.Kind == "disk" && dst.Size < src.Size {
		return []Problem{{"too-small", Fail, fmt.Sprintf("%s is smaller than the source", dst.Path), "", ""}}
	}
	return nil
}

// CheckSource judges a source.
func CheckSource(Facts) []Problem { return nil }

// Options shape how a device is opened.
type Options struct{ Buffered, Sparse, SkipErrors bool }

// Source is a device to read.
type Source struct {
	f, tail *os.File
	size    int64
	facts   Facts
}

// OpenSource opens a device for reading.
func OpenSource(_ context.Context, f Facts, _ Options) (*Source, error) {
	s := &Source{size: f.Size, facts: f}
	var err error
	if s.f, err = os.OpenFile(f.Path, os.O_RDONLY|unix.O_DIRECT, 0); err != nil {
		if s.f, err = os.Open(f.Path); err != nil {
			return nil, err
		}
	}
	s.tail, err = os.Open(f.Path)
	return s, err
}

// Size is the device's.
func (s *Source) Size() int64 { return s.size }

// ReadAt reads.
func (s *Source) ReadAt(p []byte, off int64) (int, error) {
	whole := len(p) &^ 4095
	n, err := s.f.ReadAt(p[:whole], off)
	if err != nil || whole == len(p) {
		return n, err
	}
	k, err := s.tail.ReadAt(p[whole:], off+int64(whole))
	return n + k, err
}

// NextData finds data.
func (s *Source) NextData(off int64) (start, end int64, err error) {
	return nextData(s.tail, off, s.size)
}

func nextData(f *os.File, off, size int64) (start, end int64, err error) {
	start, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if err != nil {
		return off, size, nil
	}
	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	return start, end, err
}

// Unchanged compares.
func (s *Source) Unchanged() error { return nil }

// Close closes.
func (s *Source) Close() error { return errors.Join(s.f.Close(), s.tail.Close()) }

// Target is a device to write.
type Target struct {
	f, tail *os.File
	size    int64
	facts   Facts
}

// OpenTarget opens a device for writing.
func OpenTarget(_ context.Context, f Facts, size int64, _ Options) (*Target, error) {
	flags := os.O_RDWR | unix.O_EXCL
	if f.Kind == "file" || f.Kind == "missing" {
		flags = os.O_RDWR | os.O_CREATE
	}
	t := &Target{size: size, facts: f}
	var err error
	if t.tail, err = os.OpenFile(f.Path, flags, 0o600); err != nil {
		return nil, err
	}
	if f.Kind == "file" || f.Kind == "missing" {
		if err := t.tail.Truncate(size); err != nil {
			return nil, err
		}
	}
	if t.f, err = os.OpenFile(f.Path, os.O_RDWR|unix.O_DIRECT, 0); err != nil {
		t.f, err = os.OpenFile(f.Path, os.O_RDWR, 0)
	}
	return t, err
}

// ReadAt reads.
func (t *Target) ReadAt(p []byte, off int64) (int, error) {
	whole := len(p) &^ 4095
	n, err := t.f.ReadAt(p[:whole], off)
	if err != nil || whole == len(p) {
		return n, err
	}
	k, err := t.tail.ReadAt(p[whole:], off+int64(whole))
	return n + k, err
}

// WriteAt writes.
func (t *Target) WriteAt(p []byte, off int64) (int, error) {
	whole := len(p) &^ 4095
	n, err := t.f.WriteAt(p[:whole], off)
	if err != nil || whole == len(p) {
		return n, err
	}
	k, err := t.tail.WriteAt(p[whole:], off+int64(whole))
	return n + k, err
}

// Zero punches.
func (t *Target) Zero(off, n int64) error {
	return unix.Fallocate(int(t.tail.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// NextData finds data.
func (t *Target) NextData(off int64) (start, end int64, err error) {
	return nextData(t.tail, off, t.size)
}

// Sync syncs.
func (t *Target) Sync() error { return t.tail.Sync() }

// DropCache drops.
func (t *Target) DropCache() error { return nil }

// Commit ends.
func (t *Target) Commit() error { return nil }

// Close closes.
func (t *Target) Close() error { return errors.Join(t.f.Close(), t.tail.Close()) }
