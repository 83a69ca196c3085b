package zfstest

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Attack is a stream that a hostile sender sends instead of the planned one.
type Attack struct {
	Name   string
	Stream []byte
	// Says is part of the error of zfs.Gate. It is empty if the gate passes the stream.
	Says string
	// Begins reports that planned snapshots or records precede the unplanned data. The target
	// may store them.
	Begins bool
	// Cut reports that the stream looks like an interrupted one, so a retry is right.
	Cut bool
	// Everywhere selects the attack for every route between two hosts, not only for the
	// main ones.
	Everywhere bool
}

// Forger builds attacks from streams of real datasets.
type Forger struct {
	Full      Stream // full stream of the first snapshot of the planned dataset
	Increment Stream // package of the two increments that follow, as zfs send -I makes it
	Other     Stream // full stream of another dataset
	Raw       Stream // full raw stream of an encrypted dataset

	Foreign     string // dataset of the target's host that the sender must not change or read
	ForeignGUID uint64 // GUID of a snapshot of Foreign
	Mountpoint  string // directory of the target's host where nothing may be mounted
}

// source returns the planned dataset, its parent, and its name without the last letter.
// The shorter name tests that names are compared by component.
func (f Forger) source() (dataset, parent, shorter string) {
	dataset, _, _ = strings.Cut(f.Full.Begin(0).ToName(), "@")
	return dataset, dataset[:strings.LastIndex(dataset, "/")], dataset[:len(dataset)-1]
}

// Changed returns a copy of the stream whose first BEGIN record is changed.
func (s Stream) Changed(change func(begin *Record)) Stream {
	c := s.Clone()
	change(c.Begin(0))
	return c
}

// Named returns a copy of the stream with another snapshot name.
func (s Stream) Named(name string) Stream {
	return s.Changed(func(r *Record) { r.SetToName(name) })
}

// As returns a copy of a single stream with another snapshot name and GUID.
func (s Stream) As(name string, guid uint64) Stream {
	c := s.Named(name)
	c.SetToGUID(guid)
	return c
}

// packageList returns the list of a package as zfs send -R makes it, with the properties
// and snapshots of each dataset.
func packageList(recursive bool, more List, datasets ...List) List {
	l := List{{Name: "tosnap", Value: "a"}}
	if !recursive {
		l = l.With(Pair{Name: "not_recursive"})
	}
	all := List{}
	for i, d := range datasets {
		all = all.With(Pair{Name: fmt.Sprintf("%#x", i+1), Value: d})
	}
	return append(l, more...).With(Pair{Name: "fss", Value: all})
}

// member returns the entry of one dataset for described.
func member(name, snap string, guid, parent uint64, more ...Pair) List {
	return List{
		{Name: "name", Value: name}, {Name: "parentfromsnap", Value: parent},
		{Name: "snaps", Value: List{{Name: snap, Value: guid}}},
	}.With(more...)
}

func properties(pairs ...Pair) Pair { return Pair{Name: "props", Value: List(pairs)} }

// snapshotProperties returns a property of snapshot @a for member.
func snapshotProperties() Pair {
	return Pair{Name: "snapprops", Value: List{{Name: "a", Value: List{{Name: "org.example:x", Value: "y"}}}}}
}

// nested returns a list in a list, depth times.
func nested(depth int) List {
	l := List{}
	for range depth {
		l = List{{Name: "fss", Value: l}}
	}
	return l
}

// harmful returns properties that a stream must not set, each with a value that has an
// effect.
func (f Forger) harmful() List {
	return List{
		{Name: "mountpoint", Value: f.Mountpoint}, {Name: "canmount", Value: uint64(1)}, {Name: "sharenfs", Value: "rw=*"},
		{Name: "setuid", Value: uint64(1)}, {Name: "devices", Value: uint64(1)}, {Name: "quota", Value: uint64(1 << 20)},
		{Name: "refreservation", Value: uint64(1 << 20)}, {Name: "checksum", Value: uint64(2)}, {Name: "readonly", Value: uint64(0)},
		{Name: "snapdir", Value: uint64(1)}, {Name: "keylocation", Value: "file:///etc/shadow"},
		{Name: "keylocation", Value: "https://192.0.2.1/key"},
		{Name: "org.openzfs.systemd:required-by", Value: "multi-user.target"},
		{Name: "zxfer:stream", Value: "L\n" + f.Foreign + "\tzxfer:stream\tw\tlocal"},
		{Name: "org.example:note", Value: "x\t\n" + f.Foreign + "\tsetuid\ton\tlocal"},
	}
}

// forgedGUID is a GUID that no planned snapshot has.
const forgedGUID = 4242

// Parts of the errors of zfs.Gate.
const (
	saysHead       = "datasets, properties or holds"
	saysPackage    = "a package instead of a single stream"
	saysNotPlanned = "which was not planned"
	saysName       = "it brings"
	saysBase       = "its incremental source has GUID"
	saysFeatures   = "it has stream features"
	saysOther      = "with a stream of"
	saysEnd        = "after its end"
	saysNoEnd      = "its name is not terminated"
	saysTree       = "its tree has 0 levels"
	saysClaims     = "bytes of payload, expected at most"
)

// AgainstResume returns streams to send instead of rest, the remainder of an interrupted
// stream. whole is the interrupted stream from its start.
func (f Forger) AgainstResume(rest, whole Stream) []Attack {
	name, guid := rest.Begin(0).ToName(), rest.Begin(0).ToGUID()
	dataset, _, _ := strings.Cut(name, "@")
	return []Attack{
		{Name: "another snapshot", Says: saysNotPlanned, Stream: rest.As(name, forgedGUID).Bytes()},
		{Name: "another name", Says: saysName, Stream: rest.Named(dataset + "@z").Bytes()},
		{Name: "clone", Says: saysBase, Stream: rest.Changed(func(r *Record) { r.SetClone(f.ForeignGUID) }).Bytes()},
		{Name: "whole stream from its start", Everywhere: true, Says: "it does not continue", Stream: whole.Bytes()},
		{Name: "another stream from its start", Says: "it does not continue", Stream: f.Full.As(name, guid).Bytes()},
		{Name: "package", Says: saysPackage, Stream: Package(name, nil, 0, rest).Bytes()},
		{Name: "raw", Says: "it is raw", Stream: rest.Changed(func(r *Record) { r.AddFeatures(FeatureRaw) }).Bytes()},
	}
}

// AgainstRaw returns streams to send instead of Raw.
func (f Forger) AgainstRaw() []Attack {
	name, guid := f.Raw.Begin(0).ToName(), f.Raw.Begin(0).ToGUID()
	dataset, snap, _ := strings.Cut(name, "@")
	plain := f.Full.As(name, guid)
	return []Attack{
		{Name: "not raw", Everywhere: true, Says: "it is not raw", Stream: plain.Bytes()},
		{Name: "not raw, with the raw feature", Everywhere: true, Says: saysTree, Stream: plain.Changed(func(r *Record) { r.AddFeatures(FeatureRaw) }).Bytes()},
		{Name: "another GUID", Everywhere: true, Says: saysNotPlanned, Stream: f.Raw.As(name, forgedGUID).Bytes()},
		{Name: "package with a keylocation", Everywhere: true, Says: saysHead, Stream: Package(name,
			packageList(false, List{{Name: "raw"}}, member(dataset, snap, guid, 0, Pair{Name: "is_encroot"},
				properties(Pair{Name: "keylocation", Value: "https://192.0.2.1/key"}))), 0, f.Raw).Bytes()},
	}
}

// AgainstIncrement returns streams to send instead of Increment.
func (f Forger) AgainstIncrement() []Attack {
	src, parent, shorter := f.source()
	at := f.Full.Begin(0).ToGUID()
	b, c := f.Increment.Streams()[0], f.Increment.Streams()[1]
	pack := func(l List, s ...Stream) []byte { return Package(src+"@c", l, 0, s...).Bytes() }
	listed := func(name, snap string, more ...Pair) List {
		return packageList(true, List{{Name: "fromsnap", Value: "a"}}, member(name, snap, at, 1, more...))
	}
	from := func(guid uint64) func(*Record) { return func(r *Record) { r.SetFromGUID(guid) } }
	feature := func(bits uint64) func(*Record) { return func(r *Record) { r.AddFeatures(bits) } }
	elsewhere := b.As(src+"/none@x", forgedGUID).Changed(from(f.ForeignGUID))
	child := f.Full.As(src+"/x@c", forgedGUID)
	return []Attack{
		{Name: "missing child from another dataset", Everywhere: true, Says: saysOther, Stream: pack(nil, elsewhere)},
		{Name: "missing child after the planned streams", Begins: true, Says: saysOther, Stream: pack(nil, b, c, elsewhere)},
		{Name: "missing child with a list", Says: saysHead, Stream: pack(listed(src, "a"), elsewhere)},
		{Name: "head with a shorter name, then a sibling", Begins: true, Says: saysOther, Stream: Package(shorter+"@c", nil, 0, b.Named(shorter+"@b"), f.Full.As(shorter+"0/evil@c", forgedGUID)).Bytes()},
		{Name: "child after the planned streams", Everywhere: true, Begins: true, Says: saysOther, Stream: pack(nil, b, c, child)},
		{Name: "child between the planned streams", Begins: true, Says: saysOther, Stream: pack(nil, b, child, c)},
		{Name: "renamed snapshot", Says: saysHead, Stream: pack(listed(src, "renamed"), b, c)},
		{Name: "renamed dataset", Says: saysHead, Stream: pack(listed(parent+"/moved", "a"), b, c)},
		{Name: "properties of a snapshot of the target", Says: saysHead, Stream: pack(listed(src, "a", snapshotProperties()), b, c)},
		{Name: "properties", Says: saysHead, Stream: pack(listed(src, "a", properties(f.harmful()[:4]...)), b, c)},
		{Name: "permanent hold", Says: saysHead, Stream: Package(src+"@c", nil, FeatureHolds, b, c).Bytes()},
		{Name: "full stream", Says: saysNotPlanned, Stream: f.Full.Bytes()},
		{Name: "full stream in a package", Says: saysNotPlanned, Stream: pack(nil, f.Full.Named(src+"@b"))},
		{Name: "clone of another dataset's snapshot", Everywhere: true, Says: saysBase, Stream: pack(nil, b.Changed(func(r *Record) { r.SetClone(f.ForeignGUID) }))},
		{Name: "clone of its own incremental source", Says: "clone", Stream: pack(nil, b.Changed(func(r *Record) { r.SetClone(at) }))},
		{Name: "another incremental source", Says: saysBase, Stream: pack(nil, b.Changed(from(f.ForeignGUID)))},
		{Name: "another GUID", Says: saysNotPlanned, Stream: pack(nil, b.As(src+"@b", forgedGUID))},
		{Name: "another GUID after a planned stream", Begins: true, Says: saysNotPlanned, Stream: pack(nil, b, c.As(src+"@c", forgedGUID))},
		{Name: "snapshot twice", Begins: true, Says: saysNotPlanned, Stream: pack(nil, b, b, c)},
		{Name: "one more snapshot", Everywhere: true, Begins: true, Says: saysNotPlanned, Stream: pack(nil, b, c, b.As(src+"@d", forgedGUID).Changed(from(c.Begin(0).ToGUID())))},
		{Name: "wrong order", Says: saysBase, Stream: pack(nil, c, b)},
		{Name: "another snapshot's name", Says: saysName, Stream: pack(nil, b.Named(src+"@z"), c)},
		{Name: "name of a child", Says: saysOther, Stream: pack(nil, b.Named(src+"/x@b"), c)},
		{Name: "raw", Says: "it is raw", Stream: pack(nil, b.Changed(feature(FeatureRaw)))},
		{Name: "resumes another stream", Says: "resumes another stream", Stream: pack(nil, b.Changed(feature(FeatureResuming)))},
		{Name: "redacted", Says: saysFeatures, Stream: pack(nil, b.Changed(feature(FeatureRedacted)))},
		{Name: "package in the other byte order", Says: "byte order", Stream: f.Increment.Swapped()},
		{Name: "stream in the other byte order", Says: "streams of several hosts", Stream: append(Package(src+"@c", nil, 0).Bytes()[:2*zfs.RecordSize], b.Swapped()...)},
		{Name: "package in the package", Begins: true, Says: "a BEGIN record of type 2", Stream: pack(nil, b, Package(src+"@c", nil, 0, c))},
		{Name: "second package after the end", Begins: true, Says: saysEnd, Stream: append(f.Increment.Bytes(), pack(nil, elsewhere)...)},
		{Name: "bytes after the end", Begins: true, Says: saysEnd, Stream: append(f.Increment.Bytes(), make([]byte, 1000)...)},
		{Name: "record between the streams", Begins: true, Says: "an unexpected record", Stream: insert(
			Package(src+"@c", nil, 0, b, c), 2+len(b), *b.Last(zfs.RecordWrite)).Bytes()},
		{Name: "block of four gigabytes", Begins: true, Says: saysClaims, Stream: pack(nil, changedBlock(b))},
	}
}

// insert returns a copy of the stream with another record at an index.
func insert(s Stream, at int, r Record) Stream {
	return append(append(s[:at:at].Clone(), r), s[at:]...)
}

// changedBlock returns a copy of the stream whose last WRITE record claims 4 GiB.
func changedBlock(s Stream) Stream {
	c := s.Clone()
	c.Last(zfs.RecordWrite).SetBlock(1 << 32)
	return c
}

// AgainstFull returns streams to send instead of Full.
func (f Forger) AgainstFull() []Attack {
	return slices.Concat(f.packagesAgainstFull(), f.singlesAgainstFull(), f.namesAgainstFull())
}

// packagesAgainstFull returns packages, which could bring datasets, properties and holds.
func (f Forger) packagesAgainstFull() []Attack {
	src, _, shorter := f.source()
	full, guid := f.Full, f.Full.Begin(0).ToGUID()
	child := full.As(src+"/x@a", forgedGUID)
	one := func(more ...Pair) List { return packageList(false, nil, member(src, "a", guid, 0, more...)) }
	pack := func(l List, s ...Stream) []byte { return Package(src+"@a", l, 0, s...).Bytes() }
	claim := func(bytes uint32) []byte {
		return Package(src+"@a", nil, 0, full).Changed(func(r *Record) { r.SetClaim(bytes) }).Bytes()
	}
	garbled := Package(src+"@a", one(), 0, full)
	copy(garbled.Begin(0).Payload[16:], bytes.Repeat([]byte{0xff}, 32))
	all := []Attack{
		{Name: "head with a shorter name, sibling of the target", Everywhere: true, Says: saysPackage,
			Stream: Package(shorter+"@a", nil, 0, full.Named(shorter+"@a"), full.As(shorter+"0/evil@a", forgedGUID)).Bytes()},
		{Name: "head with a shorter name and a list", Says: saysHead, Stream: Package(shorter+"@a",
			packageList(true, nil, member(shorter, "a", guid, 0), member(shorter+"0/evil", "a", forgedGUID, 0)), 0,
			full.Named(shorter+"@a"), full.As(shorter+"0/evil@a", forgedGUID)).Bytes()},
		{Name: "child with a mountpoint", Everywhere: true, Says: saysHead, Stream: pack(
			packageList(true, nil, member(src, "a", guid, 0), member(src+"/x", "a", forgedGUID, guid, properties(
				Pair{Name: "mountpoint", Value: f.Mountpoint}, Pair{Name: "canmount", Value: uint64(1)}))), full, child)},
		{Name: "child whose parent is another dataset by GUID", Says: saysHead, Stream: pack(
			packageList(true, nil, member(src, "a", guid, 0), member(src+"/none/x", "a", forgedGUID, f.ForeignGUID)),
			full, full.As(src+"/none/x@a", forgedGUID))},
		{Name: "package without a list", Says: saysPackage, Stream: pack(nil, full)},
		{Name: "package in a package", Says: saysPackage, Stream: pack(nil,
			Package(src+"@a", one(properties(f.harmful()[0])), 0, full))},
		{Name: "package in the other byte order", Says: saysHead, Stream: Package(src+"@a",
			packageList(true, nil, member(src, "a", guid, 0), member(src+"/x", "a", forgedGUID, guid)), 0, full, child).Swapped()},
		{Name: "properties of the snapshot", Says: saysHead, Stream: pack(one(snapshotProperties()), full)},
		{Name: "permanent hold", Says: saysHead, Stream: Package(src+"@a", one(Pair{Name: "snapholds",
			Value: List{{Name: "a", Value: List{{Name: "permanent", Value: uint64(1)}}}}}), FeatureHolds, full).Bytes()},
		{Name: "list nested a thousand times", Says: saysHead, Stream: pack(nested(1000), full)},
		{Name: "garbled list", Says: saysHead, Stream: garbled.Bytes()},
		{Name: "list of two gigabytes", Says: saysClaims, Stream: claim(1<<31 - 8)},
		{Name: "list of minus one byte", Says: saysClaims, Stream: claim(1<<32 - 1)},
	}
	for _, p := range f.harmful() {
		all = append(all, Attack{Name: fmt.Sprintf("property %s=%v", p.Name, p.Value), Says: saysHead, Stream: pack(one(properties(p)), full)})
	}
	return all
}

// singlesAgainstFull returns single streams, and bytes that are no stream.
func (f Forger) singlesAgainstFull() []Attack {
	src, _, shorter := f.source()
	full, guid := f.Full, f.Full.Begin(0).ToGUID()
	changed := func(change func(*Record)) []byte { return full.Changed(change).Bytes() }
	feature := func(bits uint64) []byte { return changed(func(r *Record) { r.AddFeatures(bits) }) }
	return []Attack{
		{Name: "clone of another dataset's snapshot", Everywhere: true, Says: saysBase, Stream: changed(func(r *Record) { r.SetClone(f.ForeignGUID) })},
		{Name: "clone without an origin", Says: "clone", Stream: changed(func(r *Record) { r.SetClone(0) })},
		{Name: "incremental stream of another dataset's snapshot", Says: saysBase, Stream: changed(func(r *Record) { r.SetFromGUID(f.ForeignGUID) })},
		{Name: "incremental stream", Says: saysNotPlanned, Stream: f.Increment.Streams()[0].Bytes()},
		{Name: "incremental streams", Says: saysPackage, Stream: f.Increment.Bytes()},
		{Name: "another dataset with the planned name", Says: saysNotPlanned, Stream: f.Other.Named(src + "@a").Bytes()},
		{Name: "another dataset", Says: saysNotPlanned, Stream: f.Other.Bytes()},
		{Name: "another GUID", Everywhere: true, Says: saysNotPlanned, Stream: full.As(src+"@a", forgedGUID).Bytes()},
		{Name: "another snapshot's name", Says: saysName, Stream: full.Named(src + "@z").Bytes()},
		{Name: "raw", Says: "it is raw", Stream: f.Raw.As(src+"@a", guid).Bytes()},
		{Name: "resumes another stream", Says: "resumes another stream", Stream: feature(FeatureResuming)},
		{Name: "redacted", Says: saysFeatures, Stream: feature(FeatureRedacted)},
		{Name: "holds", Says: saysFeatures, Stream: feature(FeatureHolds)},
		{Name: "unknown feature", Says: saysFeatures, Stream: feature(1 << 40)},
		{Name: "deduplicated", Says: saysFeatures, Stream: insert(full, len(full)-1,
			ByRef(2, 0, 4096, guid, f.ForeignGUID, 2, 0)).Changed(func(r *Record) { r.AddFeatures(FeatureDedup) }).Bytes()},
		{Name: "head of four gigabytes", Says: saysClaims, Stream: changed(func(r *Record) { r.SetClaim(1<<32 - 8) })},
		{Name: "volume", Says: "has objects of type 3", Stream: changed(func(r *Record) { r.SetObjset(3) })},
		{Name: "neither filesystem nor volume", Says: "has objects of type 1", Stream: changed(func(r *Record) { r.SetObjset(1) })},
		{Name: "bytes after the end", Begins: true, Says: saysEnd, Stream: append(full.Bytes(), make([]byte, 1000)...)},
		{Name: "many bytes after the end", Begins: true, Says: saysEnd, Stream: append(full.Bytes(), make([]byte, 8<<20)...)},
		{Name: "second stream after the end", Begins: true, Says: saysEnd, Stream: append(full.Bytes(), full.As(src+"/x@a", forgedGUID).Bytes()...)},
		{Name: "package after the end", Everywhere: true, Begins: true, Says: saysEnd, Stream: append(full.Bytes(), Package(shorter+"@a", nil, 0,
			full.Named(shorter+"@a"), full.As(shorter+"0/evil@a", forgedGUID)).Bytes()...)},
		{Name: "no stream", Says: "BEGIN", Stream: bytes.Repeat([]byte("#!/bin/sh\n"), 1000)},
		{Name: "nothing", Cut: true},
		{Name: "half a record", Cut: true, Stream: full.Bytes()[:100]},
	}
}

// namesAgainstFull returns streams with names that are illegal, or that fill the field.
func (f Forger) namesAgainstFull() []Attack {
	src, parent, _ := f.source()
	named := func(name, says string) Attack {
		return Attack{Name: fmt.Sprintf("name %.40q", name), Says: says, Stream: f.Full.Named(name).Bytes()}
	}
	var all []Attack
	for _, name := range []string{
		src, "@a", src + "@", src + "@a@a", src + "#a", src + "%recv@a", parent + "/%recv@a", parent + "/../web@a",
		parent + "//web@a", "-o@a", src + "@a/x", src + "@a\n", src + "@%", strings.Repeat("x/", 60) + "x@a",
	} {
		all = append(all, named(name, "zfs name "))
	}
	return append(all, named(src+"@"+strings.Repeat("a", 256), saysNoEnd), named(strings.Repeat("x", 256), saysNoEnd))
}

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
		attack("frees more objects than there are", "but there are", FreeObjects(behind, math.MaxUint64-behind, guid)),
		attack("writes beyond the largest offset", "too large", first, beyond),
		attack("writes half a block past its start", "is not a multiple of the block size", first, filled(Write(behind, 512, guid))),
		attack("bonus larger than its slots", "slots hold only", large),
		attack("spill block larger than it claims", "for a block of", first, spill),
		attack("embedded block larger than a pointer", "a block pointer holds only", first, embedded),
		attack("record of another snapshot", "GUID 4242", FreeObjects(behind, 1, forgedGUID)),
		attack("redaction", "cannot have this type", first, record(zfs.RecordRedact, behind, 0, 512, guid)),
		attack("copy of another dataset's block", "cannot have this type", first, ByRef(behind, 0, 512, guid, f.ForeignGUID, 1, 0)),
		attack("range of raw objects", "not raw", record(zfs.RecordObjectRange, (behind+31)&^31, 32, guid)),
		attack("unknown type", "type 99", record(99, behind)),
	}
}
