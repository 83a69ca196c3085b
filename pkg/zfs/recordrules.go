package zfs

import (
	"errors"
	"fmt"
	"math"
)

// Limits of objects and blocks on disk.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/dnode.h
const (
	slotSize      = 512
	slotsPerBlock = 32
	slotOverhead  = 192 // of an object's slots, the part that cannot hold a bonus
	maxObject     = 1 << 48
	minBlock      = 512
	maxEmbedded   = 112 // bytes that fit into a block pointer

	embeddedData = 0 // kind of embedded data (BP_EMBEDDED_TYPE_DATA)

	// Algorithms of compression (enum zio_compress).
	compressOff, compressFirst, compressEmpty, compressLast = 2, 3, 4, 16

	spillBlock = math.MaxUint64 - 1 // number of a spill block (DMU_SPILL_BLKID)

	minIndirectShift, maxIndirectShift = 12, 17
	maxLevels, maxPointers             = 12, 3
)

// embeddedSpill describes a record that loses extended attributes (openzfs#18239).
const embeddedSpill = "it has extended attributes as embedded data, which zfs receive would store as file data"

// RecordRules checks the records between the BEGIN and the END record of one stream. It
// passes every stream that zfs send of OpenZFS 0.8 to 2.4 makes without -e, and refuses the following,
// because zfs receive trusts senders with it:
//
//   - records that the features in the BEGIN record, or a volume, cannot have, and records
//     of another snapshot;
//   - sizes, objects and offsets outside the limits of the format;
//   - objects out of order. A sender names objects in ascending order, in OBJECT and
//     FREEOBJECTS records, each slot once. So no record frees or recreates an object that
//     the same stream created. In the kernel this is a null pointer
//     (docs/dev/openzfs-freeobjects.md);
//   - data of an object that has no OBJECT record in its block of slots;
//   - data out of order. Writes of an object have ascending offsets and do not overlap, and
//     nothing that the stream wrote is freed.
//
// It does not check what objects and payloads mean, whether objects exist on the target, or
// checksums: the kernel does. The state has a fixed size.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_send.c (do_dump, dump_free)
type RecordRules struct {
	features uint64
	volume   bool
	toGUID   uint64

	next  uint64 // the first slot that no OBJECT or FREEOBJECTS record named
	block uint64 // the block of slots of the last OBJECT record
	named [slotsPerBlock]namedObject
	data  uint64 // object of the last WRITE or WRITE_EMBEDDED record
	end   uint64 // offset of the first byte after it
	after uint64 // the first slot after the last OBJECT_RANGE record
}

// namedObject is an object as its OBJECT record describes it.
type namedObject struct {
	block uint64 // size of its blocks in bytes, 0: there was no OBJECT record
	last  uint64 // number of its last block; only raw streams have it
}

// NewRecordRules returns the rules of the stream that a BEGIN record starts.
func NewRecordRules(begin *Record) *RecordRules {
	return &RecordRules{features: begin.Features(), volume: begin.u32(32) == osVolume, toGUID: begin.ToGUID()}
}

func (c *RecordRules) has(feature uint64) bool { return c.features&feature != 0 }

// Check returns an error if the stream cannot have the record. After an error, the rest of
// the stream must not be used.
func (c *RecordRules) Check(r *Record) error {
	if err := c.check(r); err != nil {
		return fmt.Errorf("%s record of object %d: %w", r.Type, r.Object(), err)
	}
	return nil
}

func (c *RecordRules) check(r *Record) error {
	if r.ToGUID() != c.toGUID {
		return fmt.Errorf("it is of the snapshot with GUID %d, expected %d", r.ToGUID(), c.toGUID)
	}
	switch r.Type {
	case RecordEnd:
		return nil
	case RecordFreeObjects, RecordObjectRange:
		if n := r.Objects(); n == 0 || n > maxObject || r.Object() > maxObject-n {
			return fmt.Errorf("it covers %d objects, but there are %d", n, uint64(maxObject))
		}
	default:
		if o := r.Object(); o == 0 || o >= maxObject {
			return errors.New("there is no such object")
		}
	}
	switch r.Type {
	case RecordObject:
		return c.object(r)
	case RecordFreeObjects:
		return c.noteSlots(r)
	case RecordObjectRange:
		return c.objectRange(r)
	case RecordWrite:
		return c.write(r)
	case RecordWriteEmbedded:
		return c.embedded(r)
	case RecordSpill:
		return c.spill(r)
	case RecordFree:
		return c.free(r)
	}
	return errors.New("the stream cannot have this type")
}

// noteSlots records the slots that an OBJECT or FREEOBJECTS record names.
func (c *RecordRules) noteSlots(r *Record) error {
	if r.Object() < c.next {
		return fmt.Errorf("objects are not in ascending order: an earlier record named object %d", c.next-1)
	}
	c.next = r.Object() + r.Objects()
	return nil
}

func (c *RecordRules) object(r *Record) error {
	block, bonus, raw := uint64(r.u32(24)), uint64(r.u32(28)), uint64(r.u32(36))
	indirect, levels, pointers := r.Header[48], r.Header[49], r.Header[50]
	room := r.Objects()*slotSize - slotOverhead
	switch {
	case r.Object()%slotsPerBlock+r.Objects() > slotsPerBlock:
		return fmt.Errorf("its %d slots cross a block of slots", r.Objects())
	case !isBlock(block):
		return fmt.Errorf("it has blocks of %d bytes", block)
	case bonus > room || raw > room:
		return fmt.Errorf("its bonus has %d bytes, but its %d slots hold only %d", max(bonus, raw), r.Objects(), room)
	case !c.has(featureRaw) && (raw != 0 || indirect != 0 || levels != 0 || pointers != 0):
		return errors.New("it has fields of a raw stream")
	case c.has(featureRaw) && (bonus > raw || indirect < minIndirectShift || indirect > maxIndirectShift ||
		levels == 0 || levels > maxLevels || pointers == 0 || pointers > maxPointers):
		return fmt.Errorf("its tree has %d levels of 2^%d bytes with %d pointers, and its bonus %d of %d bytes", levels, indirect, pointers, bonus, raw)
	case c.has(featureRaw) && !treeHasBlock(levels, indirect, pointers, r.u64(56)):
		return fmt.Errorf("its tree has %d levels of 2^%d bytes with %d pointers, but no block %d", levels, indirect, pointers, r.u64(56))
	}
	if err := c.noteSlots(r); err != nil {
		return err
	}
	if b := r.Object() / slotsPerBlock; b != c.block {
		c.block, c.named = b, [slotsPerBlock]namedObject{}
	}
	last := uint64(math.MaxUint64)
	if c.has(featureRaw) {
		last = r.u64(56)
	}
	c.named[r.Object()%slotsPerBlock] = namedObject{block, last}
	return nil
}

// treeHasBlock reports whether a tree of block pointers has a block with a number.
func treeHasBlock(levels, indirectShift, pointers byte, block uint64) bool {
	shift := uint(levels-1) * uint(indirectShift-7) // a pointer has 2^7 bytes
	return shift >= 62 || block < uint64(pointers)<<shift
}

// isCompression reports whether blocks on disk are compressed with an algorithm.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zio.h (enum zio_compress)
func isCompression(algorithm byte) bool {
	return algorithm >= compressFirst && algorithm <= compressLast && algorithm != compressEmpty
}

func isBlock(size uint64) bool { return size >= minBlock && size <= maxBlock && size%minBlock == 0 }

func (c *RecordRules) objectRange(r *Record) error {
	switch {
	case !c.has(featureRaw):
		return errors.New("the stream is not raw")
	case r.Objects() != slotsPerBlock || r.Object()%slotsPerBlock != 0:
		return fmt.Errorf("its %d slots are not a block of slots", r.Objects())
	case r.Object() < c.after || r.Object() < c.next:
		return fmt.Errorf("objects are not in ascending order: an earlier record named object %d", max(c.after, c.next)-1)
	}
	c.after = r.Object() + slotsPerBlock
	return nil
}

// writable returns the object that a record writes or frees data of.
func (c *RecordRules) writable(r *Record) (namedObject, error) {
	o := c.named[r.Object()%slotsPerBlock]
	if r.Object()/slotsPerBlock != c.block || o.block == 0 {
		return o, errors.New("no OBJECT record in its block of slots came before")
	}
	if r.Type != RecordSpill && r.Object() == c.data && r.Offset() < c.end || r.Object() < c.data {
		return o, fmt.Errorf("offset %d comes after offset %d of object %d was written", r.Offset(), c.end-1, c.data)
	}
	return o, nil
}

// noteWrite records the range that a record wrote. It returns an error if the offset is not that
// of a block.
func (c *RecordRules) noteWrite(r *Record, o namedObject) error {
	if r.Offset() > math.MaxUint64-r.Length() {
		return fmt.Errorf("offset %d and length %d are too large", r.Offset(), r.Length())
	}
	if r.Offset()%o.block != 0 {
		return fmt.Errorf("offset %d is not a multiple of the block size %d", r.Offset(), o.block)
	}
	c.data, c.end = r.Object(), r.Offset()+r.Length()
	return nil
}

// blockNumber returns the number of the block that a checked WRITE record writes.
func (c *RecordRules) blockNumber(r *Record) uint64 {
	return r.Offset() / c.named[r.Object()%slotsPerBlock].block
}

func (c *RecordRules) write(r *Record) error {
	o, err := c.writable(r)
	switch packed := r.compression() != 0; {
	case err != nil:
		return err
	case !isBlock(r.Length()) || r.Length() > o.block:
		return fmt.Errorf("it writes %d bytes to a block of %d", r.Length(), o.block)
	case packed && !c.has(featureCompressed|featureRaw):
		return errors.New("it is compressed, but the stream is not")
	case !packed && c.has(featureRaw):
		return errors.New("it is not raw, but the stream is")
	case packed && (r.packed() == 0 || r.packed() > r.Length()):
		return fmt.Errorf("it has %d bytes for a block of %d", r.packed(), r.Length())
	case packed && !isCompression(r.compression()) && !(c.has(featureRaw) && r.compression() == compressOff && r.packed() == r.Length()):
		return fmt.Errorf("it has compression %d and %d bytes for a block of %d", r.compression(), r.packed(), r.Length())
	case r.Offset()/o.block > o.last:
		return fmt.Errorf("offset %d is beyond the last block", r.Offset())
	}
	return c.noteWrite(r, o)
}

func (c *RecordRules) embedded(r *Record) error {
	o, err := c.writable(r)
	switch packed, unpacked := r.u32(52), uint64(r.u32(48)); {
	case err != nil:
		return err
	case !c.has(featureEmbedded) || c.has(featureRaw):
		return errors.New("the stream cannot have this type")
	case packed > maxEmbedded:
		return fmt.Errorf("it has %d bytes, but a block pointer holds only %d", packed, maxEmbedded)
	case packed == 0:
		// The size in a block pointer begins at 1. The kernel stores 0 as 128, and a reader
		// then writes beyond a buffer of 112 bytes.
		return errors.New("it has no bytes")
	case r.Header[41] != embeddedData:
		return fmt.Errorf("it is embedded data of kind %d, such as a redacted block", r.Header[41])
	case !isCompression(r.Header[40]):
		// Uncompressed, the rest of the block would be whatever was in the kernel's memory.
		return fmt.Errorf("it has compression %d, but embedded data must be compressed", r.Header[40])
	case r.Offset() == spillBlock*r.Length() && isBlock(r.Length()) && r.Length() == unpacked:
		// zfs send -e of OpenZFS 2.3 and 2.4 sends a spill block like this if it fits into a
		// block pointer. zfs receive stores it as data and loses the extended attributes. A stream
		// without the record would lose them, too. zxfer sends no embedded blocks, but resumes
		// streams that others started with -e.
		return errors.New(embeddedSpill)
	// Without large blocks, a sender reduces the size in the OBJECT record only.
	case !isBlock(r.Length()) || r.Length() != unpacked || r.Length() > o.block && c.has(featureLargeBlocks):
		return fmt.Errorf("it writes %d bytes (%d uncompressed) to a block of %d", r.Length(), unpacked, o.block)
	}
	return c.noteWrite(r, o)
}

func (c *RecordRules) spill(r *Record) error {
	_, err := c.writable(r)
	switch {
	case err != nil:
		return err
	case c.volume || !c.has(featureSpill):
		return errors.New("the stream cannot have this type")
	case !isBlock(r.Length()):
		return fmt.Errorf("it writes a block of %d bytes", r.Length())
	case c.has(featureRaw) && (r.packed() == 0 || r.packed() > r.Length()), !c.has(featureRaw) && r.packed() != 0:
		return fmt.Errorf("it has %d bytes for a block of %d", r.packed(), r.Length())
	}
	return nil
}

func (c *RecordRules) free(r *Record) error {
	if _, err := c.writable(r); err != nil {
		return err
	}
	if r.Length() != math.MaxUint64 && r.Offset() > math.MaxUint64-r.Length() {
		return fmt.Errorf("offset %d and length %d are too large", r.Offset(), r.Length())
	}
	return nil
}
