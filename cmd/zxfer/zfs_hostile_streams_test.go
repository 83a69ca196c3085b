package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// bent is a copy of a stream with one change.
func bent(s zfstest.Stream, change func(s zfstest.Stream)) zfstest.Stream {
	c := s.Clone()
	change(c)
	return c
}

// begin is a change of the stream's first record.
func begin(f func(r *zfstest.Record)) func(zfstest.Stream) {
	return func(s zfstest.Stream) { f(s.Begin(0)) }
}

func named(s zfstest.Stream, name string) zfstest.Stream {
	return bent(s, begin(func(r *zfstest.Record) { r.SetToName(name) }))
}

// fresh gives a single stream a name and a GUID of its own.
func fresh(s zfstest.Stream, name string, guid uint64) zfstest.Stream {
	return bent(named(s, name), func(s zfstest.Stream) { s.SetToGUID(guid) })
}

// described is the list of a package as zfs send -R makes it, with what each
// dataset brings along.
func described(recursive bool, more zfstest.List, sets ...zfstest.List) zfstest.List {
	l := zfstest.List{{Name: "tosnap", Value: "a"}}
	if !recursive {
		l = l.With(zfstest.Pair{Name: "not_recursive"})
	}
	fss := zfstest.List{}
	for i, s := range sets {
		fss = fss.With(zfstest.Pair{Name: fmt.Sprintf("%#x", i+1), Value: s})
	}
	return append(l, more...).With(zfstest.Pair{Name: "fss", Value: fss})
}

func set(name, snap string, guid, parent uint64, more ...zfstest.Pair) zfstest.List {
	return zfstest.List{
		{Name: "name", Value: name}, {Name: "parentfromsnap", Value: parent},
		{Name: "snaps", Value: zfstest.List{{Name: snap, Value: guid}}},
	}.With(more...)
}

func props(pairs ...zfstest.Pair) zfstest.Pair {
	return zfstest.Pair{Name: "props", Value: zfstest.List(pairs)}
}

// evilProperties are what a stream must not set, each with a value that would
// be felt. Numbers are those of zfs_prop.c.
func (p *prey) evilProperties() zfstest.List {
	return zfstest.List{
		{Name: "mountpoint", Value: p.evil}, {Name: "canmount", Value: uint64(1)}, {Name: "sharenfs", Value: "rw=*"},
		{Name: "setuid", Value: uint64(1)}, {Name: "devices", Value: uint64(1)}, {Name: "quota", Value: uint64(1 << 20)},
		{Name: "refreservation", Value: uint64(1 << 20)}, {Name: "checksum", Value: uint64(2)}, {Name: "readonly", Value: uint64(0)},
		{Name: "snapdir", Value: uint64(1)}, {Name: "keylocation", Value: "file:///etc/shadow"},
		{Name: "keylocation", Value: "https://192.0.2.1/key"},
		{Name: "org.openzfs.systemd:required-by", Value: "multi-user.target"},
		{Name: "zxfer:stream", Value: "L\n" + p.secret + "\tzxfer:stream\tw\tlocal"},
		{Name: "org.example:note", Value: "x\t\n" + p.secret + "\tsetuid\ton\tlocal"},
	}
}

// insteadOfFull are streams in place of a full one of @a.
func (p *prey) insteadOfFull() []attack {
	f, src := p.full, p.source
	guid := f.Begin(0).ToGUID()
	parent := src[:strings.LastIndex(src, "/")]
	short, child := src[:len(src)-1], fresh(f, src+"/x@a", 4242)
	one := func(more ...zfstest.Pair) zfstest.List { return described(false, nil, set(src, "a", guid, 0, more...)) }
	all := []attack{
		{name: "a shorter head, and the name goes on beside the target", everywhere: true, says: "planned", stream: zfstest.Package(short+"@a", nil, 0,
			named(f, short+"@a"), fresh(f, short+"0/evil@a", 4242)).Bytes()},
		{name: "a shorter head with a list", says: "planned", stream: zfstest.Package(short+"@a",
			described(true, nil, set(short, "a", guid, 0), set(short+"0/evil", "a", 4242, 0)), 0,
			named(f, short+"@a"), fresh(f, short+"0/evil@a", 4242)).Bytes()},
		{name: "a child that mounts itself over a login's keys", everywhere: true, says: "planned", stream: zfstest.Package(src+"@a",
			described(true, nil, set(src, "a", guid, 0), set(src+"/x", "a", 4242, guid, props(
				zfstest.Pair{Name: "mountpoint", Value: p.evil}, zfstest.Pair{Name: "canmount", Value: uint64(1)}))), 0, f, child).Bytes()},
		{name: "a child whose parent is found by its GUID, elsewhere", says: "planned", stream: zfstest.Package(src+"@a",
			described(true, nil, set(src, "a", guid, 0), set(src+"/none/x", "a", 4242, p.secretGUID)), 0,
			f, fresh(f, src+"/none/x@a", 4242)).Bytes()},
		{name: "a package without a list", says: "planned", stream: zfstest.Package(src+"@a", nil, 0, f).Bytes()},
		{name: "a package in a package", says: "planned", stream: zfstest.Package(src+"@a", nil, 0,
			zfstest.Package(src+"@a", one(props(p.evilProperties()[0])), 0, f)).Bytes()},
		{name: "a package in the other byte order", says: "planned", stream: zfstest.Package(src+"@a",
			described(true, nil, set(src, "a", guid, 0), set(src+"/x", "a", 4242, guid)), 0, f, child).Swapped()},
		{name: "properties of the snapshot", says: "planned", stream: zfstest.Package(src+"@a", one(zfstest.Pair{Name: "snapprops",
			Value: zfstest.List{{Name: "a", Value: zfstest.List{{Name: "org.example:x", Value: "y"}}}}}), 0, f).Bytes()},
		{name: "a hold for ever", says: "planned", stream: zfstest.Package(src+"@a", one(zfstest.Pair{Name: "snapholds",
			Value: zfstest.List{{Name: "a", Value: zfstest.List{{Name: "for ever", Value: uint64(1)}}}}}), zfstest.FeatureHolds, f).Bytes()},
		{name: "a list nested a thousand deep", says: "planned", stream: zfstest.Package(src+"@a", nested(1000), 0, f).Bytes()},
		{name: "a list that is none", says: "planned", stream: bent(zfstest.Package(src+"@a", one(), 0, f), func(s zfstest.Stream) {
			copy(s.Begin(0).Payload[16:], bytes.Repeat([]byte{0xff}, 32))
		}).Bytes()},
		{name: "a list of two gigabytes", says: "planned", stream: bent(zfstest.Package(src+"@a", nil, 0, f), begin(func(r *zfstest.Record) { r.SetClaim(1<<31 - 8) })).Bytes()},
		{name: "a list of minus one byte", says: "planned", stream: bent(zfstest.Package(src+"@a", nil, 0, f), begin(func(r *zfstest.Record) { r.SetClaim(1<<32 - 1) })).Bytes()},

		{name: "a clone of another's snapshot", everywhere: true, says: "planned", stream: bent(f, begin(func(r *zfstest.Record) { r.SetClone(p.secretGUID) })).Bytes()},
		{name: "an increment of another's snapshot", says: "planned", stream: bent(f, begin(func(r *zfstest.Record) { r.SetFromGUID(p.secretGUID) })).Bytes()},
		{name: "an increment", says: "planned", stream: p.incr.Streams()[0].Bytes()},
		{name: "increments", says: "planned", stream: p.incr.Bytes()},
		{name: "another dataset of that name", says: "planned", stream: named(p.other, src+"@a").Bytes()},
		{name: "another dataset", says: "planned", stream: p.other.Bytes()},
		{name: "another GUID", everywhere: true, says: "planned", stream: fresh(f, src+"@a", 4242).Bytes()},
		{name: "another snapshot's name", says: "planned", stream: named(f, src+"@z").Bytes()},
		{name: "a raw stream", says: "planned", stream: fresh(p.raw, src+"@a", guid).Bytes()},
		{name: "the rest of a stream", says: "planned", stream: bent(f, begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureResuming) })).Bytes()},
		{name: "a redacted stream", says: "feature", stream: bent(f, begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureRedacted) })).Bytes()},
		{name: "a stream with holds", says: "feature", stream: bent(f, begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureHolds) })).Bytes()},
		{name: "a stream of the future", says: "feature", stream: bent(f, begin(func(r *zfstest.Record) { r.AddFeatures(1 << 40) })).Bytes()},
		{name: "a deduplicated stream", says: "feature", stream: bent(slices.Insert(f.Clone(), len(f)-1,
			zfstest.ByRef(2, 0, 4096, guid, p.secretGUID, 2, 0)), begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureDedup) })).Bytes()},
		{name: "a head of four gigabytes", says: p.target, stream: bent(f, begin(func(r *zfstest.Record) { r.SetClaim(1<<32 - 8) })).Bytes()},
		{name: "a stream of neither a filesystem nor a volume", says: "type", stream: bent(f, begin(func(r *zfstest.Record) { r.SetObjset(1) })).Bytes()},
		{name: "bytes behind it", behind: true, says: p.target, stream: append(f.Bytes(), make([]byte, 1000)...)},
		{name: "many bytes behind it", behind: true, cut: true, says: p.target, stream: append(f.Bytes(), make([]byte, 8<<20)...)},
		{name: "a second stream behind it", behind: true, says: p.target, stream: slices.Concat(f.Bytes(), child.Bytes())},
		{name: "a package behind it", everywhere: true, behind: true, says: p.target, stream: slices.Concat(f.Bytes(), zfstest.Package(short+"@a", nil, 0,
			named(f, short+"@a"), fresh(f, short+"0/evil@a", 4242)).Bytes())},
		{name: "no stream", says: "BEGIN", stream: bytes.Repeat([]byte("#!/bin/sh\n"), 1000)},
		{name: "nothing", cut: true, says: p.target, stream: nil},
		{name: "half a head", cut: true, says: p.target, stream: f.Bytes()[:100]},
	}
	for _, name := range []string{
		src, "@a", src + "@", src + "@a@a", src + "#a", src + "%recv@a", parent + "/%recv@a", parent + "/../web@a",
		parent + "//web@a", "-o@a", src + "@a/x", src + "@a\n", src + "@%", strings.Repeat("x/", 127) + "@a",
		src + "@" + strings.Repeat("a", 256), strings.Repeat("x", 256),
	} {
		all = append(all, attack{name: fmt.Sprintf("the name %.40q", name), says: p.target, stream: named(f, name).Bytes()})
	}
	for _, e := range p.evilProperties() {
		all = append(all, attack{name: fmt.Sprintf("property %s=%v", e.Name, e.Value), says: "propert",
			stream: zfstest.Package(src+"@a", one(props(e)), 0, f).Bytes()})
	}
	return all
}

// nested is a list in a list in a list.
func nested(depth int) zfstest.List {
	l := zfstest.List{}
	for range depth {
		l = zfstest.List{{Name: "fss", Value: l}}
	}
	return l
}

// insteadOfIncrement are streams in place of -I from @a to @c.
func (p *prey) insteadOfIncrement() []attack {
	src, at := p.source, p.full.Begin(0).ToGUID()
	b, c := p.incr.Streams()[0], p.incr.Streams()[1]
	parent := src[:strings.LastIndex(src, "/")]
	short := src[:len(src)-1]
	elsewhere := bent(fresh(b, src+"/none@x", 4242), begin(func(r *zfstest.Record) { r.SetFromGUID(p.secretGUID) }))
	pack := func(l zfstest.List, s ...zfstest.Stream) []byte { return zfstest.Package(src+"@c", l, 0, s...).Bytes() }
	from := zfstest.List{{Name: "fromsnap", Value: "a"}}
	own := func(name, snap string, more ...zfstest.Pair) zfstest.List {
		return described(true, from, set(name, snap, at, 1, more...))
	}
	return []attack{
		{name: "a child that is missing extends what has its base", everywhere: true, says: "planned", stream: pack(nil, elsewhere)},
		{name: "the same behind what was planned", begins: true, says: "stream of", stream: pack(nil, b, c, elsewhere)},
		{name: "the same with a list", says: "planned", stream: pack(own(src, "a"), elsewhere)},
		{name: "a shorter head", says: "planned", stream: zfstest.Package(short+"@c", nil, 0, named(b, short+"@b"), fresh(p.full, short+"0/evil@c", 4242)).Bytes()},
		{name: "a child behind what was planned", everywhere: true, begins: true, says: "stream of", stream: pack(nil, b, c, fresh(p.full, src+"/x@c", 4242))},
		{name: "a child between", begins: true, says: "stream of", stream: pack(nil, b, fresh(p.full, src+"/x@c", 4242), c)},
		{name: "a snapshot is renamed", says: "planned", stream: pack(own(src, "renamed"), b, c)},
		{name: "a dataset is renamed", says: "planned", stream: pack(own(parent+"/moved", "a"), b, c)},
		{name: "properties of what is there", says: "planned", stream: pack(own(src, "a", zfstest.Pair{Name: "snapprops",
			Value: zfstest.List{{Name: "a", Value: zfstest.List{{Name: "org.example:x", Value: "y"}}}}}), b, c)},
		{name: "properties", says: "planned", stream: pack(own(src, "a", props(p.evilProperties()[:4]...)), b, c)},
		{name: "a hold for ever", says: "planned", stream: zfstest.Package(src+"@c", nil, zfstest.FeatureHolds, b, c).Bytes()},
		{name: "a full stream", says: "planned", stream: p.full.Bytes()},
		{name: "a full stream in a package", says: "planned", stream: pack(nil, named(p.full, src+"@b"))},
		{name: "a clone of another's snapshot", everywhere: true, says: "planned", stream: pack(nil, bent(b, begin(func(r *zfstest.Record) { r.SetClone(p.secretGUID) })))},
		{name: "a clone of its own base", says: "clone", stream: pack(nil, bent(b, begin(func(r *zfstest.Record) { r.SetClone(at) })))},
		{name: "another base", says: "planned", stream: pack(nil, bent(b, begin(func(r *zfstest.Record) { r.SetFromGUID(p.secretGUID) })))},
		{name: "another GUID", says: "planned", stream: pack(nil, fresh(b, src+"@b", 4242))},
		{name: "another GUID behind what was planned", begins: true, says: "planned", stream: pack(nil, b, fresh(c, src+"@c", 4242))},
		{name: "a snapshot twice", begins: true, says: "planned", stream: pack(nil, b, b, c)},
		{name: "one more snapshot", everywhere: true, begins: true, says: "planned", stream: pack(nil, b, c, bent(fresh(b, src+"@d", 4242), begin(func(r *zfstest.Record) { r.SetFromGUID(c.Begin(0).ToGUID()) })))},
		{name: "the wrong way round", says: "planned", stream: pack(nil, c, b)},
		{name: "another snapshot's name", says: "planned", stream: pack(nil, named(b, src+"@z"), c)},
		{name: "a deeper name", says: "stream of", stream: pack(nil, named(b, src+"/x@b"), c)},
		{name: "raw", says: "raw", stream: pack(nil, bent(b, begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureRaw) })))},
		{name: "the rest of a stream", says: "rest", stream: pack(nil, bent(b, begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureResuming) })))},
		{name: "redacted", says: "feature", stream: pack(nil, bent(b, begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureRedacted) })))},
		{name: "the other byte order", says: "byte order", stream: p.incr.Swapped()},
		{name: "a stream of the other byte order in it", says: "", stream: slices.Concat(zfstest.Package(src+"@c", nil, 0).Bytes()[:2*zfs.RecordSize], b.Swapped())},
		{name: "a package in it", begins: true, says: "BEGIN", stream: pack(nil, b, zfstest.Package(src+"@c", nil, 0, c))},
		{name: "a second package behind it", begins: true, says: "end", stream: append(p.incr.Bytes(), pack(nil, elsewhere)...)},
		{name: "bytes behind it", begins: true, says: "end", stream: append(p.incr.Bytes(), make([]byte, 1000)...)},
		{name: "a record between its streams", begins: true, says: "record", stream: slices.Insert(
			zfstest.Package(src+"@c", nil, 0, b, c), 2+len(b), *b.Last(zfs.RecordWrite)).Bytes()},
		{name: "a block of four gigabytes", begins: true, says: "", stream: pack(nil, bent(b, func(s zfstest.Stream) { s.Last(zfs.RecordWrite).SetBlock(1 << 32) }))},
	}
}
