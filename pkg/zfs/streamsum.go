package zfs

import (
	"encoding/binary"
	"errors"
)

const (
	// recordSum is the place of a record's checksum of everything in the stream before it. In a BEGIN
	// record, the end of the name is there.
	recordSum = RecordSize - sumSize
	// endSum is the place in an END record of the checksum of everything before the record.
	endSum  = 8
	sumSize = 32
)

// streamSum is the checksum of a stream: fletcher-4, four sums of its words of 4 bytes. Bytes may arrive
// in pieces of any size. Bytes after the last whole word of a payload do not count.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zcommon/zfs_fletcher.c (fletcher_4_incremental_impl)
type streamSum struct {
	sums [4]uint64
	part [4]byte // of an incomplete word
	have int     // bytes in part
}

func (s *streamSum) add(order binary.ByteOrder, p []byte) {
	if s.have > 0 {
		n := copy(s.part[s.have:], p)
		s.have, p = s.have+n, p[n:]
		if s.have < len(s.part) {
			return
		}
		s.have = 0
		s.addWords(order, s.part[:])
	}
	whole := len(p) &^ 3
	s.addWords(order, p[:whole])
	s.have = copy(s.part[:], p[whole:])
}

func (s *streamSum) addWords(order binary.ByteOrder, p []byte) {
	a, b, c, d := s.sums[0], s.sums[1], s.sums[2], s.sums[3]
	if order == binary.LittleEndian { // without an indirect call for each word
		for ; len(p) >= 4; p = p[4:] {
			a += uint64(binary.LittleEndian.Uint32(p))
			b += a
			c += b
			d += c
		}
	}
	for ; len(p) >= 4; p = p[4:] {
		a += uint64(order.Uint32(p))
		b += a
		c += b
		d += c
	}
	s.sums = [4]uint64{a, b, c, d}
}

// endPayload ends the payload of a record.
func (s *streamSum) endPayload() { s.have = 0 }

// addHeader compares the checksums in a header with the data so far, and adds the header.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_send.c (dump_record)
func (s *streamSum) addHeader(r *Record) error {
	s.endPayload()
	valid := r.Type != RecordEnd || s.is(r.order, r.Header[endSum:])
	s.add(r.order, r.Header[:recordSum])
	valid = valid && (r.Type == RecordBegin || s.is(r.order, r.Header[recordSum:]))
	s.add(r.order, r.Header[recordSum:])
	if !valid {
		return errors.New("its checksum does not match the data before it")
	}
	return nil
}

// is reports whether a field has the checksum.
func (s *streamSum) is(order binary.ByteOrder, field []byte) bool {
	for i, sum := range s.sums {
		if order.Uint64(field[8*i:]) != sum {
			return false
		}
	}
	return true
}

// put writes the checksum to a field.
func (s *streamSum) put(order binary.ByteOrder, field []byte) {
	for i, sum := range s.sums {
		order.PutUint64(field[8*i:], sum)
	}
}
