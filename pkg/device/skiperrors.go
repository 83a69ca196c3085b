package device

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transport/tcp"
)

// Range is a part of a device in bytes.
type Range struct {
	Start  int64 `json:"start"`
	Length int64 `json:"length"`
}

// ReadError reports a range of a device that contains an unreadable byte. Skipping
// errors finds the exact location.
type ReadError struct {
	Path     string
	Off, Len int64
	Err      error
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("%s: cannot read bytes %d to %d: %v", e.Path, e.Off, e.Off+e.Len, e.Err)
}

// Unwrap returns the system's error.
func (e *ReadError) Unwrap() error { return e.Err }

// HintText names the flag that skips the error.
func (e *ReadError) HintText() string {
	if isMedium(e.Err) {
		return "to continue with zeros in place of unreadable blocks, add {{skip-errors}}"
	}
	return ""
}

// isMedium reports whether err concerns a part of the medium. Errors of the whole
// device, such as ENXIO and ENODEV of a removed disk, must not be skipped: the copy
// would be all zeros. The list follows blk_errors in the kernel's block/blk-core.c.
func isMedium(err error) bool {
	for _, e := range []error{unix.EIO, unix.ENODATA, unix.EILSEQ, unix.EREMOTEIO, unix.EBADMSG, unix.ETIMEDOUT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// salvage reads p and leaves zeros in place of unreadable parts, which it records.
// It halves failing ranges down to one sector, so a few bad sectors cost few reads.
func (s *Source) salvage(p []byte, off int64) {
	n, err := s.readAt(p, off)
	if err == nil {
		return
	}
	if errors.Is(err, io.EOF) { // the file shrank: Unchanged reports it
		clear(p[n:])
		return
	}
	unit := s.unit()
	if int64(len(p)) <= unit {
		clear(p)
		s.bad.add(off, int64(len(p)))
		return
	}
	half := (int64(len(p))/2 + unit - 1) / unit * unit
	s.salvage(p[:half], off)
	s.salvage(p[half:], off+half)
}

// unit returns the smallest readable range: a sector, or a page of the page cache.
func (s *Source) unit() int64 {
	if s.direct.Load() {
		return s.align
	}
	return int64(tcp.Alignment())
}

// badRanges collects ranges in any order. Most of them are adjacent.
type badRanges struct {
	mu        sync.Mutex
	ranges    []Range
	joinedLen int // number of ranges after the last join
}

func (b *badRanges) add(start, length int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ranges = append(b.ranges, Range{start, length}); len(b.ranges) > 2*b.joinedLen+1000 {
		b.join()
	}
}

// list returns the ranges sorted and disjoint.
func (b *badRanges) list() []Range {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.join()
	return slices.Clone(b.ranges)
}

func (b *badRanges) join() {
	slices.SortFunc(b.ranges, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
	var out []Range
	for _, r := range b.ranges {
		out = joinRange(out, r)
	}
	b.ranges, b.joinedLen = out, len(out)
}

// joinRange appends a range, or extends the last range if they touch.
func joinRange(ranges []Range, r Range) []Range {
	n := len(ranges) - 1
	if n < 0 || r.Start > ranges[n].Start+ranges[n].Length {
		return append(ranges, r)
	}
	ranges[n].Length = max(ranges[n].Length, r.Start+r.Length-ranges[n].Start)
	return ranges
}

// WriteMapfile writes a GNU ddrescue map of a device of size bytes. ddrescue can
// retry the bad ranges, which must be sorted and disjoint.
// https://www.gnu.org/software/ddrescue/manual/ddrescue_manual.html#Mapfile-structure
func WriteMapfile(w io.Writer, size int64, bad []Range) error {
	b := bufio.NewWriter(w)
	fmt.Fprint(b, "# Mapfile. Created by zxfer dev --skip-errors\n# current_pos  current_status  current_pass\n")
	fmt.Fprintf(b, "0x%08X     +               1\n#      pos        size  status\n", size)
	at := int64(0)
	row := func(to int64, status byte) {
		if to > at {
			fmt.Fprintf(b, "0x%08X  0x%08X  %c\n", at, to-at, status)
			at = to
		}
	}
	for _, r := range bad {
		row(r.Start, '+')
		row(r.Start+r.Length, '-')
	}
	row(size, '+')
	return b.Flush()
}
