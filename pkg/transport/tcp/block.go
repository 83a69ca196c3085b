package tcp

import (
	"os"
	"unsafe"
)

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
	off := max(front, HeaderSize)
	// After the tag there is room for the next header, which is often read along (see
	// Conn.ReadPayload).
	return &Block{buf: make([]byte, off+size+TagSize+HeaderSize), off: off, cap: size}
}

// Alignment returns the alignment in bytes that O_DIRECT needs for memory, offsets and lengths.
// The page size suffices for all known devices and file systems; arm64 kernels have pages of up
// to 64 KiB.
func Alignment() int { return max(4096, os.Getpagesize()) }

// NewAlignedBlock returns a Block whose payload is aligned for O_DIRECT.
func NewAlignedBlock(size int) *Block {
	buf := make([]byte, Alignment()+HeaderSize+size+TagSize+HeaderSize)
	off := HeaderSize
	if rest := int((uintptr(unsafe.Pointer(&buf[0])) + uintptr(off)) % uintptr(Alignment())); rest != 0 {
		off += Alignment() - rest
	}
	return &Block{buf: buf, off: off, cap: size}
}

// Room returns the whole payload buffer for the caller to fill, and then call SetLen.
func (b *Block) Room() []byte { return b.buf[b.off : b.off+b.cap : b.off+b.cap] }

// SetLen makes the first n bytes of Room the payload.
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
