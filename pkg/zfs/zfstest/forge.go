package zfstest

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// Stream is a send stream as a list of records that tests can modify. Bytes sets the
// checksums, so a Stream can contain anything that a hostile sender can send.
type Stream []Record

// Record is one record of a Stream.
type Record struct {
	Header  [zfs.RecordSize]byte
	Payload []byte
}

// Offsets of fields in a header.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zfs_ioctl.h (dmu_replay_record_t)
const (
	atType     = 0
	atPayload  = 4 // size of the payload, in BEGIN
	atMagic    = 8
	atVersion  = 16 // kind of stream in bits 0 and 1, features from bit 2 on
	atObjset   = 32
	atFlags    = 36
	atToGUID   = 40
	atFromGUID = 48
	atToName   = 56
	atChain    = zfs.RecordSize - 32 // checksum of the stream before this field
	atEndSum   = 8                   // checksum of the stream, in END
	atEndGUID  = 40

	magic       = 0x2F5bacbac
	streamKind  = 1
	packageKind = 2
	cloneFlag   = 1 << 0
)

// Features of a stream, as BEGIN has them.
const (
	FeatureDedup      uint64 = 1 << 0
	FeatureEmbedded   uint64 = 1 << 16
	FeatureResuming   uint64 = 1 << 20
	FeatureRedacted   uint64 = 1 << 21
	FeatureCompressed uint64 = 1 << 22
	FeatureRaw        uint64 = 1 << 24
	FeatureHolds      uint64 = 1 << 26
)

// ParseStream splits a little-endian stream into its records.
func ParseStream(t testing.TB, b []byte) Stream {
	t.Helper()
	var s Stream
	r := zfs.NewStreamReader(bytes.NewReader(b))
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return s
		}
		require.NoError(t, err)
		payload, err := r.Payload()
		require.NoError(t, err)
		s = append(s, Record{Header: [zfs.RecordSize]byte(rec.Header), Payload: bytes.Clone(payload)})
	}
}

// New returns a stream of a snapshot without contents.
func New(toName string, toGUID, fromGUID uint64, volume bool) Stream {
	var begin, end Record
	begin.put64(atMagic, magic)
	begin.put64(atVersion, streamKind)
	begin.SetObjset(2)
	if volume {
		begin.SetObjset(3)
	}
	begin.put64(atToGUID, toGUID)
	begin.SetFromGUID(fromGUID)
	begin.SetToName(toName)
	end.put32(atType, uint32(zfs.RecordEnd))
	end.put64(atEndGUID, toGUID)
	return Stream{begin, end}
}

// WrittenBlock is the block size of the object that Written writes to.
const WrittenBlock = 128 << 10

// Written returns the stream with one more WRITE record, of at most WrittenBlock bytes at a
// multiple of WrittenBlock. Offsets must ascend.
func (s Stream) Written(at uint64, data []byte) Stream {
	const object = 1
	guid, raw := s[0].ToGUID(), s[0].HasFeatures(FeatureRaw)
	s[0].AddFeatures(FeatureCompressed) // so that data may have any length
	more := []Record{Write(object, at, guid)}
	more[0].SetBlock((uint64(len(data)) + 511) &^ 511)
	more[0].SetPacked(uint64(len(data)))
	more[0].Payload = data
	if len(s) == 2 {
		more = slices.Insert(more, 0, Object(object, WrittenBlock, guid, raw))
	}
	return slices.Insert(s, len(s)-1, more...)
}

// Object returns an OBJECT record.
func Object(object uint64, block uint32, toGUID uint64, raw bool) Record {
	r := record(zfs.RecordObject, object)
	r.put32(16, 19) // DMU_OT_PLAIN_FILE_CONTENTS
	r.put32(24, block)
	r.Header[34] = 1 // slots
	r.put64(40, toGUID)
	if raw {
		r.Header[48], r.Header[49], r.Header[50] = 17, 4, 1 // indirect block shift, levels, pointers
		r.put64(56, 1<<30-1)
	}
	return r
}

// Write returns a WRITE record of one sector, without its payload.
func Write(object, offset, toGUID uint64) Record {
	r := record(zfs.RecordWrite, object, 19, offset)
	r.put64(40, toGUID)
	r.SetBlock(512)
	return r
}

// Free returns a FREE record.
func Free(object, offset, length, toGUID uint64) Record {
	return record(zfs.RecordFree, object, offset, length, toGUID)
}

// FreeObjects returns a FREEOBJECTS record.
func FreeObjects(first, count, toGUID uint64) Record {
	return record(zfs.RecordFreeObjects, first, count, toGUID)
}

// record returns a record with numbers of 8 bytes from the start of its fields.
func record(typ zfs.RecordType, fields ...uint64) Record {
	var r Record
	r.put32(atType, uint32(typ))
	for i, v := range fields {
		r.put64(8+8*i, v)
	}
	return r
}

// Clone returns a deep copy.
func (s Stream) Clone() Stream {
	out := slices.Clone(s)
	for i := range out {
		out[i].Payload = bytes.Clone(out[i].Payload)
	}
	return out
}

// Begin returns the n-th BEGIN record. That of a package comes first.
func (s Stream) Begin(n int) *Record {
	for i := range s {
		if s[i].Type() == zfs.RecordBegin {
			if n == 0 {
				return &s[i]
			}
			n--
		}
	}
	panic("no such BEGIN record")
}

// Streams returns the streams of a package, each from its BEGIN to its END.
func (s Stream) Streams() []Stream {
	var out []Stream
	for i := range s {
		if s[i].Type() == zfs.RecordBegin {
			out = append(out, nil)
		}
		if n := len(out); n > 0 {
			out[n-1] = append(out[n-1], s[i])
		}
	}
	if len(out) < 2 {
		return out
	}
	last := &out[len(out)-1]
	*last = (*last)[:len(*last)-1] // the END of the package
	return out[1:]
}

// Type is the type of the record.
func (r *Record) Type() zfs.RecordType { return zfs.RecordType(r.u32(atType)) }

func (r *Record) u32(at int) uint32       { return binary.LittleEndian.Uint32(r.Header[at:]) }
func (r *Record) u64(at int) uint64       { return binary.LittleEndian.Uint64(r.Header[at:]) }
func (r *Record) put32(at int, v uint32)  { binary.LittleEndian.PutUint32(r.Header[at:], v) }
func (r *Record) put64(at int, v uint64)  { binary.LittleEndian.PutUint64(r.Header[at:], v) }
func (r *Record) ToGUID() uint64          { return r.u64(atToGUID) }   // ToGUID is the GUID that a BEGIN announces.
func (r *Record) FromGUID() uint64        { return r.u64(atFromGUID) } // FromGUID is that of its base.
func (r *Record) SetFromGUID(guid uint64) { r.put64(atFromGUID, guid) }
func (r *Record) SetFlags(flags uint32)   { r.put32(atFlags, flags) }
func (r *Record) SetClaim(payload uint32) { r.put32(atPayload, payload) }

// Objset returns what a stream carries: 2 for a filesystem, 3 for a volume.
func (r *Record) Objset() uint32 { return r.u32(atObjset) }

// IsClone reports whether the stream becomes a clone.
func (r *Record) IsClone() bool { return r.u32(atFlags)&cloneFlag != 0 }

// SetObjset changes what a stream carries: 2 for a filesystem, 3 for a volume.
func (r *Record) SetObjset(kind uint32) { r.put32(atObjset, kind) }

// SetBlock changes the size of the block that a WRITE record writes, and makes it an
// uncompressed one. It does not change the payload.
func (r *Record) SetBlock(n uint64) { r.Header[50] = 0; r.put64(32, n) }

// SetPacked makes a WRITE record one of n compressed bytes. It does not change the payload.
func (r *Record) SetPacked(n uint64) { r.Header[50] = 15; r.put64(96, n) } // ZIO_COMPRESS_LZ4

// SetBonus changes the size of an OBJECT record's bonus. It does not change the payload.
func (r *Record) SetBonus(n uint32) { r.put32(28, n) }

// Object returns the object of a record that changes one.
func (r *Record) Object() uint64 { return r.u64(8) }

// BlockSize returns the size of the object's blocks that an OBJECT record names.
func (r *Record) BlockSize() uint64 { return uint64(r.u32(24)) }

// Offset returns the offset of a WRITE record.
func (r *Record) Offset() uint64 { return r.u64(24) }

// Put changes a number of 8 bytes in the header.
func (r *Record) Put(at int, v uint64) { r.put64(at, v) }

// Last returns the last record of a type.
func (s Stream) Last(typ zfs.RecordType) *Record {
	for i := range slices.Backward(s) {
		if s[i].Type() == typ {
			return &s[i]
		}
	}
	panic("no such record")
}

// ToName returns the name of the snapshot in a BEGIN record.
func (r *Record) ToName() string {
	name, _, _ := strings.Cut(string(r.Header[atToName:]), "\x00")
	return name
}

// SetToName changes the name of the snapshot. A name that fills the field has no terminator.
func (r *Record) SetToName(name string) {
	clear(r.Header[atToName : atToName+256])
	copy(r.Header[atToName:atToName+256], name)
}

// SetClone changes a BEGIN record to that of a clone of the snapshot with GUID origin.
func (r *Record) SetClone(origin uint64) {
	r.SetFromGUID(origin)
	r.SetFlags(r.u32(atFlags) | cloneFlag)
}

// HasFeatures reports whether a stream has all of the features.
func (r *Record) HasFeatures(f uint64) bool { return r.u64(atVersion)>>2&f == f }

// AddFeatures sets features of a stream. DropFeatures clears them.
func (r *Record) AddFeatures(f uint64)  { r.put64(atVersion, r.u64(atVersion)|f<<2) }
func (r *Record) DropFeatures(f uint64) { r.put64(atVersion, r.u64(atVersion)&^(f<<2)) }

// SetToGUID changes the GUID of a single stream in all its records.
func (s Stream) SetToGUID(guid uint64) {
	old := s.Begin(0).ToGUID()
	for i := range s {
		for _, at := range swap64[s[i].Type()] {
			if s[i].u64(at) == old {
				s[i].put64(at, guid)
			}
		}
	}
}

// Package wraps single streams like zfs send -R and -I: a head with a name and a list, the
// streams, and an END record.
func Package(name string, list List, features uint64, streams ...Stream) Stream {
	var head, end Record
	head.put64(atMagic, magic)
	head.put64(atVersion, packageKind)
	head.AddFeatures(features)
	head.SetToName(name)
	if list != nil {
		head.Payload = list.XDR()
	}
	end.put32(atType, uint32(zfs.RecordEnd))
	out := Stream{head, end}
	for _, s := range streams {
		out = append(out, s.Clone()...)
	}
	return append(out, end)
}

// Bytes returns the encoded stream with correct checksums.
func (s Stream) Bytes() []byte { return s.bytes(binary.LittleEndian) }

// Swapped returns the stream as a host with the other byte order sends it.
func (s Stream) Swapped() []byte { return s.bytes(binary.BigEndian) }

func (s Stream) bytes(order binary.ByteOrder) []byte {
	var out bytes.Buffer
	var sum fletcher4
	open, packaged := false, false
	for i := range s {
		h := s[i].Header
		typ := s[i].Type()
		ends := open && typ == zfs.RecordEnd
		switch {
		case typ == zfs.RecordBegin:
			sum, open, packaged = fletcher4{}, true, s[i].u64(atVersion)&3 == packageKind
			if s[i].u32(atPayload) == 0 || len(s[i].Payload) > 0 && packaged {
				binary.LittleEndian.PutUint32(h[atPayload:], uint32(len(s[i].Payload)))
			}
		case ends:
			sum.put(h[atEndSum:], binary.LittleEndian)
		}
		if order == binary.BigEndian {
			swap(h[:], typ)
		}
		// Neither the END of a package nor that of its head is in a chain.
		chained := open && typ != zfs.RecordBegin && !(ends && packaged)
		sum.add(h[:atChain], order)
		if chained {
			sum.put(h[atChain:], order)
		}
		sum.add(h[atChain:], order)
		sum.add(s[i].Payload, order)
		out.Write(h[:])
		out.Write(s[i].Payload)
		if ends {
			open = false
		}
	}
	return out.Bytes()
}

// fletcher4 is the checksum of streams.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zcommon/zfs_fletcher.c
type fletcher4 [4]uint64

func (f *fletcher4) add(b []byte, order binary.ByteOrder) {
	for ; len(b) >= 4; b = b[4:] {
		f[0] += uint64(order.Uint32(b))
		f[1] += f[0]
		f[2] += f[1]
		f[3] += f[2]
	}
}

func (f *fletcher4) put(b []byte, order binary.ByteOrder) {
	for i, w := range f {
		order.PutUint64(b[8*i:], w)
	}
}

// swap64 lists the offsets of 8-byte numbers in each type of record, swap32 those of 4-byte
// numbers.
var (
	swap64 = map[zfs.RecordType][]int{
		zfs.RecordBegin:       {8, 16, 24, 40, 48},
		zfs.RecordObject:      {8, 40, 48, 56},
		zfs.RecordFreeObjects: {8, 16, 24},
		zfs.RecordWrite:       {8, 24, 32, 40, 56, 64, 72, 80, 88, 96},
		zfs.RecordFree:        {8, 16, 24, 32},
		zfs.RecordEnd:         {8, 16, 24, 32, 40},
		zfs.RecordSpill:       {8, 16, 24, 40},

		zfs.RecordWriteEmbedded: {8, 16, 24, 32},
		zfs.RecordObjectRange:   {8, 16, 24},
		zfs.RecordRedact:        {8, 16, 24, 32},
	}
	swap32 = map[zfs.RecordType][]int{
		zfs.RecordBegin:  {0, 4, 32, 36},
		zfs.RecordObject: {0, 4, 16, 20, 24, 28, 36},
		zfs.RecordWrite:  {0, 4, 16},
		zfs.RecordSpill:  {0, 4, 36},

		zfs.RecordWriteEmbedded: {0, 4, 48, 52},
	}
)

func swap(h []byte, typ zfs.RecordType) {
	narrow, ok := swap32[typ]
	if !ok {
		narrow = []int{0, 4}
	}
	for _, at := range narrow {
		slices.Reverse(h[at : at+4])
	}
	for _, at := range swap64[typ] {
		slices.Reverse(h[at : at+8])
	}
}

// ByRef returns a WRITE_BYREF record of a deduplicated stream. It writes a copy of data that
// another record wrote, also in another dataset.
func ByRef(object, offset, length, toGUID, refGUID, refObject, refOffset uint64) Record {
	return record(zfs.RecordWriteByRef, object, offset, length, toGUID, refGUID, refObject, refOffset)
}
