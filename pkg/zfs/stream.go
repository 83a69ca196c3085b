package zfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// RecordSize is the size in bytes of every record of a send stream; some
// carry a payload behind it.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zfs_ioctl.h (dmu_replay_record_t)
const RecordSize = 312

// endRecordSize is the size of the END record, without which zfs receive
// never makes a snapshot of what it stored.
const endRecordSize = RecordSize

// TailSize is how much of a stream's end must be held back so that nothing
// of its last snapshot takes effect: a stream of several snapshots (-I) ends
// with the END record of the last of them and one of its own.
const TailSize = 2 * endRecordSize

// beginMagic opens a BEGIN record, in the byte order of the sending host.
const beginMagic = 0x2F5bacbac

// beginName is where a BEGIN record has the name of its snapshot.
const beginName = 56

// maxPayload bounds what a record may claim to carry: blocks have at most
// 16 MiB; the list of snapshots at the head of a -R stream may be larger.
const maxPayload = 256 << 20

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

// Record is one record of a stream. Header and Payload are valid until the
// next one is read.
type Record struct {
	Type    RecordType
	Header  []byte // RecordSize bytes
	Payload []byte
	order   binary.ByteOrder
}

func (r *Record) u32(at int) uint32 { return r.order.Uint32(r.Header[at:]) }
func (r *Record) u64(at int) uint64 { return r.order.Uint64(r.Header[at:]) }

// HeaderType tells a stream (1) from a package of streams (2).
func (r *Record) HeaderType() uint64 { return r.u64(16) & 3 }

// Features are the stream features that a BEGIN record asks for.
func (r *Record) Features() uint64 { return r.u64(16) >> 2 }

// ToGUID is the GUID of the snapshot that a BEGIN record opens, 0 at the head
// of a stream of several.
func (r *Record) ToGUID() uint64 { return r.u64(40) }

// FromGUID is the GUID of the base of a BEGIN record, 0 for a full stream.
func (r *Record) FromGUID() uint64 { return r.u64(48) }

// ToName is the full name of the snapshot that a BEGIN record opens.
func (r *Record) ToName() string {
	name, _, _ := bytes.Cut(r.Header[beginName:], []byte{0})
	return string(name)
}

// StreamReader walks the records of a send stream.
type StreamReader struct {
	r       *bufio.Reader
	header  [RecordSize]byte
	payload bytes.Buffer
	order   binary.ByteOrder
	last    RecordType
	offset  uint64
}

// NewStreamReader returns a reader of the stream r. It reads ahead.
func NewStreamReader(r io.Reader) *StreamReader {
	return &StreamReader{r: bufio.NewReaderSize(r, 1<<20)}
}

// Offset is how many bytes of the stream were walked.
func (s *StreamReader) Offset() uint64 { return s.offset }

// Next returns the next record; io.EOF only behind an END record.
func (s *StreamReader) Next() (*Record, error) {
	n, err := io.ReadFull(s.r, s.header[:])
	s.offset += uint64(n)
	switch {
	case err == io.EOF && s.order != nil && s.last == RecordEnd:
		return nil, io.EOF
	case err == io.EOF:
		return nil, s.errorf("stream ends before its END record: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, s.errorf("record: %w", err)
	}
	if s.order == nil { // the first record is a BEGIN
		if s.order, err = byteOrder(s.header[:]); err != nil {
			return nil, s.errorf("%w", err)
		}
	}
	rec := &Record{Header: s.header[:], order: s.order}
	rec.Type = RecordType(rec.u32(0))
	size, err := rec.payloadSize()
	if err != nil {
		return nil, s.errorf("%w", err)
	}
	if size > maxPayload {
		return nil, s.errorf("record of type %d claims %d bytes of payload, expected at most %d", rec.Type, size, maxPayload)
	}
	s.payload.Reset()
	// The buffer grows with what arrives, not with what is claimed.
	got, err := io.CopyN(&s.payload, s.r, int64(size))
	s.offset += uint64(got)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, s.errorf("payload of %d bytes: %w", size, err)
	}
	rec.Payload = s.payload.Bytes()
	s.last = rec.Type
	return rec, nil
}

func (s *StreamReader) errorf(format string, args ...any) error {
	return fmt.Errorf("send stream at byte %d: "+format, append([]any{s.offset}, args...)...)
}

// byteOrder is the byte order of the host that made a BEGIN record.
func byteOrder(header []byte) (binary.ByteOrder, error) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if order.Uint32(header) == uint32(RecordBegin) && order.Uint64(header[8:]) == beginMagic {
			return order, nil
		}
	}
	return nil, fmt.Errorf("got %x, expected a BEGIN record", header[:16])
}

// payloadSize follows the DRR_…_PAYLOAD_SIZE macros of zfs_ioctl.h.
func (r *Record) payloadSize() (uint64, error) {
	switch r.Type {
	case RecordBegin:
		return uint64(r.u32(4)), nil
	case RecordObject:
		if raw := r.u32(36); raw != 0 {
			return uint64(raw), nil
		}
		return roundUp8(r.u32(28)), nil
	case RecordWrite:
		if r.Header[50] != 0 {
			return r.u64(96), nil // compressed or encrypted, as on disk
		}
		return r.u64(32), nil
	case RecordSpill:
		if packed := r.u64(40); packed != 0 {
			return packed, nil
		}
		return r.u64(16), nil
	case RecordWriteEmbedded:
		return roundUp8(r.u32(52)), nil
	case RecordFreeObjects, RecordFree, RecordEnd, RecordWriteByRef, RecordObjectRange, RecordRedact:
		return 0, nil
	}
	return 0, fmt.Errorf("got a record of type %d, expected 0 to %d", r.Type, RecordRedact)
}

func roundUp8(n uint32) uint64 { return (uint64(n) + 7) &^ 7 }
