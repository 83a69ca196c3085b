package zfstest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

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
		{Name: "clone without a base", Says: "clone", Stream: changed(func(r *Record) { r.SetClone(0) })},
		{Name: "increment of another dataset's snapshot", Says: saysBase, Stream: changed(func(r *Record) { r.SetFromGUID(f.ForeignGUID) })},
		{Name: "increment", Says: saysNotPlanned, Stream: f.Increment.Streams()[0].Bytes()},
		{Name: "increments", Says: saysPackage, Stream: f.Increment.Bytes()},
		{Name: "another dataset with the planned name", Says: saysNotPlanned, Stream: f.Other.Named(src + "@a").Bytes()},
		{Name: "another dataset", Says: saysNotPlanned, Stream: f.Other.Bytes()},
		{Name: "another GUID", Everywhere: true, Says: saysNotPlanned, Stream: full.As(src+"@a", forgedGUID).Bytes()},
		{Name: "another snapshot's name", Says: saysName, Stream: full.Named(src + "@z").Bytes()},
		{Name: "raw", Says: "it is raw", Stream: f.Raw.As(src+"@a", guid).Bytes()},
		{Name: "rest of another stream", Says: "rest of another stream", Stream: feature(FeatureResuming)},
		{Name: "redacted", Says: saysFeatures, Stream: feature(FeatureRedacted)},
		{Name: "holds", Says: saysFeatures, Stream: feature(FeatureHolds)},
		{Name: "unknown feature", Says: saysFeatures, Stream: feature(1 << 40)},
		{Name: "deduplicated", Says: saysFeatures, Stream: insert(full, len(full)-1,
			ByRef(2, 0, 4096, guid, f.ForeignGUID, 2, 0)).Changed(func(r *Record) { r.AddFeatures(FeatureDedup) }).Bytes()},
		{Name: "head of four gigabytes", Says: saysClaims, Stream: changed(func(r *Record) { r.SetClaim(1<<32 - 8) })},
		{Name: "volume", Says: "of objects of type 3", Stream: changed(func(r *Record) { r.SetObjset(3) })},
		{Name: "neither filesystem nor volume", Says: "of objects of type 1", Stream: changed(func(r *Record) { r.SetObjset(1) })},
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
