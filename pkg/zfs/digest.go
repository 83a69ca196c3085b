package zfs

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/zeebo/xxh3"
)

// ContentDigest reads a send stream to its end and returns a digest of its contents. Two hosts
// that send the same range of the same snapshots with the same StreamFlags (see
// StreamFlags.ForDigest) get the same digest, although their streams differ:
//
//   - names, creation times and checksums of the stream itself are left out;
//   - FREE and FREEOBJECTS records are left out: they depend on what a host believes the
//     other holds in a range;
//   - blocks that are not raw count by cells of 512 bytes, regardless of block size. A file
//     that was rewritten after its recordsize was raised has larger blocks than its copy. Raw
//     blocks are authenticated as a whole, so they count as a whole;
//   - cells and blocks of zeroes count as holes, because a compressing receiver stores them
//     as holes;
//   - the order of records does not matter, because releases of ZFS interleave them
//     differently. The hashes of all records are added up. Unlike an exclusive or, a sum
//     differs if a record occurs twice.
//
// The digests of incremental streams with equal contents may differ, because one host sends a
// block that was rewritten with the same data and the other does not (nopwrite). Full streams
// do not have this problem.
//
// Equal digests need the same seed. If the caller chooses a random seed for each query, a host that
// kept only earlier digests, and not the data, cannot compute the answer. The hash is not
// cryptographic: the digest does not detect data that was forged on purpose.
func ContentDigest(r io.Reader, within Within, seed uint64) (Contents, error) {
	d := digest{within: within, seed: seed, parts: map[uint64]Sum{}}
	s := NewStreamReader(r)
	for {
		rec, err := s.Next()
		if err == io.EOF {
			return d.contents(s.Offset()), nil
		}
		var payload []byte
		if err == nil {
			payload, err = s.Payload()
		}
		if err == nil {
			err = d.add(rec, payload)
		}
		if err != nil {
			return Contents{Bytes: s.Offset()}, err
		}
	}
}

// cell is the smallest block of ZFS, in bytes.
const cell = 512

type digest struct {
	all    Sum
	guid   uint64 // of the snapshot whose records follow
	within Within
	seed   uint64
	parts  map[uint64]Sum
	shift  uint // each part covers 1<<shift positions
	buf    []byte
}

// add adds one record to the digest.
func (d *digest) add(r *Record, payload []byte) error {
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
	object, position := uint64(0), uint64(0)
	switch r.Type {
	case RecordFree, RecordFreeObjects, RecordEnd:
		return nil
	case RecordWriteByRef:
		return errors.New("send stream is deduplicated (zfs send -D), which has no content of its own")
	case RecordBegin:
		d.guid = r.ToGUID()
		u64(40, 48) // toguid, fromguid
		u32(32)     // objset type; the payload names snapshots
		d.buf = f
		d.count(0, 0, f, [16]byte{})
		return nil
	case RecordObject:
		object = r.u64(8)
		u32(16, 20, 28)      // type, bonus type, bonus length
		f = append(f, h[34]) // slots
		if r.u32(36) != 0 {  // raw: the shape of the block tree is authenticated as well
			u32(24)                    // block size
			f = append(f, h[48:51]...) // indirect block shift, levels, block pointers
			u64(56)                    // highest block
		}
	case RecordWrite:
		if h[50] == 0 && allZero(h[104:140]) {
			d.data(r.Object(), r.Offset(), payload)
			return nil
		}
		object, position = r.u64(8), dataAt(r.u64(24))
		u64(24, 32)                  // offset, logical size
		f = append(f, h[50])         // compression
		f = append(f, h[104:140]...) // salt, IV, MAC; zero unless raw
	case RecordSpill:
		object = r.u64(8)
		u64(16)
		f = append(f, h[33])
		f = append(f, h[48:84]...)
	case RecordWriteEmbedded:
		object, position = r.u64(8), dataAt(r.u64(16))
		u64(16, 24)
		f = append(f, h[40], h[41])
		u32(48, 52)
	case RecordObjectRange:
		object = r.u64(8)
		u64(16)
		f = append(f, h[32:68]...)
	case RecordRedact:
		object, position = r.u64(8), dataAt(r.u64(16))
		u64(16, 24)
	}
	d.buf = f
	d.count(object, position, f, xxh3.Hash128Seed(payload, d.seed).Bytes())
	return nil
}

// data adds a block that is not raw, cell by cell.
func (d *digest) data(object, offset uint64, block []byte) {
	for len(block) > 0 {
		n := min(cell, len(block))
		if c := block[:n]; !allZero(c) {
			f := append(d.buf[:0], byte(RecordWrite))
			f = binary.LittleEndian.AppendUint64(f, offset)
			d.buf = f
			d.count(object, dataAt(offset), f, xxh3.Hash128Seed(c, d.seed).Bytes())
		}
		block = block[n:]
		offset += uint64(n)
	}
}

// count adds the hash of one record or cell to the total and to its part. fields are the
// header fields, and payload is the hash of the payload.
func (d *digest) count(object, position uint64, fields []byte, payload [16]byte) {
	fields = binary.LittleEndian.AppendUint64(fields, d.guid)
	fields = binary.LittleEndian.AppendUint64(fields, object)
	fields = append(fields, payload[:]...)
	d.buf = fields // reuse the memory
	x := Sum(xxh3.Hash128Seed(fields, d.seed))
	d.all.Add(x)
	if d.within.Object == 0 {
		position = object
	} else if object != d.within.Object {
		return
	}
	if position < d.within.From || d.within.To != 0 && position >= d.within.To {
		return
	}
	p := d.parts[position>>d.shift]
	p.Add(x)
	d.parts[position>>d.shift] = p
	for len(d.parts) > MaxParts {
		d.shift++
		merged := make(map[uint64]Sum, MaxParts)
		for at, s := range d.parts {
			m := merged[at>>1]
			m.Add(s)
			merged[at>>1] = m
		}
		d.parts = merged
	}
}

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
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
