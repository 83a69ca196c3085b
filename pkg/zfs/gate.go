package zfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Arrival is what a stream may bring. zfs receive makes of a stream what its
// records say, not what it was asked to store, so they are judged beforehand.
type Arrival struct {
	// Snapshots are those that the stream brings, in order. One that was
	// destroyed meanwhile may be missing, none may be added.
	Snapshots []SnapshotID `json:"snapshots"`
	// Base is the GUID of what the first of them is an increment of, 0 for a
	// full stream.
	Base uint64 `json:"base,omitempty,string"`
	// Volume tells that it is a volume's and not a filesystem's.
	Volume bool `json:"volume,omitempty"`
	// Raw tells that the stream is a raw one of encrypted data.
	Raw bool `json:"raw,omitempty"`
	// Resumed tells that it is the rest of an interrupted stream.
	Resumed bool `json:"resumed,omitempty"`
}

// SnapshotID is a snapshot without its dataset.
type SnapshotID struct {
	Name string `json:"name"`
	GUID uint64 `json:"guid,string"`
}

// The parts of a BEGIN record that are judged.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zfs_ioctl.h (drr_versioninfo)
const (
	substream = 1 // header types
	compound  = 2

	featureResuming = 1 << 20
	featureRaw      = 1 << 24
	flagClone       = 1 << 0

	osFilesystem = 2 // dmu_objset_type_t
	osVolume     = 3

	// maxBeginPayload bounds the list of a stream's own BEGIN record: keys, and
	// where it resumes.
	maxBeginPayload = 1 << 20
	// maxBlock is the largest payload of any other record, a block.
	maxBlock = 16 << 20
)

// allowedFeatures are those of the streams that zxfer asks zfs send for. What
// is not here changes what a stream does beyond storing its snapshots
// (dedup, redaction, holds), or is not known yet.
const allowedFeatures = 1<<2 | // SA_SPILL
	1<<16 | 1<<17 | // EMBED_DATA, LZ4
	1<<19 | featureResuming | // LARGE_BLOCKS
	1<<22 | 1<<23 | // COMPRESSED, LARGE_DNODE
	featureRaw | 1<<25 | // ZSTD
	1<<27 | 1<<28 | 1<<29 // SWITCH_TO_LARGE_BLOCKS, LONGNAME, LARGE_MICROZAP

// Gate judges a stream on its way to zfs receive. What passes is one stream of
// the snapshots that were planned, or a package of such streams without
// anything of its own, as zfs send -I makes it. What a package can bring
// besides does not: other datasets, properties, holds and renames.
//
// Behind the head of a single stream there is nothing to judge: the kernel
// reads it up to its END record, and zfs receive nothing behind that. The
// streams of a package are walked record by record, because each names the
// dataset that it goes to.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c (zfs_receive_package, zfs_receive_one)
type Gate struct {
	want   Arrival
	clone  bool
	header [RecordSize]byte
	have   int    // bytes of header that came
	pass   int64  // bytes that come before the next record
	key    string // what the wrapped key must be, "" = any
	hold   int    // bytes of a BEGIN record's list that are to come
	list   []byte // what came of it
	at     gateState
	order  binary.ByteOrder
	sent   string // the dataset that a package is of
	next   int    // the first of want.Snapshots that may still come
	base   uint64
	err    error
}

type gateState int

const (
	atBegin   gateState = iota // of all
	atHeadEnd                  // END of a package's head
	atStream                   // BEGIN of a stream of a package, or END of the package
	inStream                   // records of it
	atEnd                      // nothing more
)

// NewGate returns the Gate of a receive. What was not planned is an error: no
// stream is stored unjudged.
func NewGate(r ReceiveSpec) (*Gate, error) {
	w := r.Arrival
	switch {
	case len(w.Snapshots) == 0:
		return nil, fmt.Errorf("receive %s: nothing says which snapshots are to arrive", r.Target)
	case r.Origin != "" && w.Base == 0:
		return nil, fmt.Errorf("receive %s: nothing says which snapshot the clone's origin is", r.Target)
	}
	for _, s := range w.Snapshots {
		if err := CheckComponent(s.Name); err != nil {
			return nil, err
		}
		if s.GUID == 0 {
			return nil, fmt.Errorf("receive %s: snapshot @%s has no GUID", r.Target, s.Name)
		}
	}
	return &Gate{want: w, clone: r.Origin != "", base: w.Base}, nil
}

// Judge looks at the next bytes of the stream. They may be passed on if it
// returns nil; after an error none may.
func (g *Gate) Judge(b []byte) error {
	for g.err == nil && len(b) > 0 {
		if g.pass > 0 {
			n := min(int64(len(b)), g.pass)
			g.Passed(n)
			b = b[n:]
			continue
		}
		if g.hold > 0 {
			n := min(len(b), g.hold)
			g.list, b, g.hold = append(g.list, b[:n]...), b[n:], g.hold-n
			if g.hold == 0 {
				g.err = g.sameKey()
			}
			continue
		}
		if g.at == atEnd {
			g.err = errors.New("it goes on behind its end")
			break
		}
		n := copy(g.header[g.have:], b)
		b, g.have = b[n:], g.have+n
		if g.have == RecordSize {
			g.have = 0
			g.err = g.record()
		}
	}
	return g.err
}

// KeepKey refuses raw streams that would put another wrapped key in the place
// of the one that WrappedKey returned for the dataset.
func (g *Gate) KeepKey(fingerprint string) { g.key = fingerprint }

func (g *Gate) sameKey() error {
	key, err := wrappedKey(g.list)
	g.list = nil
	if err == nil && key != g.key {
		return ErrOtherKey
	}
	if g.at == atBegin {
		g.pass = math.MaxInt64
	}
	return err
}

// ErrOtherKey is what a Gate with KeepKey refuses.
var ErrOtherKey = errors.New("it brings another key, with which all that was received before would be locked")

// IsOtherKey tells of the failure of a receive, also on another host, that it was
// ErrOtherKey.
func IsOtherKey(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == Unplanned && strings.Contains(e.Detail, ErrOtherKey.Error())
}

// Passes is how many of the next bytes hold nothing to be judged.
func (g *Gate) Passes() int64 { return g.pass }

// Passed takes note of n bytes, Passes at most, that were passed on unseen.
func (g *Gate) Passed(n int64) {
	if g.pass != math.MaxInt64 {
		g.pass -= n
	}
}

func (g *Gate) record() error {
	if g.order == nil {
		var err error
		if g.order, err = byteOrder(g.header[:]); err != nil {
			return err
		}
	}
	r := &Record{Header: g.header[:], order: g.order}
	r.Type = RecordType(r.u32(0))
	switch {
	case g.at == atBegin && r.HeaderType() == compound:
		return g.head(r)
	case g.at == atBegin:
		if err := g.stream(r); err != nil || g.hold > 0 {
			return err
		}
		g.pass = math.MaxInt64
		return nil
	case g.at == atHeadEnd && r.Type == RecordEnd, g.at == inStream && r.Type == RecordEnd:
		g.at = atStream
		return nil
	case g.at == atHeadEnd:
		return fmt.Errorf("a package whose head ends with a record of type %d", r.Type)
	case g.at == atStream && r.Type == RecordEnd:
		g.at = atEnd
		return nil
	case g.at == atStream && r.Type == RecordBegin:
		if order, err := byteOrder(g.header[:]); err != nil || order != g.order {
			return errors.New("a package of streams of several hosts")
		}
		g.at = inStream
		return g.stream(r)
	case g.at == atStream, r.Type == RecordBegin:
		return fmt.Errorf("a record of type %d where none may be", r.Type)
	}
	size, err := r.payloadSize()
	if err == nil && size > maxBlock {
		err = fmt.Errorf("a record of type %d with %d bytes, and a block has %d at most", r.Type, size, maxBlock)
	}
	g.pass = int64(size)
	return err
}

// head judges the head of a package, which may only say whose streams follow.
func (g *Gate) head(r *Record) error {
	const what = "a package with datasets, properties or holds of its own (zfs send -R, -p, -h)"
	switch {
	case r.u32(4) != 0:
		return errors.New(what)
	case r.Features()&^allowedFeatures != 0:
		return fmt.Errorf("%s: stream features %#x", what, r.Features()&^allowedFeatures)
	case g.clone || g.want.Base == 0 || g.want.Resumed:
		return errors.New("a package where one stream was planned")
	case g.order != binary.LittleEndian:
		return errors.New("a package in the other byte order; each snapshot can be sent alone")
	}
	dataset, err := r.dataset()
	if err != nil {
		return err
	}
	g.sent, g.at = dataset, atHeadEnd
	return nil
}

// stream judges the BEGIN record of a stream, alone or in a package.
func (g *Gate) stream(r *Record) error {
	dataset, err := r.dataset()
	if err != nil {
		return err
	}
	objects := uint32(osFilesystem)
	if g.want.Volume {
		objects = osVolume
	}
	i := g.next
	for i < len(g.want.Snapshots) && g.want.Snapshots[i].GUID != r.ToGUID() {
		i++
	}
	features := r.Features()
	planned := func(is, should bool, yes, no string) error {
		switch {
		case is == should:
			return nil
		case is:
			return errors.New(yes)
		}
		return errors.New(no)
	}
	switch {
	case r.HeaderType() != substream:
		return fmt.Errorf("a BEGIN record of type %d, expected %d", r.HeaderType(), substream)
	case g.sent != "" && dataset != g.sent:
		return fmt.Errorf("a package of %q with a stream of %q", g.sent, dataset)
	case i == len(g.want.Snapshots):
		return fmt.Errorf("it brings %q with GUID %d, which was not planned", r.ToName(), r.ToGUID())
	case r.ToName() != dataset+"@"+g.want.Snapshots[i].Name:
		return fmt.Errorf("it brings %q where @%s was planned", r.ToName(), g.want.Snapshots[i].Name)
	case r.FromGUID() != g.base:
		return fmt.Errorf("its base is the snapshot with GUID %d, planned was %d", r.FromGUID(), g.base)
	case features&^allowedFeatures != 0:
		return fmt.Errorf("it has stream features %#x, which zxfer never asks for", features&^allowedFeatures)
	case r.u32(32) != objects:
		return fmt.Errorf("it is of objects of type %d, planned was %d (2: a filesystem, 3: a volume)", r.u32(32), objects)
	case r.u32(36)&flagClone != 0 && !g.clone:
		return errors.New("it is a clone's, which was not planned")
	case r.u32(4) > maxBeginPayload:
		return fmt.Errorf("its head has %d bytes, expected at most %d", r.u32(4), maxBeginPayload)
	}
	if err := errors.Join(
		planned(features&featureRaw != 0, g.want.Raw, "it is raw, which was not planned", "it is not raw, as was planned"),
		planned(features&featureResuming != 0, g.want.Resumed, "it is the rest of another stream", "it does not go on where the interrupted stream ended"),
	); err != nil {
		return err
	}
	g.next, g.base = i+1, r.ToGUID()
	if g.key == "" {
		g.pass = int64(r.u32(4))
	} else if g.hold = int(r.u32(4)); g.hold == 0 {
		return errors.New("it is raw and has no key")
	}
	return nil
}

// dataset is the dataset of the snapshot that a BEGIN record opens.
func (r *Record) dataset() (string, error) {
	if !bytes.Contains(r.Header[beginName:], []byte{0}) {
		return "", errors.New("the name in it has no end")
	}
	dataset, _, err := ParseSnapshot(r.ToName())
	return dataset, err
}
