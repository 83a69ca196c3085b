package zfstest

import (
	"fmt"
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
	saysHead       = "datasets, properties or holds of its own"
	saysPackage    = "a package where one stream was planned"
	saysNotPlanned = "which was not planned"
	saysName       = "was planned"
	saysBase       = "its base is the snapshot with GUID"
	saysFeatures   = "it has stream features"
	saysOther      = "with a stream of"
	saysEnd        = "behind its end"
	saysNoEnd      = "the name in it has no end"
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
		{Name: "whole stream from its start", Everywhere: true, Says: "it does not go on", Stream: whole.Bytes()},
		{Name: "another stream from its start", Says: "it does not go on", Stream: f.Full.As(name, guid).Bytes()},
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
		{Name: "missing child whose base is another dataset's", Everywhere: true, Says: saysOther, Stream: pack(nil, elsewhere)},
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
		{Name: "clone of its own base", Says: "clone", Stream: pack(nil, b.Changed(func(r *Record) { r.SetClone(at) }))},
		{Name: "another base", Says: saysBase, Stream: pack(nil, b.Changed(from(f.ForeignGUID)))},
		{Name: "another GUID", Says: saysNotPlanned, Stream: pack(nil, b.As(src+"@b", forgedGUID))},
		{Name: "another GUID after a planned stream", Begins: true, Says: saysNotPlanned, Stream: pack(nil, b, c.As(src+"@c", forgedGUID))},
		{Name: "snapshot twice", Begins: true, Says: saysNotPlanned, Stream: pack(nil, b, b, c)},
		{Name: "one more snapshot", Everywhere: true, Begins: true, Says: saysNotPlanned, Stream: pack(nil, b, c, b.As(src+"@d", forgedGUID).Changed(from(c.Begin(0).ToGUID())))},
		{Name: "wrong order", Says: saysBase, Stream: pack(nil, c, b)},
		{Name: "another snapshot's name", Says: saysName, Stream: pack(nil, b.Named(src+"@z"), c)},
		{Name: "name of a child", Says: saysOther, Stream: pack(nil, b.Named(src+"/x@b"), c)},
		{Name: "raw", Says: "it is raw", Stream: pack(nil, b.Changed(feature(FeatureRaw)))},
		{Name: "rest of another stream", Says: "rest of another stream", Stream: pack(nil, b.Changed(feature(FeatureResuming)))},
		{Name: "redacted", Says: saysFeatures, Stream: pack(nil, b.Changed(feature(FeatureRedacted)))},
		{Name: "package in the other byte order", Says: "byte order", Stream: f.Increment.Swapped()},
		{Name: "stream in the other byte order", Says: "streams of several hosts", Stream: append(Package(src+"@c", nil, 0).Bytes()[:2*zfs.RecordSize], b.Swapped()...)},
		{Name: "package in the package", Begins: true, Says: "a BEGIN record of type 2", Stream: pack(nil, b, Package(src+"@c", nil, 0, c))},
		{Name: "second package after the end", Begins: true, Says: saysEnd, Stream: append(f.Increment.Bytes(), pack(nil, elsewhere)...)},
		{Name: "bytes after the end", Begins: true, Says: saysEnd, Stream: append(f.Increment.Bytes(), make([]byte, 1000)...)},
		{Name: "record between the streams", Begins: true, Says: "where none may be", Stream: insert(
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
