package zfs

import (
	"errors"
	"fmt"
	"io"
)

// Objects of a volume.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zvol.h
const (
	volumeData       = 1 // ZVOL_OBJ
	volumeProperties = 2 // ZVOL_ZAP_OBJ

	volumeDataType = 23 // DMU_OT_ZVOL
)

// VolumeContents stores the contents of a volume. Ranges are within its size.
type VolumeContents interface {
	io.WriterAt
	// Zero makes n bytes from offset on read as zeros.
	Zero(offset, n int64) error
}

// VolumeStream turns the stream of a volume's snapshot into writes and zeroed ranges. A stream is
// full or incremental, neither raw nor compressed: zfs send without options. A full stream contains
// only data, so VolumeStream zeroes everything else.
//
// The stream is untrusted. VolumeStream refuses a stream that the Gate refuses, that names other
// objects than a volume has, that writes beyond the size, or that has wrong checksums. It stores all
// data before the error: the contents are complete only after End returned nil. Writes are
// absolute, so a repeated stream has the same result.
type VolumeStream struct {
	gate    *Gate
	scanner RecordScanner
	sum     streamSum
	to      VolumeContents
	size    uint64
	full    bool
	next    uint64 // of a full stream: the first byte that is neither written nor zeroed
	isData  bool   // the current payload belongs to the volume
	at      uint64 // where its next byte belongs
	ended   bool
	err     error
}

// NewVolumeStream returns the reader of the planned stream of a volume with size bytes.
func NewVolumeStream(a Arrival, size int64, to VolumeContents) (*VolumeStream, error) {
	const subject = "volume"
	if !a.Volume || a.Raw || a.Resumed || len(a.Snapshots) != 1 || size <= 0 {
		return nil, errors.New("the contents of a volume come from one stream of one snapshot that is not raw")
	}
	gate, err := NewGate(ReceiveSpec{Target: subject, Arrival: a})
	if err != nil {
		return nil, err
	}
	return &VolumeStream{gate: gate, to: to, size: uint64(size), full: a.Base == 0}, nil
}

// Write takes the next bytes of the stream. After an error, it always fails.
func (v *VolumeStream) Write(b []byte) (int, error) {
	if v.err == nil {
		v.err = v.take(b)
	}
	if v.err != nil {
		return 0, v.err
	}
	return len(b), nil
}

// End returns nil if the stream was complete.
func (v *VolumeStream) End() error {
	if v.err == nil && !v.ended {
		v.err = &Error{Kind: Incomplete, Op: OpSend, Detail: "the stream of the volume ended before its END record"}
	}
	return v.err
}

// take stores the next bytes. An invalid stream is an *Error.
func (v *VolumeStream) take(b []byte) error {
	if err := v.gate.Check(b); err != nil {
		return unplannedVolume(err)
	}
	for len(b) > 0 {
		if v.scanner.Left() > 0 {
			var payload []byte
			payload, b = v.scanner.Payload(b)
			v.sum.add(v.scanner.order, payload)
			if !v.isData {
				continue
			}
			if _, err := v.to.WriteAt(payload, int64(v.at)); err != nil {
				return err
			}
			v.at += uint64(len(payload))
			continue
		}
		var r *Record
		var err error
		if r, b, err = v.scanner.Header(b); r == nil || err != nil {
			if err != nil {
				return unplannedVolume(err)
			}
			continue
		}
		if err := v.sum.addHeader(r); err != nil {
			return &Error{Kind: BadStream, Op: OpSend, Detail: fmt.Sprintf("stream of the volume at byte %d: %s record: %v", v.scanner.Offset(), r.Type, err)}
		}
		if err := v.record(r); err != nil {
			return err
		}
	}
	return nil
}

func unplannedVolume(err error) error {
	return &Error{Kind: Unplanned, Op: OpSend, Detail: "the stream is not what was planned: " + err.Error(),
		Hint: "if the source changed, run the same command again; otherwise do not trust that host"}
}

// record applies a header. The Gate has checked the order of the records.
func (v *VolumeStream) record(r *Record) error {
	v.isData = false
	switch r.Type {
	case RecordBegin:
		return nil
	case RecordEnd:
		if err := v.zeroUpTo(v.size); err != nil {
			return err
		}
		v.ended = true
		return nil
	case RecordFreeObjects:
		if r.Object() <= volumeData && volumeData-r.Object() < r.Objects() {
			return v.refuse(r, "it frees the data of the volume")
		}
		return nil
	}
	switch object := r.Object(); {
	case object != volumeData && object != volumeProperties:
		return v.refuse(r, "a volume has no such object")
	case object == volumeProperties:
		return nil
	}
	switch r.Type {
	case RecordObject:
		if r.u32(16) != volumeDataType {
			return v.refuse(r, fmt.Sprintf("its type is %d, expected %d", r.u32(16), volumeDataType))
		}
		return nil
	case RecordWrite:
		return v.write(r)
	case RecordFree:
		return v.free(r)
	}
	return v.refuse(r, "zxfer requests only plain blocks")
}

func (v *VolumeStream) refuse(r *Record, why string) error {
	return unplannedVolume(fmt.Errorf("%s record of object %d: %s", r.Type, r.Object(), why))
}

func (v *VolumeStream) write(r *Record) error {
	switch {
	case r.compression() != 0:
		return v.refuse(r, "zxfer requests only plain blocks")
	case r.Offset() > v.size || r.Length() > v.size-r.Offset():
		return v.refuse(r, fmt.Sprintf("bytes %d to %d are beyond the volume's %d", r.Offset(), r.Offset()+r.Length(), v.size))
	}
	if err := v.zeroUpTo(r.Offset()); err != nil {
		return err
	}
	v.isData, v.at, v.next = true, r.Offset(), r.Offset()+r.Length()
	return nil
}

// zeroUpTo zeroes the bytes of a full stream before an offset that the stream did not write.
func (v *VolumeStream) zeroUpTo(offset uint64) error {
	if !v.full || v.next >= offset {
		return nil
	}
	from := v.next
	v.next = offset
	return v.to.Zero(int64(from), int64(offset-from))
}

// free zeroes a range. A sender frees everything beyond the last block, also beyond the size.
func (v *VolumeStream) free(r *Record) error {
	from, to := min(r.Offset(), v.size), v.size
	if n := r.Length(); n < v.size-from {
		to = from + n
	}
	if v.full || from == to {
		return nil // a full stream zeroes gaps
	}
	return v.to.Zero(int64(from), int64(to-from))
}
