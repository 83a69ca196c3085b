package wire

import (
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"io"
)

// Kind is what a frame carries.
type Kind uint8

// The kinds of frames. All but Data are control frames.
const (
	Data  Kind = 1 // a piece of the stream
	End   Kind = 2 // the sender's account of this connection and of the stream
	Abort Kind = 3 // the sender gives up; the payload says why
	Ack   Kind = 4 // the receiver stored the stream, or the payload says why not
	Alive Kind = 5 // the receiver is still at work
)

// Flags of Data frames.
const (
	Compressed uint8 = 1 << 0 // the payload is one zstd frame of Raw bytes
)

const (
	// HeaderSize is the length of a frame's header in bytes.
	HeaderSize = 24
	// TagSize is the length of a keyed tag in bytes.
	TagSize = 16
	// MaxPayload bounds a frame before anything is allocated for it.
	MaxPayload = 16 << 20
	// maxControl bounds control frames.
	maxControl = 64 << 10
)

// Frame is one frame in a buffer that leaves room for its header before the
// payload and its tag behind it, so that it crosses in one system call.
type Frame struct {
	Kind  Kind
	Flags uint8
	Seq   uint64 // number of the frame in the stream, from 0; in control frames 0
	Raw   uint32 // length of the payload when expanded; that of the payload if not compressed
	buf   []byte // header, payload, tag
	n     int    // payload length
}

// NewFrame returns an empty frame that holds up to size bytes.
func NewFrame(size int) *Frame {
	return &Frame{buf: make([]byte, HeaderSize+size+TagSize)}
}

// Room is the frame's whole payload buffer, to be filled; SetLen says how far.
func (f *Frame) Room() []byte { return f.buf[HeaderSize : len(f.buf)-TagSize] }

// SetLen makes the first n bytes of Room the payload.
func (f *Frame) SetLen(n int) { f.n = n }

// Payload is what the frame carries.
func (f *Frame) Payload() []byte { return f.buf[HeaderSize : HeaderSize+f.n] }

// grow makes Room at least size bytes long.
func (f *Frame) grow(size int) {
	if len(f.Room()) < size {
		f.buf = make([]byte, HeaderSize+size+TagSize)
	}
}

func (f *Frame) putHeader() {
	h := f.buf[:HeaderSize]
	h[0], h[1], h[2], h[3] = byte(f.Kind), f.Flags, 0, 0
	binary.BigEndian.PutUint32(h[4:], uint32(f.n))
	binary.BigEndian.PutUint64(h[8:], f.Seq)
	binary.BigEndian.PutUint32(h[16:], f.Raw)
	binary.BigEndian.PutUint32(h[20:], 0)
}

// parseHeader reads a header and returns the payload's length.
func (f *Frame) parseHeader(h []byte) (int, error) {
	f.Kind, f.Flags = Kind(h[0]), h[1]
	n := binary.BigEndian.Uint32(h[4:])
	f.Seq = binary.BigEndian.Uint64(h[8:])
	f.Raw = binary.BigEndian.Uint32(h[16:])
	limit := uint32(maxControl)
	switch {
	case f.Kind == Data:
		limit = MaxPayload
	case f.Kind < Data || f.Kind > Alive:
		return 0, fmt.Errorf("unknown kind %d of frame", f.Kind)
	}
	if h[2] != 0 || h[3] != 0 || binary.BigEndian.Uint32(h[20:]) != 0 || f.Flags&^Compressed != 0 {
		return 0, fmt.Errorf("reserved bits of the header are set")
	}
	if n > limit || f.Raw > MaxPayload {
		return 0, fmt.Errorf("frame of %d bytes (%d expanded), at most %d are allowed", n, f.Raw, limit)
	}
	return int(n), nil
}

// tagger makes or checks the tags of one direction of one connection. The
// nonce is the number of tagged frames so far: with a key of its own for each
// connection and direction it never repeats, and a frame that was dropped,
// repeated or moved does not match.
type tagger struct {
	gmac  cipher.AEAD // AES-GCM with nothing to encrypt
	nonce [12]byte
	count uint64
	check [TagSize]byte
}

func (t *tagger) next() []byte {
	binary.BigEndian.PutUint64(t.nonce[4:], t.count)
	t.count++
	return t.nonce[:]
}

// seal writes the tag of a frame behind its payload.
func (t *tagger) seal(f *Frame) {
	end := HeaderSize + f.n
	t.gmac.Seal(f.buf[end:end], t.next(), nil, f.buf[:end])
}

// open tells whether the tag behind the payload is right.
func (t *tagger) open(f *Frame) bool {
	end := HeaderSize + f.n
	_, err := t.gmac.Open(t.check[:0], t.next(), f.buf[end:end+TagSize], f.buf[:end])
	return err == nil
}

// readFull is io.ReadFull for which an early end is a cut.
func readFull(r io.Reader, p []byte) error {
	_, err := io.ReadFull(r, p)
	return err
}
