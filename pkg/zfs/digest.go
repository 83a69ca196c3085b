package zfs

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"
)

// MaxParts is the largest number of parts of a Contents.
const MaxParts = 1024

// Contents is the digest of a stream. It does not depend on how the stream was framed.
type Contents struct {
	Sum   string `json:"sum"`   // hex, 128 bits, of the whole stream
	Bytes uint64 `json:"bytes"` // size of the stream
	// Zeroed is the sum of the ranges that incremental streams free or overwrite with zeros.
	Zeroed string `json:"zeroed"`
	// BlockSizes is the sum of the block sizes of files and volumes in streams that are not raw. Those
	// of a correct copy can differ, because zfs receive may keep smaller blocks.
	BlockSizes string `json:"block_sizes"`
	// Parts are the sums of the positions that a DigestRange selects, in ascending order, at most
	// MaxParts. Empty parts are left out. Each part covers 1<<Shift positions.
	Shift uint   `json:"shift,omitempty"`
	Parts []Part `json:"parts,omitempty"`
}

// SameContents reports whether two digests show equal contents. If they do not, equal snapshots may
// still have written their new data differently: the digests of full streams decide.
func (c Contents) SameContents(other Contents) bool {
	return c.Sum == other.Sum && c.Zeroed == other.Zeroed
}

// OtherBlockSizes is the note on two sides with equal contents whose BlockSizes differ.
const OtherBlockSizes = "files have other block sizes on the two sides: an increment in the other direction can lose data or be refused"

// Part is the sum of 1<<Shift positions, starting at position At<<Shift.
type Part struct {
	At  uint64 `json:"at"`
	Sum string `json:"sum"`
}

// DigestRange selects the positions that the parts of a Contents cover. If Object is 0, a position
// is the number of an object. Otherwise it is a place in Object: 0 for its attributes (owner,
// times, size), and 1 and up for its cells of 512 bytes.
type DigestRange struct {
	Object uint64 `json:"object,omitempty"` // 0: positions are objects
	From   uint64 `json:"from,omitempty"`
	To     uint64 `json:"to,omitempty"` // the first position after the range; 0: no limit
}

// dataAt returns the position of an offset within an object.
func dataAt(offset uint64) uint64 { return 1 + offset/cell }

// Offset returns the offset of the first byte of a position within an object.
func Offset(position uint64) uint64 {
	if position == 0 {
		return 0
	}
	return (position - 1) * cell
}

// FirstDifference returns the first range [from, to) of positions in which two digests with
// the same DigestRange differ.
func FirstDifference(a, b Contents) (from, to uint64, err error) {
	shift := max(a.Shift, b.Shift)
	x, err := a.parts(shift)
	if err != nil {
		return 0, 0, err
	}
	y, err := b.parts(shift)
	if err != nil {
		return 0, 0, err
	}
	first, found := uint64(0), false
	for _, m := range []map[uint64]Sum{x, y} {
		for at := range m {
			if x[at] != y[at] && (!found || at < first) {
				first, found = at, true
			}
		}
	}
	if !found {
		return 0, 0, errors.New("the digests differ, but none of their parts")
	}
	return first << shift, (first + 1) << shift, nil
}

// parts returns the sums merged into parts of 1<<shift positions.
func (c Contents) parts(shift uint) (map[uint64]Sum, error) {
	if len(c.Parts) > MaxParts || shift > 63 {
		return nil, fmt.Errorf("got a digest of %d parts of up to 2^%d positions, expected at most %d of 2^63", len(c.Parts), shift, MaxParts)
	}
	out := make(map[uint64]Sum, len(c.Parts))
	for _, p := range c.Parts {
		s, err := parseSum(p.Sum)
		if err != nil {
			return nil, err
		}
		m := out[p.At>>(shift-c.Shift)]
		m.Add(s)
		out[p.At>>(shift-c.Shift)] = m
	}
	return out, nil
}

// contents returns the result of the digest.
func (d *digest) contents(read uint64) Contents {
	c := Contents{Sum: d.all.String(), Bytes: read, Zeroed: d.zeroed.String(), BlockSizes: d.blockSizes.String(), Shift: d.shift, Parts: make([]Part, 0, len(d.parts))}
	for at, s := range d.parts {
		c.Parts = append(c.Parts, Part{at, s.String()})
	}
	slices.SortFunc(c.Parts, func(a, b Part) int { return cmp.Compare(a.At, b.At) })
	return c
}

// Sum is a sum of hashes, modulo 2^128.
type Sum xxh3.Uint128

// Add adds x to the sum.
func (s *Sum) Add(x Sum) {
	var carry uint64
	s.Lo, carry = bits.Add64(s.Lo, x.Lo, 0)
	s.Hi, _ = bits.Add64(s.Hi, x.Hi, carry)
}

// subtract subtracts x from the sum.
func (s *Sum) subtract(x Sum) {
	var borrow uint64
	s.Lo, borrow = bits.Sub64(s.Lo, x.Lo, 0)
	s.Hi, _ = bits.Sub64(s.Hi, x.Hi, borrow)
}

// String returns 32 hexadecimal digits.
func (s Sum) String() string { return fmt.Sprintf("%016x%016x", s.Hi, s.Lo) }

func parseSum(s string) (Sum, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 16 {
		return Sum{}, fmt.Errorf("got the sum %q, expected 32 hexadecimal digits", s)
	}
	return Sum{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}, nil
}

// ContentDigest reads a send stream to its end and returns a digest of its contents. Two hosts
// that send the same range of the same snapshots with the same StreamFlags (see
// StreamFlags.ForDigest) get the same digest, although their streams differ:
//
//   - names, creation times and checksums of the stream itself are left out;
//   - FREE records do not affect Sum, and FREEOBJECTS records nothing: they depend on what a host
//     believes the other holds in a range. A file that a host did not free has an OBJECT record;
//   - blocks that are not raw count by cells of 512 bytes, regardless of block size. A file
//     that was rewritten after its recordsize was raised has larger blocks than its copy. Raw
//     blocks are authenticated as a whole, so they count as a whole;
//   - cells and blocks of zeroes count as holes, because a compressing receiver stores them
//     as holes;
//   - the order of records does not matter, because releases of ZFS interleave them
//     differently. The hashes of all records are added up. Unlike an exclusive or, a sum
//     differs if a record occurs twice.
//
// Each host sends everything that changed in its own snapshot. So if two incremental streams have the
// same Sum and Zeroed, and the snapshots that they start from are equal, then the files are equal:
// what neither stream writes or zeroes is as it was. Zeroed is needed, because zfs receive may
// free blocks that the stream does not mean to change (openzfs#18663).
//
// The digests of incremental streams with equal contents may differ, because one host sends a
// block that was rewritten with the same data and the other does not (nopwrite), or sends old holes.
// Full streams do not have this problem.
//
// Equal digests need the same seed. If the caller chooses a random seed for each query, a host that
// kept only earlier digests, and not the data, cannot compute the answer. The hash is not
// cryptographic: the digest does not detect data that was forged on purpose.
func ContentDigest(r io.Reader, within DigestRange, seed uint64) (Contents, error) {
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
	within DigestRange
	seed   uint64
	parts  map[uint64]Sum
	shift  uint // each part covers 1<<shift positions
	buf    []byte

	zeroed, blockSizes Sum
	incremental        bool   // the records that follow
	object             uint64 // last OBJECT record
	end                uint64 // of its data, rounded up to a cell; MaxUint64 if unknown
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
	case RecordFreeObjects, RecordEnd:
		return nil
	case RecordFree:
		d.zero(r.Object(), r.Offset(), r.Length())
		return nil
	case RecordWriteByRef:
		return errors.New("send stream is deduplicated (zfs send -D) and has no content digest")
	case RecordBegin:
		d.guid, d.incremental, d.object = r.ToGUID(), r.FromGUID() != 0, 0
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
		d.object, d.end = object, fileEnd(r, payload)
		if kind := r.u32(16); r.u32(36) == 0 && (kind == fileContents || kind == volumeContents) {
			d.blockSizes.Add(d.hash(RecordObject, object, uint64(r.u32(24))))
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

// Types of objects and of their bonus in OBJECT records.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/dmu.h (dmu_object_type_t)
const (
	fileContents   = 19
	volumeContents = 23
	systemAttrs    = 44
)

// fileEnd returns the end of the data of a file in an OBJECT record, rounded up to a cell: its size. It
// returns MaxUint64 if the record does not show it, such as in a raw stream. Blocks behind the end
// hold no data, and their number depends on the block size.
func fileEnd(r *Record, bonus []byte) uint64 {
	const magic, fixedHeader = 0x2F505A, 8 // of system attributes; mode and size are always the first two
	if r.u32(16) != fileContents || r.u32(20) != systemAttrs || r.u32(36) != 0 || len(bonus) < fixedHeader || r.order.Uint32(bonus) != magic {
		return math.MaxUint64
	}
	at := int(r.order.Uint16(bonus[4:])>>10&0x3f)*8 + 8
	if at < fixedHeader+8 || at+8 > len(bonus) {
		return math.MaxUint64
	}
	size := r.order.Uint64(bonus[at:])
	if size > math.MaxInt64 {
		return math.MaxUint64
	}
	return (size + cell - 1) / cell * cell
}

// zero adds a range that is freed or zero. Adjacent ranges have the same sum as one range:
// the hash of the end minus the hash of the start.
func (d *digest) zero(object, offset, length uint64) {
	end := offset + min(length, math.MaxUint64-offset)
	if object == d.object {
		end = min(end, d.end)
	}
	if !d.incremental || offset >= end {
		return
	}
	d.zeroed.Add(d.hash(RecordFree, object, end))
	d.zeroed.subtract(d.hash(RecordFree, object, offset))
}

// hash returns the hash of a number that belongs to an object.
func (d *digest) hash(kind RecordType, object, number uint64) Sum {
	f := [1 + 3*8]byte{byte(kind)} // d.buf may hold a record
	for i, n := range []uint64{d.guid, object, number} {
		binary.LittleEndian.PutUint64(f[1+8*i:], n)
	}
	return Sum(xxh3.Hash128Seed(f[:], d.seed))
}

// data adds a block that is not raw, cell by cell.
func (d *digest) data(object, offset uint64, block []byte) {
	zeros := offset // start of the zeros before offset
	defer func() { d.zero(object, zeros, offset-zeros) }()
	for len(block) > 0 {
		n := min(cell, len(block))
		if c := block[:n]; !allZero(c) {
			d.zero(object, zeros, offset-zeros)
			zeros = offset + uint64(n)
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
