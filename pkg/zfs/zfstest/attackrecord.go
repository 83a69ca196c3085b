package zfstest

import (
	"math"
	"slices"

	"zxfer/pkg/zfs"
)

// RecordsAgainstFull returns copies of Full with added records that zfs send does not make. The
// kernel does not check most of them: never pass these streams to zfs receive directly.
func (f Forger) RecordsAgainstFull() []Attack {
	const (
		order   = "objects are not in ascending order"
		written = "was written"
		unknown = "no OBJECT record in its block of slots"
		object  = "there is no such object"
	)
	full := f.Full
	guid, last := full.Begin(0).ToGUID(), *full.Last(zfs.RecordWrite)
	behind := last.Object() + 1000 // an object that Full does not have
	at := 0                        // the index after the last WRITE record
	for i := range full {
		if full[i].Type() == zfs.RecordWrite {
			at = i + 1
		}
	}
	with := func(r ...Record) []byte { return slices.Insert(full.Clone(), at, r...).Bytes() }
	attack := func(name, says string, r ...Record) Attack {
		return Attack{Name: name, Says: says, Begins: true, Stream: with(r...)}
	}
	large := Object(behind, 512, guid, false)
	large.SetBonus(16000)
	large.Payload = make([]byte, 16000)
	spill := record(zfs.RecordSpill, behind, 512, guid)
	spill.Put(40, 64<<10)
	spill.Payload = make([]byte, 64<<10)
	embedded := record(zfs.RecordWriteEmbedded, behind, 0, 512, guid)
	embedded.Put(48, 512|4096<<32)
	embedded.Payload = make([]byte, 4096)
	next := Write(last.Object(), last.u64(24), guid)
	next.SetBlock(last.u64(32))
	beyond := Write(behind, math.MaxUint64-511, guid)
	beyond.SetBlock(1024)
	beyond.Payload = make([]byte, 1024)
	next.Payload = make([]byte, last.u64(32))
	sector := make([]byte, 512)
	filled := func(r Record) Record { r.Payload = sector; return r }
	first := Object(behind, 1024, guid, false)
	frees := attack("frees an object that it wrote", order, FreeObjects(last.Object(), 1, guid))
	frees.Everywhere = true
	return []Attack{
		frees,
		attack("frees all objects after it wrote them", order, FreeObjects(0, 1<<48, guid)),
		attack("recreates an object that it wrote", order, Object(last.Object(), 512, guid, false)),
		attack("frees a range that it wrote", written, Free(last.Object(), 0, math.MaxUint64, guid)),
		attack("writes a block twice", written, next),
		attack("writes an object that it did not create", unknown, filled(Write(behind, 0, guid))),
		attack("writes the table of objects", object, filled(Write(0, 0, guid))),
		attack("writes the space accounting", object, filled(Write(math.MaxUint64, 0, guid))),
		attack("frees the space accounting", object, Free(math.MaxUint64, 0, math.MaxUint64, guid)),
		attack("frees more objects than there are", "and there are", FreeObjects(behind, math.MaxUint64-behind, guid)),
		attack("writes beyond the largest offset", "too large", first, beyond),
		attack("writes half a block past its start", "is not that of a block", first, filled(Write(behind, 512, guid))),
		attack("bonus larger than its slots", "have room for", large),
		attack("spill block larger than it claims", "for a block of", first, spill),
		attack("embedded block larger than a pointer", "a block pointer has room", first, embedded),
		attack("record of another snapshot", "GUID 4242", FreeObjects(behind, 1, forgedGUID)),
		attack("redaction", "cannot have this type", first, record(zfs.RecordRedact, behind, 0, 512, guid)),
		attack("copy of another dataset's block", "cannot have this type", first, ByRef(behind, 0, 512, guid, f.ForeignGUID, 1, 0)),
		attack("range of raw objects", "not raw", record(zfs.RecordObjectRange, (behind+31)&^31, 32, guid)),
		attack("unknown type", "type 99", record(99, behind)),
	}
}
