package zfs

import "encoding/binary"

// Walker splits a stream or a package into records, while its bytes arrive in pieces of any
// size. It keeps at most one header and never a payload. The zero Walker is ready to use.
//
// Walker checks only that sizes are within the limits of the format. RecordRules checks
// what the records do. StreamReader is the Walker of an io.Reader.
type Walker struct {
	header [RecordSize]byte // of a record whose header arrives in several pieces
	have   int              // bytes of header that arrived
	record Record
	left   uint64 // bytes of the payload of record that are still to come
	order  binary.ByteOrder
	offset uint64
}

// Offset returns the number of bytes that the Walker took.
func (w *Walker) Offset() uint64 { return w.offset }

// Left returns the number of payload bytes that come before the next header.
func (w *Walker) Left() uint64 { return w.left }

// Skip counts n payload bytes, at most Left, that the caller took from elsewhere.
func (w *Walker) Skip(n uint64) {
	w.left -= n
	w.offset += n
}

// Payload cuts the payload of the current record off the front of b, as much of it as b
// has. It returns the payload and the rest of b.
func (w *Walker) Payload(b []byte) (payload, rest []byte) {
	n := min(uint64(len(b)), w.left)
	w.Skip(n)
	return b[:n], b[n:]
}

// Header takes the next header from the front of b and returns the rest of b. It returns a
// nil Record if the header is not complete. The caller must have taken the payload of the
// record before. The Record is valid until the next call, and as long as b is unchanged.
func (w *Walker) Header(b []byte) (*Record, []byte, error) {
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
