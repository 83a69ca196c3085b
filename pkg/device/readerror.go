package device

import (
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

// ReadError is a part of a device that could not be read. The first byte of
// it that is unreadable lies within; SkipErrors finds which.
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

// HintText names the flag that continues.
func (e *ReadError) HintText() string {
	if isMedium(e.Err) {
		return "what was copied is kept; {{skip-errors}} goes on, with zeros in place of what cannot be read"
	}
	return ""
}

// isMedium tells errors of a part of the medium from those of the device as a
// whole, which skipping would turn into a copy that is all zeros (ENXIO,
// ENODEV of a disk that is gone). blk_errors in the kernel's block/blk-core.c
// lists them.
func isMedium(err error) bool {
	for _, e := range []error{unix.EIO, unix.ENODATA, unix.EILSEQ, unix.EREMOTEIO, unix.EBADMSG, unix.ETIMEDOUT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// salvage reads what it can of p and leaves zeros where it cannot, which it
// notes. It halves what fails, down to a sector: few bad sectors in a block
// cost few reads.
func (s *Source) salvage(p []byte, off int64) {
	n, err := s.readAt(p, off)
	if err == nil {
		return
	}
	if errors.Is(err, io.EOF) { // it became shorter: Unchanged tells
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

// unit is the least that is read on its own: a sector, or a page where the
// cache reads those.
func (s *Source) unit() int64 {
	if s.direct.Load() {
		return s.align
	}
	return int64(tcp.Alignment())
}

// badRanges are ranges that come in any order, but mostly next to each other.
type badRanges struct {
	mu     sync.Mutex
	ranges []Range
	tidy   int // ranges that were left when they were joined last
}

func (b *badRanges) add(start, length int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ranges = append(b.ranges, Range{start, length}); len(b.ranges) > 2*b.tidy+1000 {
		b.join()
	}
}

// list returns them in order and apart.
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
		out = joined(out, r)
	}
	b.ranges, b.tidy = out, len(out)
}

// joined adds a range to those before it, to the last one where that reaches it.
func joined(ranges []Range, r Range) []Range {
	n := len(ranges) - 1
	if n < 0 || r.Start > ranges[n].Start+ranges[n].Length {
		return append(ranges, r)
	}
	ranges[n].Length = max(ranges[n].Length, r.Start+r.Length-ranges[n].Start)
	return ranges
}
