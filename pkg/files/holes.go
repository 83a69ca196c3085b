package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// extent is a range of a file that may contain data. The rest of the file is holes.
type extent struct{ from, to int64 }

func (x extent) size() int64 { return x.to - x.from }

const (
	// chunk is the unit of extents in bytes. A smaller hole counts as data, so that each extent, except
	// the last of a file, has at least this size.
	chunk = 128 << 10
	// sparseFrom is the size in bytes from which zxfer searches a file for holes.
	sparseFrom = 1 << 20
	// extentHeader is the size in bytes of an extent's offset and size in an archive.
	extentHeader = 16
)

// nextExtent returns the first extent at or after an offset, which is a multiple of chunk. ok is false
// if the rest of the file is a hole. If the filesystem does not report holes, everything is one
// extent. The file must not change.
func nextExtent(f *os.File, off, size int64) (x extent, ok bool) {
	if off >= size {
		return x, false
	}
	if size < sparseFrom {
		return extent{off, size}, true
	}
	from, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return x, false
	}
	if err != nil || from < off {
		return extent{off, size}, true
	}
	if from >= size {
		return x, false
	}
	to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	if err != nil || to <= from || to > size-chunk {
		to = size
	}
	from -= from % chunk
	if rest := to % chunk; rest > 0 && to < size {
		to += chunk - rest
	}
	return extent{from, min(to, size)}, true
}

// countExtents returns the number of a file's extents and their total size.
func countExtents(f *os.File, size int64) (extents, data int64) {
	for off := int64(0); ; extents++ {
		x, ok := nextExtent(f, off, size)
		if !ok {
			return extents, data
		}
		data += x.size()
		off = x.to
	}
}

// header returns the extent's offset and size as in an archive.
func (x extent) header() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(x.from)), uint64(x.size()))
}

// errExtents is the error for a list of extents that does not describe a file of its size.
var errExtents = errors.New("archive contains invalid extents of a file with holes")

// readExtents reads a list of extents with data bytes in total, for a file of size bytes, and calls
// store for the contents of each.
func readExtents(r io.Reader, size, data int64, store func(x extent) error) error {
	for end := int64(0); ; {
		var b [extentHeader]byte
		if _, err := io.ReadFull(r, b[:]); errors.Is(err, io.EOF) {
			if data != 0 {
				err = fmt.Errorf("%w: %d bytes are missing", errExtents, data)
			} else {
				err = nil
			}
			return err
		} else if err != nil {
			return err
		}
		from, n := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
		if from < uint64(end) || from > uint64(size) || n == 0 || n > uint64(size)-from || n > uint64(data) {
			return fmt.Errorf("%w: %d bytes at %d", errExtents, n, from)
		}
		x := extent{int64(from), int64(from + n)}
		if err := store(x); err != nil {
			return err
		}
		end = x.to
		data -= x.size()
	}
}
