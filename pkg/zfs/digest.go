package zfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// ContentDigest reads a send stream to its end and returns a digest of what
// it stores (hex, 128 bits) and the bytes read. Two hosts that send the same
// range of the same snapshots with the same StreamFlags (see
// StreamFlags.ForDigest) get the same digest, although their streams differ:
//
//   - names, creation times and checksums of the stream itself are left out;
//   - so are FREE and FREEOBJECTS records: what a host must say to clear a
//     range depends on what it believes the other may hold there;
//   - blocks of zeroes count as holes, which is what a compressing receiver
//     makes of them;
//   - the order of records does not matter: each is hashed alone and the
//     hashes are added up, since releases of ZFS differ in how they
//     interleave records. A sum, not an exclusive or: a record that comes
//     twice is not the same as none.
//
// It finds damage, not forgery: the hash has no key.
func ContentDigest(r io.Reader) (sum string, read uint64, err error) {
	var d digest
	s := NewStreamReader(r)
	for {
		rec, err := s.Next()
		if err == io.EOF {
			return fmt.Sprintf("%016x%016x", d.hi, d.lo), s.Offset(), nil
		}
		if err == nil {
			err = d.add(rec)
		}
		if err != nil {
			return "", s.Offset(), err
		}
	}
}

type digest struct {
	hi, lo uint64
	buf    []byte
}

func (d *digest) add(r *Record) error {
	h := r.Header
	f := append(d.buf[:0], byte(r.Type))
	u64 := func(at ...int) {
		for _, a := range at {
			f = binary.LittleEndian.AppendUint64(f, r.u64(a))
		}
	}
	u32 := func(at ...int) {
		for _, a := range at {
			f = binary.LittleEndian.AppendUint64(f, uint64(r.u32(a)))
		}
	}
	switch r.Type {
	case RecordFree, RecordFreeObjects, RecordEnd:
		return nil
	case RecordWriteByRef:
		return errors.New("send stream is deduplicated (zfs send -D), which has no content of its own")
	case RecordBegin:
		u64(40, 48) // toguid, fromguid
		u32(32)     // objset type; the payload names snapshots
		d.sum(f, [16]byte{})
		d.buf = f
		return nil
	case RecordObject:
		u64(8)               // object
		u32(16, 20, 24, 28)  // type, bonus type, block size, bonus length
		f = append(f, h[34]) // slots
		if r.u32(36) != 0 {  // raw: the shape of the tree is authenticated too
			f = append(f, h[48:51]...) // indirect block shift, levels, block pointers
			u64(56)                    // highest block
		}
	case RecordWrite:
		if h[50] == 0 && zeroes(r.Payload) {
			return nil
		}
		u64(8, 24, 32)               // object, offset, logical size
		f = append(f, h[50])         // compression
		f = append(f, h[104:140]...) // salt, IV, MAC; zero unless raw
	case RecordSpill:
		u64(8, 16)
		f = append(f, h[33])
		f = append(f, h[48:84]...)
	case RecordWriteEmbedded:
		u64(8, 16, 24)
		f = append(f, h[40], h[41])
		u32(48, 52)
	case RecordObjectRange:
		u64(8, 16)
		f = append(f, h[32:68]...)
	case RecordRedact:
		u64(8, 16, 24)
	}
	d.buf = f
	d.sum(f, xxh3.Hash128(r.Payload).Bytes())
	return nil
}

// sum adds the hash of one record: its fields and the hash of its payload.
func (d *digest) sum(fields []byte, payload [16]byte) {
	x := xxh3.Hash128(append(fields, payload[:]...))
	var carry uint64
	d.lo, carry = bits.Add64(d.lo, x.Lo, 0)
	d.hi, _ = bits.Add64(d.hi, x.Hi, carry)
}

func zeroes(b []byte) bool {
	for len(b) >= 8 {
		if b[0]|b[1]|b[2]|b[3]|b[4]|b[5]|b[6]|b[7] != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
