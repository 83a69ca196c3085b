package transfer

import (
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/fault"
)

// Memory limits the memory of the streams that one client runs at the same time. nil = no limit. Each stream may
// have floor bytes, which do not count, so that a client with many usual streams is not refused.
type Memory struct {
	Limit int64 // bytes

	mu   sync.Mutex
	used int64 // bytes beyond the floors
}

// The floor of a stream, in bytes: a buffer, blocks outside the buffer, and an encoder of a low level.
const (
	floorBuffer  = 8 << 20
	floorBlocks  = 4 * DefaultBlock
	floorEncoder = 16 << 20
	floor        = floorBuffer + floorBlocks + floorEncoder
)

// Reserve reserves memory for a stream over a number of connections, 0 within one host. encodes is set
// if this end compresses. Reserve reduces buffer, threads and levels of o to what remains, and
// refuses a stream that needs more. Call release after the stream has ended.
func (m *Memory) Reserve(o *Options, connections int, encodes bool) (release func(), err error) {
	if m == nil {
		return func() {}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, left := o.Filled(), m.Limit-m.used
	f.Buffer, f.CompressThreads, f.lowLevels = 0, 1, true
	need := max(0, f.memory(connections, encodes)+floorBuffer-floor)
	if need > left {
		return nil, fault.Refusef("send fewer streams at once, with fewer connections or a lower level of zstd",
			"the streams of this client need more than %d MiB of memory", m.Limit>>20)
	}
	left -= need
	given := func(more Options) bool { // takes at most half of what is left
		n := more.memory(connections, encodes) - f.memory(connections, encodes)
		if 2*n > left {
			return false
		}
		f, left, need = more, left-n, need+n
		return true
	}
	high := f
	high.lowLevels = false
	given(high)
	for n := min(o.threads(), maxThreads); n > 1; n /= 2 {
		more := f
		if more.CompressThreads = n; given(more) {
			break
		}
	}
	f.Buffer = min(o.Filled().Buffer, DefaultBuffer, floorBuffer+left/2)
	need += max(0, f.Buffer-floorBuffer)
	o.Buffer, o.CompressThreads, o.lowLevels = f.Buffer, f.CompressThreads, f.lowLevels
	m.used += need
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.used -= need
	}), nil
}

// maxThreads is more than any host has processors.
const maxThreads = 1 << 12

// memory returns the bytes that a stream with filled options needs at most. Each connection and each thread
// holds a block outside the buffer, and so do the reader and the writer.
func (o Options) memory(connections int, encodes bool) int64 {
	threads := int64(o.threads())
	n := o.Buffer + int64(o.Block)*(int64(connections)+threads+2)
	if !encodes {
		return n
	}
	mode, text, _ := strings.Cut(o.Compress, ":")
	level, _ := strconv.Atoi(text)
	windows := 8 * int64(max(0, o.Block-DefaultBlock)) // the encoders of all levels keep two blocks each
	switch {
	case mode == "auto" && o.lowLevels:
		return n + threads*(floorEncoder+windows)
	case mode == "auto":
		return n + threads*(floorEncoder+windows) + maxBestEncoders*bestEncoder
	case mode != "zstd":
		return n
	case zstd.EncoderLevelFromZstd(level) == zstd.SpeedBestCompression:
		return n + threads*(bestEncoder+windows)
	}
	return n + threads*(floorEncoder+windows)
}

// bestEncoder is the memory of an encoder of the highest level, in bytes.
const bestEncoder = 40 << 20
