package zfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A send stream carries one snapshot as a sequence of records: a BEGIN record, records
// that change objects, and an END record. A package (zfs send -I) wraps several streams:
// a BEGIN record, the head of the package, an END record, the streams, and another END
// record. A record is a header of RecordSize bytes, followed by its payload. These nouns
// have the same meaning in the whole package:
//
//   - header: fields of fixed size, in the byte order of the sending host.
//   - payload: the bytes behind the header, whose size follows from the header: the
//     contents of a block, the owner and times of a file, or the list of a BEGIN record.
//   - object: the number of a file, directory or internal table of a dataset. Number 0 is
//     the table of all objects.
//   - slot: 512 bytes of that table. An object has the slots from its number on, usually
//     one. A block of the table has slotsPerBlock slots.
//   - offset and length: the bytes of an object that a record writes or frees. Length
//     counts them as an application sees them, before compression.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zfs_ioctl.h (dmu_replay_record_t)

// RecordSize is the size of a header in bytes.
const RecordSize = 312

// Limits of the format.
const (
	// maxBlock is the largest payload of a record other than BEGIN: one block.
	maxBlock = 16 << 20
	// maxBeginPayload is the largest payload of a BEGIN record: keys, and the point of resume, in
	// about 2 KiB. The head of a package of zfs send -I is empty. Only that of -R, which zxfer
	// refuses, can be larger.
	maxBeginPayload = 1 << 20
)

const (
	// beginMagic is in each BEGIN record, in the byte order of the sending host.
	beginMagic = 0x2F5bacbac
	// beginName is the place of the snapshot's name in a BEGIN record.
	beginName = 56
)

// RecordType is the type of a record.
type RecordType uint32

// The types of records.
const (
	RecordBegin RecordType = iota
	RecordObject
	RecordFreeObjects
	RecordWrite
	RecordFree
	RecordEnd
	RecordWriteByRef
	RecordSpill
	RecordWriteEmbedded
	RecordObjectRange
	RecordRedact
)

// String returns the name that OpenZFS gives the type, such as "FREEOBJECTS".
func (t RecordType) String() string {
	names := [...]string{"BEGIN", "OBJECT", "FREEOBJECTS", "WRITE", "FREE", "END", "WRITE_BYREF", "SPILL",
		"WRITE_EMBEDDED", "OBJECT_RANGE", "REDACT"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Record is the header of one record. It is valid until its reader moves on.
type Record struct {
	Type   RecordType
	Header []byte // RecordSize bytes
	order  binary.ByteOrder
	size   uint64 // of the payload
}

// parse reads a header of RecordSize bytes. It refuses unknown types and payloads above
// the limits of the format.
func (r *Record) parse(header []byte, order binary.ByteOrder) error {
	r.Header, r.order = header, order
	r.Type = RecordType(r.u32(0))
	limit := uint64(maxBlock)
	switch r.Type {
	case RecordBegin:
		r.size, limit = uint64(r.u32(4)), maxBeginPayload
	case RecordObject:
		if r.size = uint64(r.u32(36)); r.size == 0 { // raw: the size is not rounded
			r.size = roundUp8(r.u32(28))
		}
	case RecordWrite:
		if r.size = r.u64(32); r.compression() != 0 {
			r.size = r.packed()
		}
	case RecordSpill:
		if r.size = r.packed(); r.size == 0 {
			r.size = r.u64(16)
		}
	case RecordWriteEmbedded:
		r.size = roundUp8(r.u32(52))
	case RecordFreeObjects, RecordFree, RecordEnd, RecordWriteByRef, RecordObjectRange, RecordRedact:
		r.size = 0
	default:
		return fmt.Errorf("got a record of type %d, expected 0 to %d", r.Type, RecordRedact)
	}
	if r.size > limit {
		return fmt.Errorf("%s record claims %d bytes of payload, expected at most %d", r.Type, r.size, limit)
	}
	return nil
}

func roundUp8(n uint32) uint64 { return (uint64(n) + 7) &^ 7 }

func (r *Record) u32(at int) uint32 { return r.order.Uint32(r.Header[at:]) }
func (r *Record) u64(at int) uint64 { return r.order.Uint64(r.Header[at:]) }

// PayloadSize returns the size of the payload in bytes.
func (r *Record) PayloadSize() uint64 { return r.size }

// Object returns the object that the record changes. For FREEOBJECTS and OBJECT_RANGE
// records, it returns the first of Objects objects. It returns 0 for BEGIN and END.
func (r *Record) Object() uint64 {
	if r.Type == RecordBegin || r.Type == RecordEnd {
		return 0
	}
	return r.u64(8)
}

// Objects returns the number of slots that the record is about, from Object on. It returns
// 0 for BEGIN and END.
func (r *Record) Objects() uint64 {
	switch r.Type {
	case RecordBegin, RecordEnd:
		return 0
	case RecordFreeObjects, RecordObjectRange:
		return r.u64(16)
	case RecordObject:
		return max(uint64(r.Header[34]), 1) // senders without large_dnode have 0
	}
	return 1
}

// Offset returns the first byte of Object that the record writes or frees, 0 if the record
// is about no bytes.
func (r *Record) Offset() uint64 {
	switch r.Type {
	case RecordWrite:
		return r.u64(24)
	case RecordFree, RecordWriteEmbedded, RecordWriteByRef, RecordRedact:
		return r.u64(16)
	}
	return 0
}

// Length returns the number of bytes of Object, from Offset on, that the record writes or
// frees. The largest number frees everything to the end. Length of a SPILL record is the
// size of the spill block, which has no offset.
func (r *Record) Length() uint64 {
	switch r.Type {
	case RecordWrite:
		return r.u64(32)
	case RecordFree, RecordWriteEmbedded, RecordWriteByRef, RecordRedact:
		return r.u64(24)
	case RecordSpill:
		return r.u64(16)
	}
	return 0
}

// compression returns the algorithm that compressed the payload, 0 for none. The payload of
// a raw stream always has one.
func (r *Record) compression() byte {
	switch r.Type {
	case RecordWrite:
		return r.Header[50]
	case RecordSpill:
		return r.Header[33]
	}
	return 0
}

// packed returns the size of a block as compressed or encrypted on disk.
func (r *Record) packed() uint64 {
	if r.Type == RecordSpill {
		return r.u64(40)
	}
	return r.u64(96)
}

// ToGUID returns the GUID of the snapshot that the stream carries. It is 0 in the head and
// the end of a package.
func (r *Record) ToGUID() uint64 {
	switch r.Type {
	case RecordFreeObjects, RecordSpill, RecordObjectRange:
		return r.u64(24)
	case RecordFree, RecordWriteEmbedded, RecordWriteByRef, RecordRedact:
		return r.u64(32)
	}
	return r.u64(40)
}

// HeaderType returns 1 for the BEGIN record of a stream, and 2 for that of a package.
func (r *Record) HeaderType() uint64 { return r.u64(16) & 3 }

// Features returns the stream features that a BEGIN record names.
func (r *Record) Features() uint64 { return r.u64(16) >> 2 }

// FromGUID returns the GUID of the incremental source in a BEGIN record, 0 for a full
// stream.
func (r *Record) FromGUID() uint64 { return r.u64(48) }

// ToName returns the full name of the snapshot in a BEGIN record.
func (r *Record) ToName() string {
	name, _, _ := bytes.Cut(r.Header[beginName:], []byte{0})
	return string(name)
}

// byteOrder returns the byte order of the host that made a BEGIN record.
func byteOrder(header []byte) (binary.ByteOrder, error) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if order.Uint32(header) == uint32(RecordBegin) && order.Uint64(header[8:]) == beginMagic {
			return order, nil
		}
	}
	return nil, fmt.Errorf("got %x, expected a BEGIN record", header[:16])
}

// RecordScanner splits a stream or a package into records, while its bytes arrive in pieces of any
// size. It keeps at most one header and never a payload. The zero RecordScanner is ready to use.
//
// RecordScanner checks only that sizes are within the limits of the format. RecordRules checks
// what the records do. StreamReader is the RecordScanner of an io.Reader.
type RecordScanner struct {
	header [RecordSize]byte // of a record whose header arrives in several pieces
	have   int              // bytes of header that arrived
	record Record
	left   uint64 // bytes of the payload of record that are still to come
	order  binary.ByteOrder
	offset uint64
}

// Offset returns the number of bytes that the RecordScanner took.
func (w *RecordScanner) Offset() uint64 { return w.offset }

// Left returns the number of payload bytes that come before the next header.
func (w *RecordScanner) Left() uint64 { return w.left }

// Skip counts n payload bytes, at most Left, that the caller took from elsewhere.
func (w *RecordScanner) Skip(n uint64) {
	w.left -= n
	w.offset += n
}

// Payload cuts the payload of the current record off the front of b, as much of it as b
// has. It returns the payload and the rest of b.
func (w *RecordScanner) Payload(b []byte) (payload, rest []byte) {
	n := min(uint64(len(b)), w.left)
	w.Skip(n)
	return b[:n], b[n:]
}

// Header takes the next header from the front of b and returns the rest of b. It returns a
// nil Record if the header is not complete. The caller must have taken the payload of the
// record before. The Record is valid until the next call, and as long as b is unchanged.
func (w *RecordScanner) Header(b []byte) (*Record, []byte, error) {
	header := b
	if w.have > 0 || len(b) < RecordSize {
		n := copy(w.header[w.have:], b)
		w.have, w.offset, b = w.have+n, w.offset+uint64(n), b[n:]
		if w.have < RecordSize {
			return nil, b, nil
		}
		w.have, header = 0, w.header[:]
	} else {
		header, b = b[:RecordSize], b[RecordSize:]
		w.offset += RecordSize
	}
	if w.order == nil {
		var err error
		if w.order, err = byteOrder(header); err != nil {
			return nil, b, err
		}
	}
	if err := w.record.parse(header, w.order); err != nil {
		return nil, b, err
	}
	w.left = w.record.size
	return &w.record, b, nil
}

// TailSize is the number of bytes at the end of a stream that must be held back until the
// whole stream is verified. zfs receive makes no snapshot before it reads the END record. A
// package ends with two END records: the one of its last stream, and its own.
const TailSize = 2 * RecordSize

// StreamReader reads the records of a stream or a package, like tar.Reader: Next moves to the
// next record, Read and Payload read the payload of the current one.
type StreamReader struct {
	r       *bufio.Reader
	walker  RecordScanner
	header  [RecordSize]byte
	payload bytes.Buffer
	last    RecordType
	started bool
}

// NewStreamReader returns a reader of the stream r. It reads ahead.
func NewStreamReader(r io.Reader) *StreamReader {
	return &StreamReader{r: bufio.NewReaderSize(r, 1<<20)}
}

// Offset returns the number of bytes that were read.
func (s *StreamReader) Offset() uint64 { return s.walker.Offset() }

// Next skips the rest of the payload of the current record and returns the next record. It
// returns io.EOF only after an END record.
func (s *StreamReader) Next() (*Record, error) {
	if left := s.walker.Left(); left > 0 {
		n, err := s.r.Discard(int(left))
		s.walker.Skip(uint64(n))
		if err != nil {
			return nil, s.payloadError(left, err)
		}
	}
	n, err := io.ReadFull(s.r, s.header[:])
	switch {
	case err == io.EOF && s.started && s.last == RecordEnd:
		return nil, io.EOF
	case err == io.EOF:
		return nil, s.errorf("stream ends before its END record: %w", io.ErrUnexpectedEOF)
	}
	rec, _, bad := s.walker.Header(s.header[:n])
	switch {
	case err != nil:
		return nil, s.errorf("record: %w", err)
	case bad != nil:
		return nil, s.errorf("%w", bad)
	}
	s.last, s.started = rec.Type, true
	return rec, nil
}

// Read reads the payload of the current record. It returns io.EOF at its end.
func (s *StreamReader) Read(b []byte) (int, error) {
	left := s.walker.Left()
	if left == 0 {
		return 0, io.EOF
	}
	n, err := s.r.Read(b[:min(uint64(len(b)), left)])
	s.walker.Skip(uint64(n))
	if err != nil {
		err = s.payloadError(left, err)
	}
	return n, err
}

// payloadError describes a failure to read left bytes of a payload.
func (s *StreamReader) payloadError(left uint64, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return s.errorf("payload of %d bytes: %w", left, err)
}

// Payload returns the rest of the payload of the current record. The slice is valid until
// the next call. Memory use grows with the bytes that arrive, not with the claimed size.
func (s *StreamReader) Payload() ([]byte, error) {
	s.payload.Reset()
	_, err := s.payload.ReadFrom(payloadReader{s})
	return s.payload.Bytes(), err
}

// payloadReader has only Read, so that bytes.Buffer grows with the bytes that arrive.
type payloadReader struct{ s *StreamReader }

func (p payloadReader) Read(b []byte) (int, error) { return p.s.Read(b) }

func (s *StreamReader) errorf(format string, args ...any) error {
	return fmt.Errorf("send stream at byte %d: "+format, append([]any{s.Offset()}, args...)...)
}
