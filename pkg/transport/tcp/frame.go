package tcp

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// Kind is the type of a frame.
type Kind uint8

// The kinds of frames. All except Data are control frames.
const (
	Data  Kind = 1 // part of the stream
	End   Kind = 2 // the sender's account of the stream; the last frame of a connection
	Abort Kind = 3 // this end failed; the payload is the reason in UTF-8
	Ack   Kind = 4 // the receiver has stored the stream
	Alive Kind = 5 // the receiver is working; Position is the number of bytes stored so far
	Have  Kind = 6 // device mode: blocks that the receiver already holds, see package device
)

// Flags are properties of Data frames.
type Flags uint8

// The flags. Zero excludes Compressed.
const (
	Zero       Flags = 1 << 0 // Raw zero bytes; the payload is empty or holds hashes
	Compressed Flags = 1 << 1 // the payload is one zstd frame of Raw bytes
	// Summed is for device mode. The payload ends with the hash and the mark of the Raw bytes,
	// TrailerSize bytes in total. The payload of a zero run holds a hash for each block and the
	// mark of the hashes.
	Summed Flags = 1 << 2
)

const (
	// HeaderSize is the length of a frame's header in bytes.
	HeaderSize = 20
	// TagSize is the length of a keyed tag in bytes.
	TagSize = 16
	// SumSize is the length in bytes of the hash in a Summed frame.
	SumSize = 32
	// MarkSize is the length in bytes of the mark after it.
	MarkSize    = 16
	TrailerSize = SumSize + MarkSize
	// MaxRaw bounds the stream bytes of a Data frame.
	MaxRaw = 16 << 20
	// MaxPayload bounds the payload of a Data frame in bytes. It is checked before allocation.
	MaxPayload = MaxRaw + TrailerSize
	// MaxControl bounds the payload of a control frame in bytes.
	MaxControl = 8 << 10
)

type Header struct {
	Kind     Kind
	Flags    Flags
	Payload  int    // bytes after the header, without the tag
	Position uint64 // Data: number of the frame in the stream, from 0; in device mode the offset in bytes
	Raw      uint32 // Data: stream bytes of the frame
}

func (h Header) put(b []byte) {
	b[0], b[1], b[2], b[3] = byte(h.Kind), byte(h.Flags), 0, 0
	binary.BigEndian.PutUint32(b[4:], uint32(h.Payload))
	binary.BigEndian.PutUint64(b[8:], h.Position)
	binary.BigEndian.PutUint32(b[16:], h.Raw)
}

// parseHeader decodes a header and refuses headers that no correct peer sends.
func parseHeader(b []byte) (Header, error) {
	h := Header{
		Kind: Kind(b[0]), Flags: Flags(b[1]),
		Position: binary.BigEndian.Uint64(b[8:]), Raw: binary.BigEndian.Uint32(b[16:]),
	}
	payload := binary.BigEndian.Uint32(b[4:])
	limit := uint32(MaxControl)
	if h.Kind == Data {
		limit = MaxPayload
	}
	switch {
	case h.Kind < Data || h.Kind > Have:
		return h, fmt.Errorf("unknown kind %d", h.Kind)
	case b[2] != 0 || b[3] != 0 || h.Flags > Zero|Compressed|Summed || h.Flags&Zero != 0 && h.Flags&Compressed != 0:
		return h, errors.New("reserved bits are set")
	case payload > limit:
		return h, fmt.Errorf("payload of %d bytes, more than %d", payload, limit)
	case h.Kind != Data && (h.Flags != 0 || h.Raw != 0):
		return h, errors.New("control frame with the fields of a data frame")
	case h.Kind != Data:
	case h.Raw == 0:
		return h, errors.New("data frame without data")
	case h.Flags == Zero:
		if payload != 0 {
			return h, errors.New("zero run with a payload")
		}
	case h.Flags == Zero|Summed:
		if payload < TrailerSize || (payload-MarkSize)%SumSize != 0 {
			return h, fmt.Errorf("zero run with a payload of %d bytes, which is not a list of hashes", payload)
		}
	case h.Raw > MaxRaw:
		return h, fmt.Errorf("%d bytes of stream, more than %d", h.Raw, MaxRaw)
	case h.Flags&Summed != 0 && payload < TrailerSize:
		return h, fmt.Errorf("payload of %d bytes is too short for its hash", payload)
	case h.Flags == Summed && h.Raw != payload-TrailerSize, h.Flags == 0 && h.Raw != payload:
		return h, fmt.Errorf("payload of %d bytes for %d bytes of stream", payload, h.Raw)
	}
	h.Payload = int(payload)
	return h, nil
}

// Account is the payload of an End frame: the sender's totals. The totals of the stream are the
// same on every connection.
type Account struct {
	Bytes  uint64 // of the stream
	Frames uint64 // Data frames of the stream
	// Digest is the xxh3-128 of the stream, big-endian, if Digested is set.
	Digest   [16]byte
	Digested bool
	// StreamBytes and StreamFrames are the totals of this connection.
	StreamBytes  uint64
	StreamFrames uint64
}

// accountSize is the length of an encoded Account.
const accountSize = 8*4 + 1 + 16

// Append appends the encoded Account to b.
func (a Account) Append(b []byte) []byte {
	for _, v := range []uint64{a.Bytes, a.Frames, a.StreamBytes, a.StreamFrames} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	var digested byte
	if a.Digested {
		digested = 1
	}
	return append(append(b, digested), a.Digest[:]...)
}

// ParseAccount decodes the payload of an End frame.
func ParseAccount(p []byte) (a Account, err error) {
	if len(p) != accountSize || p[32] > 1 {
		return a, fmt.Errorf("%w: end frame of %d bytes", ErrTampered, len(p))
	}
	for i, v := range []*uint64{&a.Bytes, &a.Frames, &a.StreamBytes, &a.StreamFrames} {
		*v = binary.BigEndian.Uint64(p[8*i:])
	}
	a.Digested = p[32] == 1
	copy(a.Digest[:], p[33:])
	return a, nil
}

// tagKeySize is the key size of AES-128. Tags have 128 bits, so a longer key would only be
// slower.
const tagKeySize = 16

// tagger computes or checks the tags of one direction of one connection with GMAC: AES-GCM with
// the frame as additional data and nothing to encrypt. Each direction of a connection has its
// own key. The nonce is the frame's number, so it never repeats under a key. It is counted, not
// sent, so a dropped, repeated or moved frame does not match its tag.
type tagger struct {
	gcm   cipher.AEAD
	nonce [12]byte
	out   [TagSize]byte
}

func newTagger(key []byte) (*tagger, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	return &tagger{gcm: gcm}, err
}

// seal appends the tag of frame number n. The buffer must have room for it.
func (t *tagger) seal(frame []byte, n uint64) []byte {
	binary.BigEndian.PutUint64(t.nonce[4:], n)
	return t.gcm.Seal(frame, t.nonce[:], nil, frame)
}

// open reports whether tag is valid for frame number n.
func (t *tagger) open(frame, tag []byte, n uint64) bool {
	binary.BigEndian.PutUint64(t.nonce[4:], n)
	_, err := t.gcm.Open(t.out[:0], t.nonce[:], tag, frame)
	return err == nil
}

// Block is the buffer of one frame. It has room for the header before the payload and the tag
// after it. So a frame is one system call, without copies.
type Block struct {
	buf []byte
	off int // offset of the payload, at least HeaderSize
	n   int // bytes of payload
	cap int
}

// NewBlock returns an empty Block for payloads of up to size bytes, with room for front bytes
// before them (see Prepend).
func NewBlock(size, front int) *Block {
	return NewBlockIn(make([]byte, BlockMemory(size, front)), size, front)
}

// NewBlockIn is NewBlock in the first BlockMemory(size, front) bytes of buf. If front is at least
// HeaderSize, these room bytes are the first ones of buf.
func NewBlockIn(buf []byte, size, front int) *Block {
	n := BlockMemory(size, front)
	return &Block{buf: buf[:n:n], off: max(front, HeaderSize), cap: size}
}

// BlockMemory returns the bytes of memory that a Block occupies.
func BlockMemory(size, front int) int { return max(front, HeaderSize) + size + TagSize }

// Alignment returns the alignment in bytes that O_DIRECT needs for memory, offsets and lengths.
// The page size suffices for all known devices and file systems; arm64 kernels have pages of up
// to 64 KiB.
func Alignment() int { return max(4096, os.Getpagesize()) }

// NewAlignedBlock returns a Block whose payload is aligned for O_DIRECT.
func NewAlignedBlock(size int) *Block {
	buf := make([]byte, Alignment()+HeaderSize+size+TagSize)
	off := HeaderSize
	if rest := int((uintptr(unsafe.Pointer(&buf[0])) + uintptr(off)) % uintptr(Alignment())); rest != 0 {
		off += Alignment() - rest
	}
	return &Block{buf: buf, off: off, cap: size}
}

// Buffer returns the whole payload buffer for the caller to fill, and then call SetLen.
func (b *Block) Buffer() []byte { return b.buf[b.off : b.off+b.cap : b.off+b.cap] }

// SetLen makes the first n bytes of Buffer the payload.
func (b *Block) SetLen(n int) { b.n = n }

// Payload returns the payload.
func (b *Block) Payload() []byte { return b.buf[b.off : b.off+b.n : b.off+b.cap] }

// Prepend copies p directly before the payload and returns both as one slice. p must fit into
// the front given to NewBlock. It overwrites the frame's header, so set a new payload before
// the Block is sent.
func (b *Block) Prepend(p []byte) []byte {
	copy(b.buf[b.off-len(p):], p)
	return b.buf[b.off-len(p) : b.off+b.n]
}
