package zfs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"
)

// BlockFilter reads a stream and returns another one with some of its blocks, for a corrective
// receive: the BEGIN record, the OBJECT and WRITE records of the blocks, and the END record. The kernel
// ignores all other records there.
//
// BlockFilter verifies the checksums of its source before it returns a record, and computes new ones. It
// returns the END record only after the source ended without error. The source may not be a package.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (receive_process_record)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_send.c (dump_record)
type BlockFilter struct {
	source  countingReader
	records *StreamReader
	rules   *RecordRules     // nil before the BEGIN record
	order   binary.ByteOrder // of the source
	only    Blocks
	in      streamSum // checksum of the source so far
	out     position  // in the new stream, after the held record
	proven  position  // before the held record
	chunk   []byte
	held    []byte // the last record, whose payload the next header proves
	ready   []byte // proven records that Read did not return yet
	err     error
}

// position is the end of a part of a stream.
type position struct {
	sum     streamSum
	object  uint64 // of the last OBJECT record
	written uint64 // object of the last WRITE record
	end     uint64 // offset of the first byte after it, 0 if there is none
	blocks  uint64 // number of WRITE records
}

// NewBlockFilter returns a filter of the stream src that passes the blocks of only.
func NewBlockFilter(src io.Reader, only Blocks) *BlockFilter {
	f := &BlockFilter{only: only, chunk: make([]byte, 256<<10)}
	f.source.Reader = src
	f.records = NewStreamReader(&f.source)
	return f
}

// Worked returns the number of bytes read from the source. It may be called at any time.
func (f *BlockFilter) Worked() int64 { return f.source.n.Load() }

// Blocks returns the number of blocks in the new stream. It is valid after Read returned an error.
func (f *BlockFilter) Blocks() uint64 { return f.out.blocks }

// Read returns the filtered stream. The errors of the source are returned unchanged.
func (f *BlockFilter) Read(b []byte) (int, error) {
	for len(f.ready) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		if f.err = f.next(); f.err != nil && f.source.err != nil && f.source.err != io.EOF {
			f.err = f.source.err
			f.pad()
		}
	}
	n := copy(b, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// next takes one record from the source. It returns io.EOF after the END record.
func (f *BlockFilter) next() error {
	r, err := f.records.Next()
	if err != nil {
		return err
	}
	if err := f.in.addHeader(r); err != nil {
		return f.records.errorf("%s record: %w", r.Type, err)
	}
	f.ready, f.held, f.proven = f.held, nil, f.out
	switch {
	case f.rules != nil:
		err = f.rules.Check(r)
	case r.Type != RecordBegin || r.HeaderType() != substream:
		err = errors.New("the stream of one snapshot was expected")
	default:
		f.rules, f.order = NewRecordRules(r), r.order
	}
	if err != nil {
		return f.records.errorf("%w", err)
	}
	keep := r.Type != RecordFree && f.only.selects(r, f.rules)
	if keep {
		f.hold(r)
	}
	if err := f.payload(keep); err != nil || r.Type != RecordEnd {
		return err
	}
	if _, err := f.records.Next(); err != io.EOF {
		return cmp.Or(err, f.records.errorf("the stream continues after its END record"))
	}
	f.ready = append(f.ready, f.held...)
	return io.EOF
}

// selects reports whether a filtered stream may have the record, which rules have checked.
func (b Blocks) selects(r *Record, rules *RecordRules) bool {
	switch r.Type {
	case RecordBegin, RecordEnd:
		return true
	case RecordObject, RecordFree:
		return b.hasObject(r.Object())
	case RecordWrite:
		return b.Has(r.Object(), rules.blockNumber(r))
	}
	return false
}

// hold adds a header to the new stream.
func (f *BlockFilter) hold(r *Record) {
	f.held = append(make([]byte, 0, RecordSize+min(r.PayloadSize(), maxBlock)), r.Header...)
	switch r.Type {
	case RecordObject:
		f.out.object = r.Object()
	case RecordWrite:
		f.out.written, f.out.end = r.Object(), r.Offset()+r.Length()
		f.out.blocks++
	}
	f.out.sum.endPayload()
	if r.Type == RecordEnd {
		f.out.sum.put(r.order, f.held[endSum:])
	}
	f.out.sum.add(r.order, f.held[:recordSum])
	if r.Type != RecordBegin {
		f.out.sum.put(r.order, f.held[recordSum:])
	}
	f.out.sum.add(r.order, f.held[recordSum:])
}

// pad ends the stream of a source that failed, so that zfs receive gets the last WRITE record: it stores
// a record only after the next header, and zxfer withholds TailSize bytes. A corrective receive ignores
// FREE records.
func (f *BlockFilter) pad() {
	f.out = f.proven
	if f.out.end == 0 {
		return
	}
	offset := uint64(0)
	if f.out.object == f.out.written {
		offset = f.out.end
	}
	for range TailSize/RecordSize + 1 {
		header := make([]byte, RecordSize)
		f.order.PutUint32(header, uint32(RecordFree))
		for i, field := range []uint64{f.out.object, offset, minBlock, f.rules.toGUID} {
			f.order.PutUint64(header[8+8*i:], field)
		}
		r := Record{Type: RecordFree, Header: header, order: f.order}
		f.hold(&r)
		f.ready = append(f.ready, f.held...)
	}
}

// payload reads the payload of the current record, and adds it to the new stream if keep is set.
func (f *BlockFilter) payload(keep bool) error {
	for {
		n, err := io.ReadFull(f.records, f.chunk)
		b := f.chunk[:n]
		f.in.add(f.order, b)
		if keep {
			f.out.sum.add(f.order, b)
			f.held = append(f.held, b...)
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF: // the end of the payload
			return nil
		default:
			return err
		}
	}
}

// countingReader counts the bytes of a reader and keeps its error.
type countingReader struct {
	io.Reader
	n   atomic.Int64
	err error
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	c.err = err
	return n, err
}
