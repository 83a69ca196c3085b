package zfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Arrival describes the stream that a plan expects. zfs receive follows the records of a
// stream, not its command line.
type Arrival struct {
	// Snapshots are the snapshots that the stream may bring, in order. Some may be missing,
	// because they were destroyed after planning.
	Snapshots []SnapshotID `json:"snapshots"`
	// Base is the GUID of the incremental source of the first snapshot, 0 for a full stream.
	Base uint64 `json:"base,omitempty,string"`
	// Volume is set for a volume, and unset for a filesystem.
	Volume bool `json:"volume,omitempty"`
	// Raw is set for a raw stream of encrypted data.
	Raw bool `json:"raw,omitempty"`
	// Resumed is set for the rest of an interrupted stream.
	Resumed bool `json:"resumed,omitempty"`
}

// SnapshotID is a snapshot without its dataset.
type SnapshotID struct {
	Name string `json:"name"`
	GUID uint64 `json:"guid,string"`
}

// Fields of a BEGIN record.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zfs_ioctl.h (drr_versioninfo)
const (
	substream = 1 // header types
	compound  = 2

	featureSpill       = 1 << 2
	featureEmbedded    = 1 << 16
	featureLZ4         = 1 << 17
	featureLargeBlocks = 1 << 19
	featureResuming    = 1 << 20
	featureCompressed  = 1 << 22
	featureLargeDnode  = 1 << 23
	featureRaw         = 1 << 24
	featureZstd        = 1 << 25
	featureToLarge     = 1 << 27 // SWITCH_TO_LARGE_BLOCKS
	featureLongName    = 1 << 28
	featureMicroZap    = 1 << 29 // LARGE_MICROZAP
	flagClone          = 1 << 0

	osFilesystem = 2 // dmu_objset_type_t
	osVolume     = 3
)

// allowedFeatures are the features of streams that zxfer requests from zfs send. Others add
// effects to the storing of snapshots (dedup, redaction, holds), or are unknown.
const allowedFeatures = featureSpill | featureEmbedded | featureLZ4 | featureLargeBlocks | featureResuming |
	featureCompressed | featureLargeDnode | featureRaw | featureZstd | featureToLarge | featureLongName | featureMicroZap

// Gate checks a stream on its way to zfs receive. It passes a single stream of a planned
// snapshot, or a package of such streams with an empty head, as zfs send -I makes it. It
// refuses everything else that a package can carry: other datasets, properties, holds and
// renames. RecordRules checks each record of each stream.
//
// The stream of a corrective receive with ReceiveSpec.Only may have only the records of a BlockFilter.
//
// Gate reads only headers. Bypassable reports how many bytes of payload may bypass it.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c (zfs_receive_package, zfs_receive_one)
type Gate struct {
	arrival        Arrival
	clone          bool
	walker         RecordScanner
	rules          *RecordRules // of the current stream
	only           Blocks       // empty for all blocks
	key            string       // expected fingerprint of the wrapped key, "" for any
	inKey          bool         // the current payload holds the wrapped key
	list           []byte       // the received part of that payload
	at             gateState
	packageDataset string // dataset of a package, "" for a single stream
	next           int    // index of the first of arrival.Snapshots that may still come
	base           uint64 // expected incremental source of the next stream
	err            error
}

// gateState is the position between two records.
type gateState int

const (
	atBegin   gateState = iota // before the first record
	atHeadEnd                  // before the END record of the head of a package
	atStream                   // between the streams of a package
	inStream                   // between the records of a stream
	atEnd                      // after the last record
)

// NewGate returns the Gate of a receive. It returns an error if the plan does not name the
// snapshots.
func NewGate(r ReceiveSpec) (*Gate, error) {
	w := r.Arrival
	switch {
	case len(w.Snapshots) == 0:
		return nil, fmt.Errorf("receive %s: the request names no snapshots", r.Target)
	case r.Origin != "" && w.Base == 0:
		return nil, fmt.Errorf("receive %s: the request does not name the clone's origin", r.Target)
	case len(r.Only) > 0 && !r.Corrective:
		return nil, fmt.Errorf("receive %s: only a corrective receive is limited to some blocks", r.Target)
	}
	if err := r.Only.Check(); err != nil {
		return nil, fmt.Errorf("receive %s: %w", r.Target, err)
	}
	for _, s := range w.Snapshots {
		if err := CheckComponent(s.Name); err != nil {
			return nil, err
		}
		if s.GUID == 0 {
			return nil, fmt.Errorf("receive %s: snapshot @%s has no GUID", r.Target, s.Name)
		}
	}
	return &Gate{arrival: w, clone: r.Origin != "", base: w.Base, only: r.Only}, nil
}

// Check checks the next bytes of the stream. If it returns nil, the caller may pass them on.
// After an error, the caller must pass on no more bytes.
func (g *Gate) Check(b []byte) error {
	for g.err == nil && len(b) > 0 {
		if g.walker.Left() > 0 {
			var payload []byte
			payload, b = g.walker.Payload(b)
			if g.inKey {
				g.list = append(g.list, payload...)
				g.err = g.checkKey()
			}
			continue
		}
		if g.at == atEnd {
			g.err = errors.New("it continues after its end")
			break
		}
		var r *Record
		if r, b, g.err = g.walker.Header(b); r != nil && g.err == nil {
			g.err = g.record(r)
		}
	}
	return g.err
}

// KeepKey makes the gate refuse raw streams with another wrapped key than the one that
// WrappedKey returned for the dataset.
func (g *Gate) KeepKey(fingerprint string) { g.key = fingerprint }

// checkKey compares the wrapped key once its payload is complete.
func (g *Gate) checkKey() error {
	if g.walker.Left() > 0 {
		return nil
	}
	key, err := wrappedKey(g.list)
	g.list, g.inKey = nil, false
	if err == nil && key != g.key {
		return ErrOtherKey
	}
	return err
}

// ErrOtherKey is the refusal of a Gate with KeepKey.
var ErrOtherKey = errors.New("it brings another key, which would lock all data received before")

// IsOtherKey reports whether a receive, also on another host, failed with ErrOtherKey.
func IsOtherKey(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == Unplanned && strings.Contains(e.Detail, ErrOtherKey.Error())
}

// Bypassable returns how many of the next bytes are payload that the caller may pass on without
// Check.
func (g *Gate) Bypassable() int64 {
	if g.inKey || g.err != nil {
		return 0
	}
	return int64(g.walker.Left())
}

// Bypassed counts n bytes, at most Bypassable, that the caller passed on.
func (g *Gate) Bypassed(n int64) { g.walker.Skip(uint64(n)) }

// record checks one record. In a package, the END records of its head and of itself and the
// heads of its streams frame the records that RecordRules checks.
func (g *Gate) record(r *Record) error {
	switch {
	case g.at == atBegin && r.HeaderType() == compound:
		return g.head(r)
	case g.at == atBegin:
		return g.stream(r)
	case g.at == atHeadEnd && r.Type == RecordEnd:
		g.at = atStream
		return nil
	case g.at == atHeadEnd:
		return fmt.Errorf("a package whose header ends with a record of type %d", r.Type)
	case g.at == atStream && r.Type == RecordEnd:
		g.at = atEnd
		return nil
	case g.at == atStream && r.Type == RecordBegin:
		if order, err := byteOrder(r.Header); err != nil || order != r.order {
			return errors.New("a package of streams of several hosts")
		}
		return g.stream(r)
	case g.at == atStream, r.Type == RecordBegin:
		return fmt.Errorf("an unexpected record of type %d", r.Type)
	}
	if err := g.rules.Check(r); err != nil {
		return err
	}
	switch {
	case len(g.only) > 0 && !g.only.selects(r, g.rules):
		return fmt.Errorf("%s record of object %d, offset %d: it was not requested", r.Type, r.Object(), r.Offset())
	case r.Type == RecordEnd && g.packageDataset == "":
		g.at = atEnd
	case r.Type == RecordEnd:
		g.at = atStream
	}
	return nil
}

// head checks the head of a package, which may only name the dataset.
func (g *Gate) head(r *Record) error {
	const what = "a package with datasets, properties or holds (zfs send -R, -p, -h)"
	switch {
	case r.u32(4) != 0:
		return errors.New(what)
	case r.Features()&^allowedFeatures != 0:
		return fmt.Errorf("%s: stream features %#x", what, r.Features()&^allowedFeatures)
	case g.clone || g.arrival.Base == 0 || g.arrival.Resumed:
		return errors.New("a package instead of a single stream")
	case r.order != binary.LittleEndian:
		return errors.New("a package in the other byte order; send each snapshot alone")
	}
	dataset, err := r.dataset()
	if err != nil {
		return err
	}
	g.packageDataset, g.at = dataset, atHeadEnd
	return nil
}

// stream checks the BEGIN record of a stream, alone or in a package.
func (g *Gate) stream(r *Record) error {
	dataset, err := r.dataset()
	if err != nil {
		return err
	}
	objects := uint32(osFilesystem)
	if g.arrival.Volume {
		objects = osVolume
	}
	i := g.next
	for i < len(g.arrival.Snapshots) && g.arrival.Snapshots[i].GUID != r.ToGUID() {
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
	case g.packageDataset != "" && dataset != g.packageDataset:
		return fmt.Errorf("a package of %q with a stream of %q", g.packageDataset, dataset)
	case i == len(g.arrival.Snapshots):
		return fmt.Errorf("it brings %q with GUID %d, which was not planned", r.ToName(), r.ToGUID())
	case r.ToName() != dataset+"@"+g.arrival.Snapshots[i].Name:
		return fmt.Errorf("it brings %q instead of @%s", r.ToName(), g.arrival.Snapshots[i].Name)
	case r.FromGUID() != g.base:
		return fmt.Errorf("its incremental source has GUID %d, expected %d", r.FromGUID(), g.base)
	case features&^allowedFeatures != 0:
		return fmt.Errorf("it has stream features %#x, which zxfer never requests", features&^allowedFeatures)
	case r.u32(32) != objects:
		return fmt.Errorf("it has objects of type %d, expected %d (2: filesystem, 3: volume)", r.u32(32), objects)
	case r.u32(36)&flagClone != 0 && !g.clone:
		return errors.New("it is a clone, which was not planned")
	}
	if err := errors.Join(
		planned(features&featureRaw != 0, g.arrival.Raw, "it is raw, which was not planned", "it is not raw, which was planned"),
		planned(features&featureResuming != 0, g.arrival.Resumed, "it resumes another stream", "it does not continue the interrupted stream"),
	); err != nil {
		return err
	}
	if g.inKey = g.key != ""; g.inKey && r.PayloadSize() == 0 {
		return errors.New("it is raw and has no key")
	}
	g.next, g.base, g.at, g.rules = i+1, r.ToGUID(), inStream, NewRecordRules(r)
	return nil
}

// dataset returns the dataset of the snapshot in a BEGIN record.
func (r *Record) dataset() (string, error) {
	if !bytes.Contains(r.Header[beginName:], []byte{0}) {
		return "", errors.New("its name is not terminated")
	}
	dataset, _, err := ParseSnapshot(r.ToName())
	return dataset, err
}
