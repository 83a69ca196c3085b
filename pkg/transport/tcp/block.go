package tcp

import (
	"os"
	"unsafe"
)

// Block is the buffer of one frame. Around the payload it has room for what
// the wire puts before and behind it, so that a frame crosses in one system
// call and is never moved in memory.
type Block struct {
	buf []byte
	off int // of the payload: at least HeaderSize
	n   int // payload bytes
	cap int
}

// NewBlock returns an empty Block for payloads of up to size bytes, with room
// for front bytes before them (see Prepend).
func NewBlock(size, front int) *Block {
	off := max(front, HeaderSize)
	// Behind the payload and its tag there is room for the next frame's
	// header, which often can be read along (see Conn.ReadPayload).
	return &Block{buf: make([]byte, off+size+TagSize+HeaderSize), off: off, cap: size}
}

// Alignment is what O_DIRECT asks of memory, offsets and lengths on every device and
// file system known: the page, though most are content with less. Kernels for arm64
// have pages of up to 64 KiB.
func Alignment() int { return max(4096, os.Getpagesize()) }

// NewAlignedBlock is NewBlock with a payload that begins at a multiple of Alignment,
// as reads and writes past the page cache (O_DIRECT) need.
func NewAlignedBlock(size int) *Block {
	buf := make([]byte, Alignment()+HeaderSize+size+TagSize+HeaderSize)
	off := HeaderSize
	if rest := int((uintptr(unsafe.Pointer(&buf[0])) + uintptr(off)) % uintptr(Alignment())); rest != 0 {
		off += Alignment() - rest
	}
	return &Block{buf: buf, off: off, cap: size}
}

// Room is the whole payload buffer, to be filled; SetLen says how far.
func (b *Block) Room() []byte { return b.buf[b.off : b.off+b.cap : b.off+b.cap] }

// SetLen makes the first n bytes of Room the payload.
func (b *Block) SetLen(n int) { b.n = n }

// Payload is what the Block holds.
func (b *Block) Payload() []byte { return b.buf[b.off : b.off+b.n : b.off+b.cap] }

// Prepend copies p, at most the front that the Block was made with, directly
// before the payload and returns both as one slice. The Block must not be
// written as a frame before its payload was set anew.
func (b *Block) Prepend(p []byte) []byte {
	copy(b.buf[b.off-len(p):], p)
	return b.buf[b.off-len(p) : b.off+b.n]
}
