package zfs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// TailSize is the number of bytes at the end of a stream that must be held back until the
// whole stream is verified. zfs receive makes no snapshot before it reads the END record. A
// package ends with two END records: the one of its last stream, and its own.
const TailSize = 2 * RecordSize

// StreamReader reads the records of a stream or a package, like tar.Reader: Next moves to the
// next record, Read and Payload read the payload of the current one.
type StreamReader struct {
	r       *bufio.Reader
	walker  Walker
	header  [RecordSize]byte
	payload bytes.Buffer
	last    RecordType
	started bool
}

// NewStreamReader returns a reader of the stream r. It reads ahead.
func NewStreamReader(r io.Reader) *StreamReader {
	return &StreamReader{r: bufio.NewReaderSize(r, 1<<20)}
}

// Offset returns the number of bytes that were read.
func (s *StreamReader) Offset() uint64 { return s.walker.Offset() }

// Next skips the rest of the payload of the current record and returns the next record. It
// returns io.EOF only after an END record.
func (s *StreamReader) Next() (*Record, error) {
	if left := s.walker.Left(); left > 0 {
		n, err := s.r.Discard(int(left))
		s.walker.Skip(uint64(n))
		if err != nil {
			return nil, s.payloadError(left, err)
		}
	}
	n, err := io.ReadFull(s.r, s.header[:])
	switch {
	case err == io.EOF && s.started && s.last == RecordEnd:
		return nil, io.EOF
	case err == io.EOF:
		return nil, s.errorf("stream ends before its END record: %w", io.ErrUnexpectedEOF)
	}
	rec, _, bad := s.walker.Header(s.header[:n])
	switch {
	case err != nil:
		return nil, s.errorf("record: %w", err)
	case bad != nil:
		return nil, s.errorf("%w", bad)
	}
	s.last, s.started = rec.Type, true
	return rec, nil
}

// Read reads the payload of the current record. It returns io.EOF at its end.
func (s *StreamReader) Read(b []byte) (int, error) {
	left := s.walker.Left()
	if left == 0 {
		return 0, io.EOF
	}
	n, err := s.r.Read(b[:min(uint64(len(b)), left)])
	s.walker.Skip(uint64(n))
	if err != nil {
		err = s.payloadError(left, err)
	}
	return n, err
}

// payloadError describes a failure to read left bytes of a payload.
func (s *StreamReader) payloadError(left uint64, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return s.errorf("payload of %d bytes: %w", left, err)
}

// Payload returns the rest of the payload of the current record. The slice is valid until
// the next call. Memory use grows with the bytes that arrive, not with the claimed size.
func (s *StreamReader) Payload() ([]byte, error) {
	s.payload.Reset()
	_, err := s.payload.ReadFrom(payloadReader{s})
	return s.payload.Bytes(), err
}

// payloadReader has only Read, so that bytes.Buffer grows with the bytes that arrive.
type payloadReader struct{ s *StreamReader }

func (p payloadReader) Read(b []byte) (int, error) { return p.s.Read(b) }

func (s *StreamReader) errorf(format string, args ...any) error {
	return fmt.Errorf("send stream at byte %d: "+format, append([]any{s.Offset()}, args...)...)
}
