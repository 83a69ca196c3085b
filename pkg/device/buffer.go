package device

import (
	"bytes"
	"unsafe"

	"zxfer/pkg/transport/tcp"
)

// AlignedBuffer returns n bytes at an address that O_DIRECT accepts.
func AlignedBuffer(n int) []byte { return tcp.NewAlignedBlock(n).Room() }

// aligned reports whether O_DIRECT accepts p as memory.
func aligned(p []byte, to int64) bool {
	return len(p) == 0 || uintptr(unsafe.Pointer(&p[0]))%uintptr(to) == 0
}

// IsZero reports whether all bytes of p are zero. It stops at the first other byte.
func IsZero(p []byte) bool {
	// Comparing the buffer with itself, shifted by one byte, runs at cache speed
	// and needs no page of zeros.
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[:len(p)-1], p[1:])
}
